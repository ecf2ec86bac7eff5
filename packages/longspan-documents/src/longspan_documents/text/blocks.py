"""Documents as blocks in reading order, with their positions: headings, paragraphs, items, turns of speakers.

`Traced` is a text that was edited and still maps each of its characters to the original; a `Block` has one.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from operator import itemgetter
from typing import Literal

Edit = tuple[int, int, str]
"""Characters `start … end − 1` and their replacement; empty to delete them."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A text with a mapping to its origin, the text it was made from.

    Attributes:
        text: the edited text.
        anchors: pairs (position in `text`, position in the origin), both ascending, the first at 0. Between two anchors
            the characters correspond one to one; inserted text corresponds to the position of the insertion.
        end: the position in the origin where the text ends, exclusive.
    """

    text: str
    anchors: tuple[tuple[int, int], ...]
    end: int

    @classmethod
    def whole(cls, text: str, start: int = 0) -> Traced:
        """Returns an unedited text that begins at `start` in its origin."""
        return cls(text, ((0, start),), start + len(text))

    @property
    def start(self) -> int:
        """The position in the origin where the text begins."""
        return self.origin(0)

    def origin(self, place: int) -> int:
        """Returns the position in the origin of the character at `place`."""
        here, there = self.anchors[bisect_right(self.anchors, place, key=itemgetter(0)) - 1]
        return min(there + place - here, self.end)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Returns the range of the origin that `text[start:end]` was made from, end exclusive."""
        first = self.origin(start)
        # Positions missing in the origin are clipped to its end.
        return first, (min(self.origin(end - 1) + 1, self.end) if end > start else first)

    def place(self, origin: int) -> int:
        """Returns the first position in `text` made from `origin` or from what follows it."""
        return bisect_left(range(len(self.text)), origin, key=self.origin)

    def part(self, start: int, end: int) -> Traced:
        """Returns `text[start:end]` with its origin."""
        first = bisect_right(self.anchors, start, key=itemgetter(0))
        last = bisect_left(self.anchors, end, lo=first, key=itemgetter(0))
        inside = [(here - start, there) for here, there in self.anchors[first:last]]
        return Traced(self.text[start:end], ((0, self.origin(start)), *inside), self.span(start, end)[1])

    def edited(self, edits: Iterable[Edit]) -> Traced:
        """Returns the text with replaced ranges.

        Args:
            edits: in order, without overlap. A replacement of equal length keeps each character's position.
        """
        pieces: list[str] = []
        anchors: list[tuple[int, int]] = []
        length = done = 0

        def put(text: str, new_anchors: Iterable[tuple[int, int]]) -> None:
            nonlocal length
            if text:
                anchors.extend((length + here, there) for here, there in new_anchors)
                pieces.append(text)
                length += len(text)

        for start, end, new in edits:
            put(self.text[done:start], self.part(done, start).anchors)
            same = len(new) == end - start
            place = self.origin(start)
            put(new, self.part(start, end).anchors if same else [(index, place) for index in range(len(new))])
            done = end
        put(self.text[done:], self.part(done, len(self.text)).anchors)
        return Traced("".join(pieces), tuple(simplified(anchors)) or ((0, self.start),), self.end)


