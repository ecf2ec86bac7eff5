"""Rows of question answering over a whole document, independent of the file format.

A `QuestionRow` is created by the reader of a data set, or from any text by `plain_row`::

    row.id, row.question
    row.text            the plain text that a model reads; every span counts its characters
    row.candidates      candidate passages for the long answer: paragraphs, tables, lists, rows
    row.annotations     for each annotator: the candidate, the short spans, yes or no
    row.original(x)     the position of a span or a candidate in the published document, in its own units
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
"""Kinds of candidates."""

YES_NO = ("none", "yes", "no")
"""Answers of an annotator in addition to spans."""

LONGEST_PASSAGE = 1500
"""In characters; longer paragraphs of a plain text are split at line ends, then sentence ends, then between words."""

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
    """A position in the published document; −1 if unknown, ends are exclusive."""

    start_token: int = -1
    end_token: int = -1
    start_byte: int = -1
    end_byte: int = -1


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate passage for the long answer.

    Attributes:
        span: its characters; empty for a candidate without text, which no model can choose.
        kind: one of `KINDS`.
        top_level: whether no other candidate contains it.
        place: its own position in the published document, including markup; None if that of the span applies.
    """

    span: Span
    kind: str = "paragraph"
    top_level: bool = True
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Annotation:
    """One annotator's answer.

    Attributes:
        candidate: index in `QuestionRow.candidates` of the long answer; None if the document has none.
        short: the short answer, often one span, sometimes several, all inside the long answer. These are the training
            labels: text, without HTML tokens at the edges.
        yes_no: one of `YES_NO`.
        long_place, short_places: positions of the annotator's answers as published, including HTML tokens, which
            official metrics compare; None if those of `candidate` and `short` apply.
    """

    candidate: int | None = None
    short: tuple[Span, ...] = ()
    yes_no: str = "none"
    long_place: Place | None = None
    short_places: tuple[Place, ...] | None = None


@dataclass(frozen=True, eq=True)
class TokenPlaces:
    """The positions of a text's tokens in the document it was taken from (Natural Questions).

    Attributes:
        tokens: for each token of the text its index in the document, which also has HTML tokens; ascending.
        starts: its first character in the text; neighbours are separated by one space.
        length: number of characters of the text.
        start_bytes, end_bytes: its bytes in the document's HTML; empty if unknown.
    """

    tokens: array[int]
    starts: array[int]
    length: int
    start_bytes: array[int] = field(default_factory=lambda: array("q"))
    end_bytes: array[int] = field(default_factory=lambda: array("q"))

    def place(self, span: Span) -> Place:
        """Returns the whole tokens that a span overlaps; unknown for an empty span."""
        first, last = bisect_right(self.starts, span.start) - 1, bisect_left(self.starts, span.end) - 1
        if not len(span) or first < 0 or last < first:
            return Place()
        bytes_ = (self.start_bytes[first], self.end_bytes[last]) if self.start_bytes else (-1, -1)
        return Place(self.tokens[first], self.tokens[last] + 1, *bytes_)

    def span(self, start_token: int, end_token: int) -> Span:
        """Returns the characters of the document's tokens `start_token … end_token − 1`; empty if they are all
        markup."""
        first, last = bisect_left(self.tokens, start_token), bisect_left(self.tokens, end_token) - 1
        if last < first:
            place = self.starts[first] if first < len(self.starts) else self.length
            return Span(place, place)
        end = self.starts[last + 1] - 1 if last + 1 < len(self.starts) else self.length
        return Span(self.starts[first], end)


class TextBytes:
    """Maps between characters of a text and bytes of its UTF-8 form."""

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
        """Returns the bytes of a span."""
        return Place(start_byte=int(self.offsets[span.start]), end_byte=int(self.offsets[span.end]))

    def span(self, start_byte: int, end_byte: int) -> Span | None:
        """Returns the characters of a byte range; None if it is out of range, or begins or ends within a character."""
        if not 0 <= start_byte <= end_byte <= self.length:
            return None
        start, end = (int(place) for place in self.offsets.searchsorted([start_byte, end_byte]))
        whole = self.offsets[start] == start_byte and self.offsets[end] == end_byte
        return Span(start, end) if whole else None


@dataclass(frozen=True, kw_only=True)
class QuestionRow:
    """A question, a document, its candidate passages and the annotators' answers.

    Attributes:
        id: the data set's id of the row.
        question: the question.
        text: the document as plain text. Natural Questions: its tokens that are not HTML, joined by one space; TyDi QA
            and plain texts: as in the file.
        candidates: in the file's order; annotations index them.
        annotations: one for each annotator; empty if the row has no labels.
        source: "nq", "tydi" or "plain".
        language: the data set's name of the language.
        title: title of the document; empty if unknown.
        tokens: the positions of the text's tokens in the document, for Natural Questions.
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
        """Raises `InputError` for unpaired surrogates, which no tokenizer, encoder or file supports."""
        # Question and text are checked by callers that know their fields.
        check_characters(self.id, "the id of a row")
        check_characters(self.title, "the title of a row")

    def answer(self, span: Span) -> str:
        """Returns the text of a span."""
        return self.text[span.start : span.end]

    def original(self, where: Span | Candidate | None) -> dict[str, int]:
        """Returns the position of a span or a candidate in the published document; ends are exclusive, −1 means unknown
        or none.

        Natural Questions: `start_token`, `end_token`, `start_byte`, `end_byte`. A span gives the text tokens that it
        overlaps; a candidate includes its tags, as in published long answers, so pass the candidate itself instead of
        its span. TyDi QA and plain texts: `start_byte`, `end_byte` of the text in UTF-8.

        Args:
            where: a span of `text`, one of `candidates`, or None for "no answer".
        """
        place = Place() if where is None else self._place(where)
        fields = {"start_byte": place.start_byte, "end_byte": place.end_byte}
        if self.source == "nq":
            fields = {"start_token": place.start_token, "end_token": place.end_token, **fields}
        return fields

    def long_place(self, annotation: Annotation) -> Place:
        """Returns the position of an annotator's long answer in the published document."""
        if annotation.long_place is not None:
            return annotation.long_place
        return Place() if annotation.candidate is None else self._place(self.candidates[annotation.candidate])

    def short_places(self, annotation: Annotation) -> tuple[Place, ...]:
        """Returns the positions of an annotator's short answers in the published document."""
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
        """Map between characters of the text and bytes of its UTF-8 form."""
        return TextBytes(self.text)


def plain_row(text: str, question: str) -> QuestionRow:
    """Returns any text as a row, with its paragraphs as candidates.

    Paragraphs are separated by blank lines; one longer than `LONGEST_PASSAGE` characters is split at line ends, a
    longer line at sentence ends, a longer sentence between words. No candidate begins or ends with white space, and
    every other character of the text is in exactly one.

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
    """Yields runs of pieces up to the maximum passage length; longer pieces are split at the next finer border."""
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
    """Yields the pieces between borders, without surrounding white space and blank pieces."""
    start = span.start
    for match in border.finditer(text, span.start, span.end):
        yield from _trimmed(text, start, match.start())
        start = match.end()
    yield from _trimmed(text, start, span.end)


def _trimmed(text: str, start: int, end: int) -> Iterator[Span]:
    piece = text[start:end]
    if piece.strip():
        yield Span(start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip()))
