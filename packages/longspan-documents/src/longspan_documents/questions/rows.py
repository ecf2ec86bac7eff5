"""What one example of question answering over a whole document is, whatever file it came from.

A `QuestionRow` is made by the reader of a data set, or from any text by `plain_row`::

    row.id, row.question
    row.text            the plain text that a model reads; every span counts its characters
    row.candidates      the passages that may be the long answer: paragraphs, tables, lists, rows
    row.annotations     what each annotator said: which candidate, which short spans, yes or no
    row.original(x)     where a span or a candidate lies in the document as it was published, in its own units
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from longspan.characters import check_characters
from longspan.data.fields import check_text
from longspan.errors import InputError

KINDS = ("paragraph", "table", "list", "other")
"""What a candidate is."""

YES_NO = ("none", "yes", "no")
"""What an annotator may say beside spans."""

LONGEST_PASSAGE = 1500
"""Characters; longer paragraphs of a plain text are cut at line ends, then sentence ends, then between words."""

_BLANK_LINES = re.compile(r"\n[^\S\n]*\n\s*")
_LINE_END = re.compile(r"\n")
_SENTENCE_END = re.compile(r"(?<=[.!?。！？।])\s+")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Characters `start … end − 1` of `QuestionRow.text`."""

    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Place:
    """Where something lies in the document as published; −1 where that is unknown, ends are exclusive."""

    start_token: int = -1
    end_token: int = -1
    start_byte: int = -1
    end_byte: int = -1


@dataclass(frozen=True, slots=True)
class Candidate:
    """A passage that may be the long answer.

    Attributes:
        span: its characters; an empty one for a candidate without text, which no model can choose.
        kind: one of `KINDS`.
        top_level: whether no other candidate contains it.
        place: its own place in the published document, markup included; None where the span's place is its place.
    """

    span: Span
    kind: str = "paragraph"
    top_level: bool = True
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Annotation:
    """One annotator's answer.

    Attributes:
        candidate: index in `QuestionRow.candidates` of the long answer; None says that the document has none.
        short: the short answer, often one span, sometimes several; all of them lie in the long answer. These are the
            labels that a model learns: text, without HTML tokens at its edges.
        yes_no: one of `YES_NO`.
        long_place, short_places: where the annotator's answers lie as published, HTML tokens included, which is what an
            official metric compares; None where that is the place of `candidate` and `short`.
    """

    candidate: int | None = None
    short: tuple[Span, ...] = ()
    yes_no: str = "none"
    long_place: Place | None = None
    short_places: tuple[Place, ...] | None = None


@dataclass(frozen=True, eq=True)
class TokenPlaces:
    """The tokens of a text among the tokens of the document it was taken from (Natural Questions).

    Attributes:
        tokens: for each token of the text its index in the document, which has HTML tokens too; ascending.
        starts: its first character in the text; one space stands between neighbours.
        length: characters of the text.
        start_bytes, end_bytes: its bytes in the document's HTML; empty where the file does not say.
    """

    tokens: array[int]
    starts: array[int]
    length: int
    start_bytes: array[int] = field(default_factory=lambda: array("q"))
    end_bytes: array[int] = field(default_factory=lambda: array("q"))

    def place(self, span: Span) -> Place:
        """The whole tokens that a span touches; unknown for an empty span."""
        first, last = bisect_right(self.starts, span.start) - 1, bisect_left(self.starts, span.end) - 1
        if not len(span) or first < 0 or last < first:
            return Place()
        bytes_ = (self.start_bytes[first], self.end_bytes[last]) if self.start_bytes else (-1, -1)
        return Place(self.tokens[first], self.tokens[last] + 1, *bytes_)

    def span(self, start_token: int, end_token: int) -> Span:
        """Characters of the document's tokens `start_token … end_token − 1`; empty where they are all markup."""
        first, last = bisect_left(self.tokens, start_token), bisect_left(self.tokens, end_token) - 1
        if last < first:
            place = self.starts[first] if first < len(self.starts) else self.length
            return Span(place, place)
        end = self.starts[last + 1] - 1 if last + 1 < len(self.starts) else self.length
        return Span(self.starts[first], end)


class TextBytes:
    """Characters of a text ↔ bytes of its UTF-8 form."""

    def __init__(self, text: str) -> None:
        import numpy

        codes = numpy.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        widths = 1 + (codes >= 0x80).astype("int64") + (codes >= 0x800) + (codes >= 0x10000)
        self.offsets = numpy.concatenate([numpy.zeros(1, dtype="int64"), numpy.cumsum(widths)])

    @property
    def length(self) -> int:
        """Number of bytes."""
        return int(self.offsets[-1])

    def place(self, span: Span) -> Place:
        """The bytes of a span."""
        return Place(start_byte=int(self.offsets[span.start]), end_byte=int(self.offsets[span.end]))

    def span(self, start_byte: int, end_byte: int) -> Span | None:
        """The characters of some bytes; None where they are none of the text's, or begin or end within a character."""
        if not 0 <= start_byte <= end_byte <= self.length:
            return None
        start, end = (int(place) for place in self.offsets.searchsorted([start_byte, end_byte]))
        whole = self.offsets[start] == start_byte and self.offsets[end] == end_byte
        return Span(start, end) if whole else None