def simplified(anchors: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """Yields the anchors without redundant ones."""
    last: tuple[int, int] | None = None
    for here, there in anchors:
        if last is None or there - here != last[1] - last[0]:
            last = (here, there)
            yield last


BYTES_EVERY = 4_096
"""Interval, in characters, of stored byte offsets."""

Kind = Literal["paragraph", "heading", "item", "turn", "code", "table", "caption", "references", "note", "boilerplate"]
"""Kind of a block."""

SPOKEN: frozenset[Kind] = frozenset({"paragraph", "item", "turn"})
"""Kinds that contain sentences; the others are kept for their positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A unit of a document, on one line (code and tables keep their lines).

    Attributes:
        kind: its kind.
        body: its edited words, with their positions in the document's text.
        level: level of a heading, from 1; depth of an item; otherwise 0.
        speaker: speaker of a turn, otherwise None; the name is not part of the body.
        abstract: whether it belongs to the document's own abstract or executive summary.
        label: words in bold at its beginning, set apart by the style of the file; they may be a run-in head.
    """

    kind: Kind
    body: Traced
    level: int = 0
    speaker: str | None = None
    abstract: bool = False
    label: str = ""

    @property
    def text(self) -> str:
        """The edited words, `body.text`."""
        return self.body.text


@dataclass(frozen=True, kw_only=True)
class Document:
    """A document that has been read.

    Attributes:
        text: the text that positions refer to: the file's own text for .txt and .md files, otherwise the extracted
            text.
        blocks: in order, with ascending positions.
        pages: the characters at which the pages of a PDF file begin; empty without pages.
        title: the document's own title, if it has one.
        name: its name in messages.
        is_log: whether it is the log of a program, in which every line is a sentence.
        pictures: the pages, from 1, that are images, such as scanned ones.
        recognised: those of them that were read by text recognition (OCR).
        remarks: what else was not read, or read with changes, as parts of a sentence.
        extracted: whether `text` was extracted from the file (a page, a PDF file, a book) instead of being its own.
        abbreviations: further words that never end a sentence, as returned by `abbreviations_from`.
    """

    text: str
    blocks: tuple[Block, ...]
    pages: tuple[int, ...] = ()
    title: str | None = None
    name: str = "the document"
    extracted: bool = False
    is_log: bool = False
    pictures: tuple[int, ...] = ()
    recognised: tuple[int, ...] = ()
    remarks: tuple[str, ...] = ()
    abbreviations: frozenset[str] = frozenset()

    @property
    def note(self) -> str | None:
        """A note for readers of results made from the document; None if there is none."""
        unread = tuple(page for page in self.pictures if page not in self.recognised)
        page_notes = [
            f"{'pages' if len(pages) > 1 else 'page'} {numbers_in_words(pages)} of {len(self.pages)} "
            f"{'are pictures, which were' if len(pages) > 1 else 'is a picture, which was'} {what}"
            for pages, what in ((unread, "not read"), (self.recognised, "read by text recognition (OCR)"))
            if pages
        ]
        return "; ".join([*page_notes, *self.remarks]) or None

    @property
    def words(self) -> str:
        """Returns the readable text, block by block: without boilerplate and reference lists."""
        blocks_read = (block for block in self.blocks if block.kind not in {"boilerplate", "references"})
        return "\n\n".join(f"{block.speaker}: {block.text}" if block.speaker else block.text for block in blocks_read)

    def line(self, place: int) -> int:
        """Returns the line of a character of `text`, from 1."""
        return bisect_right(self._line_starts, place)

    def page(self, place: int) -> int | None:
        """Returns the page of a character of `text`, from 1; None without pages."""
        return bisect_right(self.pages, place) or None

    def byte(self, place: int) -> int:
        """Returns the byte offset of the character at `place` in the UTF-8 form of the text."""
        if self.text.isascii():
            return place
        step = place // BYTES_EVERY
        return self._byte_starts[step] + len(self.text[step * BYTES_EVERY : place].encode())

    @cached_property
    def _byte_starts(self) -> list[int]:
        steps = range(0, len(self.text), BYTES_EVERY)
        return [0, *accumulate(len(self.text[at : at + BYTES_EVERY].encode()) for at in steps)]

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(place + 1 for place, character in enumerate(self.text) if character == "\n")]


