"""Documents in pieces: passages of whole sentences for people, and overlapping chunks of tokens for models.

A passage is a run of whole sentences, long enough to be understood alone and short enough to read. It stays inside one
section. Paragraphs are kept whole if they fit; consecutive short turns of a dialogue are combined, each with its
speaker. Tables, code and captions, which have no sentences, are passages by lines, since they may contain answers.
`chunk_map` defines the tokens of each chunk, and those it is responsible for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise

from longspan.data.text.sentences import count_of, guess_language, split_sentences, split_words
from longspan.errors import InputError
from longspan_documents.text.blocks import SPOKEN, Document
from longspan_documents.text.reading import DocumentSentence, abbreviating, document_of, sentences_of

MOST = 120
"""Maximum words of a passage."""
FEWEST = MOST // 2
"""Minimum words for a passage to end with its paragraph; half of the maximum."""

BY_LINES = frozenset({"table", "code", "caption"})
"""Kinds of blocks without sentences that may contain answers."""
ANSWERING = SPOKEN | BY_LINES | {"note"}
"""Kinds of blocks that passages are made of; notes have sentences, but are not in summaries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A run of sentences of one section.

    Attributes:
        sentences: at least one, in order, with positions and, in a dialogue, speakers.
        first: index of its first sentence in the document.
        heading: heading of the section; None before the first one.
        page: page number from 1, in a document with pages.
        by_lines: the blocks in it (`DocumentSentence.block`) whose lines are independent, such as tables.
    """

    sentences: tuple[DocumentSentence, ...]
    first: int
    heading: str | None = None
    page: int | None = None
    by_lines: frozenset[int] = frozenset()

    @property
    def start(self) -> int:
        """Its first character in `Document.text`."""
        return self.sentences[0].start

    @property
    def end(self) -> int:
        """The character after its last one."""
        return self.sentences[-1].end

    @property
    def speakers(self) -> tuple[str, ...]:
        """The names of its speakers, in the order of their first turns."""
        return tuple(dict.fromkeys(sentence.speaker for sentence in self.sentences if sentence.speaker))

    @property
    def text(self) -> str:
        """The words: each paragraph, item, line of a table and turn on its own line, turns after their speaker."""
        lines = []
        for (block, speaker), group in groupby(self.sentences, key=lambda one: (one.block, one.speaker)):
            if block in self.by_lines:
                words = "\n".join(one.text for one in group)
            else:  # with a space between them, except where the document has none ("v3." and "5")
                first, *others = group
                words = first.text
                for before, one in pairwise([first, *others]):
                    words += one.text if one.start == before.end else f" {one.text}"
            lines.append(f"{speaker}: {words}" if speaker else words)
        return "\n".join(lines)

    def place_in_text(self, number: int) -> tuple[int, int]:
        """Returns the characters of one of its sentences in `text`."""
        end = len(replace(self, sentences=self.sentences[: number + 1]).text)
        return end - len(self.sentences[number].text), end


Measure = Callable[[Sequence[str]], Sequence[int]]
"""Returns the length of each text."""


def words_in(texts: Sequence[str]) -> list[int]:
    """Returns the number of words of each text."""
    return [count_of(split_words(text)) for text in texts]


def within(document: Document, passage: Passage, most: int, measure: Measure) -> Iterator[Passage]:
    """Yields a passage in parts of at most `most` by their `text`: halves of its sentences, of a longer sentence
    between words, and of a longer word between characters.

    Args:
        document: the passage's document.
        passage: one of `passages_of`.
        most: maximum length.
        measure: returns the length of a text.
    """
    units = passage.sentences
    if measure([passage.text])[0] <= most:
        yield passage
        return
    if len(units) > 1:
        ends = list(accumulate(len(unit.text) for unit in units))
        cut = min(range(1, len(units)), key=lambda place: abs(2 * ends[place - 1] - ends[-1]))
        parts = [(units[:cut], passage.first), (units[cut:], passage.first + cut)]
    else:
        parts = [((half,), passage.first) for half in _halves(document, passage.sentences[0])]
    for sentences, first in parts:
        blocks, page = {unit.block for unit in sentences}, document.page(sentences[0].start)
        part = replace(passage, sentences=sentences, first=first, page=page, by_lines=passage.by_lines & blocks)
        if len(units) == 1 and len(parts) == 1:  # a single character
            yield part
        else:
            yield from within(document, part, most, measure)


def _halves(document: Document, unit: DocumentSentence) -> list[DocumentSentence]:
    """Splits a unit at the space nearest to its middle, or in the middle; a unit too short to be split is returned
    alone."""
    spoken = document.blocks[unit.block].kind in ANSWERING if unit.block < len(document.blocks) else False
    home = document if spoken else document_of(document.text, raw=True)  # as in `units_of`
    body = home.blocks[unit.block].body
    start, end = body.place(unit.start), body.place(unit.end - 1) + 1
    words = body.text[start:end]
    middle = len(words) // 2
    spaces = [words.rfind(" ", 1, middle), words.find(" ", middle, len(words) - 1)]
    cut = min([place for place in spaces if place > 0] or [middle], key=lambda place: abs(place - middle))
    halves = []
    for first, last in ((0, cut), (cut, len(words))):
        piece = words[first:last]
        if kept := piece.strip():
            first += piece.index(kept[0])
            place = body.span(start + first, start + first + len(kept))
            halves.append(replace(unit, text=" ".join(kept.split()), start=place[0], end=place[1]))
    return halves


def units_of(document: Document) -> list[DocumentSentence]:
    """Returns the sentences of a document and of its notes, and the lines of its tables, code and captions, in order.

    If there are none (a heading alone, references alone), every paragraph is one unit.

    Raises:
        InputError: as `sentences_of`.
    """
    units = sentences_of(document)
    language = guess_language(document.text)
    section = None
    for index, block in enumerate(document.blocks):
        section = index if block.kind == "heading" else section
        lines = ()
        if block.kind == "note":
            lines = ((one.start, one.text) for one in split_sentences(block.text, language, document.abbreviations))
        elif block.kind in BY_LINES:
            lines = _lines_of(block.text)
        for first, words in lines:
            start, end = block.body.span(first, first + len(words))
            text = " ".join(words.split())
            units.append(DocumentSentence(text=text, start=start, end=end, block=index, section=section))
    if not units:
        return sentences_of(abbreviating(document_of(document.text, raw=True), document.abbreviations))
    return sorted(units, key=lambda one: (one.block, one.start))


def _lines_of(text: str) -> Iterator[tuple[int, str]]:
    """Yields the position and the text of each line that is not blank."""
    place = 0
    for line in text.splitlines(keepends=True):
        if words := line.strip():
            yield place + line.index(words[0]), words
        place += len(line)


def passages_of(
    document: Document,
    units: Sequence[DocumentSentence] | None = None,
    *,
    most: int = MOST,
    overlap: int = 0,
    measure: Measure = words_in,
) -> list[Passage]:
    """Returns the passages of a document, in order; without overlap, each unit is in exactly one.

    Args:
        document: a result of `read` or `document_of`.
        units: its `units_of`, if already computed.
        most: maximum length; from half of it, a passage ends with its paragraph. A longer sentence is a passage by
            itself.
        overlap: units at the end of a passage that the next one of the section repeats, if both fit.
        measure: returns the length of each unit; by default in words.

    Raises:
        InputError: as `sentences_of`.
    """
    units = units_of(document) if units is None else units
    by_lines = frozenset(index for index, block in enumerate(document.blocks) if block.kind in BY_LINES)
    passages: list[Passage] = []
    begun = 0  # units before this section
    for section, together in groupby(units, key=lambda one: one.section):
        run = list(together)
        heading = None if section is None else " ".join(document.blocks[section].text.split())
        for group in _grouped(run, measure([unit.text for unit in run]), most, overlap):
            passage = Passage(
                sentences=tuple(run[group.start : group.stop]),
                first=begun + group.start,
                heading=heading or None,
                page=document.page(run[group.start].start),
                by_lines=by_lines & {run[place].block for place in group},
            )
            passages.append(passage)
        begun += len(run)
    return passages


def _grouped(units: list[DocumentSentence], lengths: Sequence[int], most: int, overlap: int) -> list[range]:
    """Groups the units of one section so that each group has a length of about `most // 2` to `most`."""
    fewest = most // 2
    cuts, firsts = [0], [0]  # the first new unit of each group, and the first repeated one
    own = together = 0
    for index, length in enumerate(lengths):
        new_block = index > 0 and units[index].block != units[index - 1].block
        if index > cuts[-1] and (together + length > most or (new_block and own >= fewest)):
            first, together = index, 0
            for again in range(index - 1, max(index - 1 - overlap, cuts[-1] - 1), -1):
                if together + lengths[again] + length > most:
                    break
                first, together = again, together + lengths[again]
            cuts.append(index)
            firsts.append(first)
            own = 0
        own += length
        together += length
    if len(cuts) > 1 and own < fewest // 2:  # a rest too short to be a passage
        cuts.pop()
        firsts.pop()
    return [range(first, end) for first, end in zip(firsts, [*cuts[1:], len(units)], strict=True)]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `start … end − 1` of a document, of which the chunk is responsible for `first … last − 1`.

    Each token of the document is in one or more chunks, exactly one of which is responsible for it. Overlaps of
    neighbours are halved, so that a token belongs to the chunk that shows more of its context.
    """

    start: int
    end: int
    first: int
    last: int

    def __len__(self) -> int:
        return self.end - self.start