@dataclass(frozen=True, kw_only=True)
class QuestionRow:
    """A question, a document, where an answer may stand and what annotators said.

    Attributes:
        id: the data set's own name for the row.
        question: as it was asked.
        text: the document as plain text. Natural Questions: its tokens that are not HTML, joined by one space; TyDi QA
            and plain texts: as the file has it.
        candidates: in the file's order; annotations count in it.
        annotations: one for each annotator; empty where the row has no labels.
        source: "nq", "tydi" or "plain".
        language: as the data set names it.
        title: of the document; empty where it is unknown.
        tokens: the places of the text's tokens in the document, for Natural Questions.
    """

    id: str
    question: str
    text: str
    candidates: tuple[Candidate, ...]
    annotations: tuple[Annotation, ...] = ()
    source: str = "plain"
    language: str | None = None
    title: str = ""
    tokens: TokenPlaces | None = field(default=None, repr=False, hash=False)

    def __post_init__(self) -> None:
        """Refuse half characters, which no tokenizer, encoder or file takes."""
        # Question and text are checked by those who know which field they came from.
        check_characters(self.id, "the id of a row")
        check_characters(self.title, "the title of a row")

    def answer(self, span: Span) -> str:
        """The text of a span."""
        return self.text[span.start : span.end]

    def original(self, where: Span | Candidate | None) -> dict[str, int]:
        """Where a span or a candidate lies in the document as published; ends are exclusive, −1 means unknown or none.

        Natural Questions: `start_token`, `end_token`, `start_byte`, `end_byte`. A span is the text tokens that it
        touches; a candidate has its tags around it, which is how long answers are published, so pass the candidate
        itself and not its span. TyDi QA and plain texts: `start_byte`, `end_byte` of the text in UTF-8.

        Args:
            where: a span of `text`, one of `candidates`, or None for "no answer".
        """
        place = Place() if where is None else self._place(where)
        fields = {"start_byte": place.start_byte, "end_byte": place.end_byte}
        if self.source == "nq":
            fields = {"start_token": place.start_token, "end_token": place.end_token, **fields}
        return fields

    def long_place(self, annotation: Annotation) -> Place:
        """Where an annotator's long answer lies in the document as published."""
        if annotation.long_place is not None:
            return annotation.long_place
        return Place() if annotation.candidate is None else self._place(self.candidates[annotation.candidate])

    def short_places(self, annotation: Annotation) -> tuple[Place, ...]:
        """Where an annotator's short answers lie in the document as published."""
        if annotation.short_places is not None:
            return annotation.short_places
        return tuple(self._place(span) for span in annotation.short)

    def _place(self, where: Span | Candidate) -> Place:
        if isinstance(where, Candidate):
            if where.place is not None:
                return where.place
            where = where.span
        if not 0 <= where.start <= where.end <= len(self.text):
            raise InputError(
                f"span {where.start}–{where.end} is not within the {len(self.text)} characters of {self.id!r}"
            )
        return (self.tokens or self.text_bytes).place(where)

    @cached_property
    def text_bytes(self) -> TextBytes:
        """Characters of the text ↔ bytes of its UTF-8 form."""
        return TextBytes(self.text)


def plain_row(text: str, question: str) -> QuestionRow:
    """Any text as a row: its paragraphs are the candidates.

    Paragraphs are separated by blank lines; one that is longer than `LONGEST_PASSAGE` characters is cut at line ends,
    a line that is longer at sentence ends, a sentence that is longer between words. No candidate begins or ends with
    white space, and every other character of the text lies in exactly one.

    Raises:
        InputError: the question or the text is empty.
    """
    check_text(question, "the question")
    check_text(text, "the document")
    blocks = _split(text, Span(0, len(text)), _BLANK_LINES)
    passages = (span for block in blocks for span in _shorten(text, block, (_LINE_END, _SENTENCE_END, _SPACE)))
    candidates = tuple(map(Candidate, passages))
    return QuestionRow(id="document", question=question.strip(), text=text, candidates=candidates)


def _shorten(text: str, span: Span, borders: tuple[re.Pattern[str], ...]) -> Iterator[Span]:
    """Runs of pieces up to the longest passage; a piece that is longer itself is cut at the next finer border."""
    if len(span) <= LONGEST_PASSAGE or not borders:
        if len(span):
            yield span
        return
    run: Span | None = None
    for piece in _split(text, span, borders[0]):
        if run is not None and piece.end - run.start > LONGEST_PASSAGE:
            yield from _shorten(text, run, borders[1:])
            run = None
        run = piece if run is None else Span(run.start, piece.end)
    if run is not None:
        yield from _shorten(text, run, borders[1:])


def _split(text: str, span: Span, border: re.Pattern[str]) -> Iterator[Span]:
    """The pieces between borders, without white space at their ends; blank ones are left out."""
    start = span.start
    for match in border.finditer(text, span.start, span.end):
        yield from _trimmed(text, start, match.start())
        start = match.end()
    yield from _trimmed(text, start, span.end)


def _trimmed(text: str, start: int, end: int) -> Iterator[Span]:
    piece = text[start:end]
    if piece.strip():
        yield Span(start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip()))