def numbers_in_words(numbers: Sequence[int]) -> str:
    """Formats ascending numbers: "2, 4–7 and 9"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    shown = [f"{run[0]}–{run[-1]}" if len(run) > 2 else " and ".join(map(str, run)) for run in runs]
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


Part = tuple[Kind, str, int] | tuple[Kind, str, int, str]
"""The kind of a block, its text, its level, and its label if it has one."""


def document_from_parts(parts: Iterable[Part], name: str, title: str | None = None) -> Document:
    """Returns the document of a file that defines blocks: its text is theirs, separated by blank lines."""
    blocks: list[Block] = []
    length = 0
    for kind, text, level, *labels in parts:
        blocks.append(Block(kind=kind, body=Traced.whole(text, length), level=level, label="".join(labels)))
        length += len(text) + 2
    text = "\n\n".join(block.text for block in blocks)
    return Document(text=text, blocks=tuple(blocks), title=title or None, name=name)


_UNSPACED = "[\u2e80-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff01-\uff60\U00020000-\U0003ffff]"
"""A Chinese or Japanese character; these scripts have no spaces between words."""
_WIDE_GAP = re.compile(r" \s+|[^\S ]\s*")
UNSPACED_LINE_END = re.compile(rf"(?<={_UNSPACED})[^\S\n]*\n[^\S\n]*(?={_UNSPACED})")
"""A line end without meaning."""


def space_between(line: str, following: str) -> str:
    """Returns the separator of two lines of a paragraph: a space, or "" between Chinese or Japanese characters."""
    edge = f"{line[-1:]}\n{following[:1]}"
    return "" if not edge.isascii() and UNSPACED_LINE_END.search(edge) else " "


def document_from_pieces(pieces: Iterable[tuple[str, Sequence[Block]]], name: str) -> Document:
    """Returns the document of several texts, each with blocks whose positions refer to it, separated by blank lines."""
    texts: list[str] = []
    blocks: list[Block] = []
    length = 0
    for text, its_blocks in pieces:
        for block in its_blocks:
            anchors = tuple((here, there + length) for here, there in block.body.anchors)
            blocks.append(replace(block, body=Traced(block.body.text, anchors, block.body.end + length)))
        texts.append(text)
        length += len(text) + 2
    return Document(text="\n\n".join(texts), blocks=tuple(blocks), name=name)


def on_one_line(body: Traced) -> Traced:
    """Returns the words with single spaces between them and none around them; `space_between` replaces line ends."""
    text = body.text.strip()
    if text != body.text:
        start = body.text.find(text) if text else 0
        body = body.part(start, start + len(text))
    if not text.isascii() and (ends := list(UNSPACED_LINE_END.finditer(text))):
        return on_one_line(body.edited((end.start(), end.end(), "") for end in ends))
    gaps = list(_WIDE_GAP.finditer(text))
    if not gaps:
        return body
    if all(gap[0] == "\n" for gap in gaps):  # one character for one: every position stays
        return Traced(text.replace("\n", " "), body.anchors, body.end)
    return body.edited((gap.start(), gap.end(), " ") for gap in gaps)


NOVEL, PRONOUNS = 20_000, 0.03
"""Minimum words of a novel, and the share of "he" and "she" among them."""
QUOTES, CLOSING = tuple("\"'“‘«„`_"), "\"'”’»_ "
"""Marks before and after what a person says."""
STORY, DIALOGUE, EXCLAIMED, PERSONS = 1_000, 0.2, 0.05, 0.015
"""Minimum words of a story; shares of its paragraphs that begin with a quotation mark, of its sentences that are
questions or exclamations, and of "he" and "she" in its words. Of 75 stories 67 have them, of 164 news articles one, of
414 other documents none."""
STAGED, DIRECTIONS, VERSES, VERSE = 2, 3, 20, 0.6
"""Signs of a stage that make a text of speeches a play; stage directions that count as one sign; lines that continue a
sentence and begin with capitals are verses, with at least this number and share, and count as two."""
_PERSON = re.compile(r"\b(?:he|she|him|his|her)\b", re.IGNORECASE)
_SCENE = re.compile(
    r"\W*(?:act|scene)\s+(?:the\s+)?(?:[\divxlc]+|first|second|third|fourth|fifth|last|one|two|three|four|five)\b"
    r"|\W*(?:the\s+)?(?:first|second|third|fourth|fifth|last)\s+(?:act|scene)\b"
    r"|\W*(?:act|scene|prologue|epilogue)\W*$",
    re.IGNORECASE,
)
_SCENE_OF = re.compile(r"\W*SCENE\b\W*[.:—–-]|\W*Scene\s*[:—–]")
_CAST = re.compile(
    r"\W*(?:dramatis person(?:ae|æ)|(?:the )?(?:cast|characters|persons?|personages|players)"
    r"(?: of (?:the )?(?:characters|play|comedy|drama|tragedy)| (?:in|represented in) the play)?)\W*$",
    re.IGNORECASE,
)
_DIRECTION = re.compile(
    r"^[^\w\n]{0,4}(?:(?:re-?)?enter|exit|exeunt|curtain)\b|[(\[]_?(?:(?:re-?)?enters?|exits?|exeunt|aside)\b",
    re.I | re.M,
)
_SPEECH = re.compile(r"^[^\w\n]{0,4}([A-Z][\w’']*(?: [A-Z][\w’']*){0,3})_?(?:[.:](?=\s)|$)(?! *\n *\n)", re.MULTILINE)
_GOES_ON = re.compile(r"[^\s.!?:;—–)\]\"”-]\n *(\w)")


def kind_of_document(document: Document, sentences: Sequence[str]) -> str | None:
    """Returns "log", "novel", "story", "play", or None for documents that an extractive summary suits better."""
    if document.is_log:
        return "log"
    if _is_spoken(document) and _signs_of_a_stage(document) >= STAGED:
        return "play"
    words = sum(len(sentence.split()) for sentence in sentences)
    has_dialogue = words >= STORY and _has_dialogue(document, sentences)
    if words < NOVEL and not has_dialogue:
        return None
    persons = sum(len(_PERSON.findall(sentence)) for sentence in sentences) / words
    if words >= NOVEL and persons > PRONOUNS:
        return "novel"
    return "story" if has_dialogue and persons >= PERSONS else None


def _has_dialogue(document: Document, sentences: Sequence[str]) -> bool:
    """Whether persons speak in a text, as in a story: news quote them within paragraphs, and ask few questions."""
    paragraphs = [block.text.lstrip() for block in document.blocks if block.kind in SPOKEN]
    begun = sum(paragraph.startswith(QUOTES) for paragraph in paragraphs)
    exclaimed = sum(sentence.rstrip(CLOSING).endswith(("?", "!")) for sentence in sentences)
    return begun >= DIALOGUE * len(paragraphs) and exclaimed >= EXCLAIMED * len(sentences)


def _is_spoken(document: Document) -> bool:
    """Whether most of a text is speeches: turns, or paragraphs that begin with one of a few names ("Ann. Yes.")."""
    prose = sum(block.kind in SPOKEN for block in document.blocks)
    if 2 * sum(block.kind == "turn" for block in document.blocks) > prose:
        return True
    speeches = [times for times in Counter(_SPEECH.findall(document.text)).values() if times > 2]
    return len(speeches) > 1 and 2 * sum(speeches) > prose


def _signs_of_a_stage(document: Document) -> int:
    """Counts signs of a stage: acts and scenes, a list of the cast, stage directions, verses."""
    signs = 0
    for block in document.blocks:
        text = f"{block.speaker}: {block.text}" if block.speaker else block.text
        signs += bool(_SCENE.match(text) if len(text) < 100 else _SCENE_OF.match(text)) or bool(_SCENE_OF.match(text))
        signs += bool(block.kind in {"heading", "paragraph"} and _CAST.match(text))
    signs += len(_DIRECTION.findall(document.text)) >= DIRECTIONS
    turns = (block.body for block in document.blocks if block.kind == "turn")
    begun = [letter for turn in turns for letter in _GOES_ON.findall(document.text[turn.start : turn.end])]
    return signs + 2 * (len(begun) >= VERSES and sum(map(str.isupper, begun)) > VERSE * len(begun))