def chunk_map(length: int, size: int, stride: int | None = None) -> list[Chunk]:
    """Splits `length` tokens into chunks of `size` that begin every `stride` tokens; the last one may be shorter.

    No chunk is inside another; every token is in at least one chunk, and exactly one is responsible for it. A sequence
    without tokens has no chunks.

    Args:
        length: number of tokens of the document.
        size: tokens in a chunk.
        stride: tokens between the beginnings of neighbours; None means `size`, without overlap.

    Raises:
        InputError: a negative length, a size below 1, or a stride that is not from 1 to `size`.
    """
    stride = size if stride is None else stride
    if length < 0:
        raise InputError(f"length={length} is negative; give the number of tokens")
    if size < 1:
        raise InputError(f"size={size} is less than 1; give the number of tokens in a chunk")
    if not 1 <= stride <= size:
        raise InputError(f"stride={stride} is not from 1 to size={size}; a larger one would leave tokens out")
    starts = range(0, max(length - size, 0) + stride, stride) if length else range(0)
    spans = [(start, min(start + size, length)) for start in starts]
    borders = [0, *((left[1] + right[0] + 1) // 2 for left, right in pairwise(spans)), length]
    return [Chunk(start, end, borders[index], borders[index + 1]) for index, (start, end) in enumerate(spans)]
