"""What inference gives, and how it may be asked to write: plain data, without a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from longspan.data.text.blocks import Document
from longspan.settings import Beams, LengthPenalty, NewTokens, check


@dataclass(frozen=True, slots=True)
class ScoredSentence:
    """A sentence with its place, the characters from `start` to `end` of the document, and its score between 0 and 1.

    Sentences that a model wrote itself have no place and no score: these are None. `speaker` says it, in a dialogue.
    """

    text: str
    start: int | None = None
    end: int | None = None
    score: float | None = None
    speaker: str | None = None

    def __str__(self) -> str:
        words = " ".join(self.text.split())
        return f"{self.speaker}: {words}" if self.speaker else words


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A summary and what it was made from.

    Attributes:
        sentences: the summary, in the document's order.
        document: every sentence of the document with its score; empty where a model wrote the summary.
        tokens: how many tokens the model read.
        seconds: time from text to summary, without loading the model.
        note: a warning for the reader, or None.
        abstract: whether it begins with the document's own abstract.
    """

    sentences: tuple[ScoredSentence, ...]
    document: tuple[ScoredSentence, ...] = ()
    tokens: int
    seconds: float
    note: str | None = None
    abstract: bool = False

    @property
    def text(self) -> str:
        """The summary, one sentence per line."""
        return "\n".join(map(str, self.sentences))

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Quote:
    """A part of the document with its place: `text[start:end]` of the document as it was read.

    Attributes:
        text: the words, line ends included.
        start, end: characters, from 0, end exclusive.
        start_byte, end_byte: the same in the UTF-8 form of the text.
        first_line, last_line: lines, from 1.
        page: of a PDF file, from 1; None where there are no pages.
    """

    text: str
    start: int
    end: int
    start_byte: int
    end_byte: int
    first_line: int
    last_line: int
    page: int | None = None

    def __str__(self) -> str:
        return " ".join(self.text.split())


def quote_of(document: Document, start: int, end: int) -> Quote:
    """Characters of a document with their words and their place."""
    text = document.text
    start_byte = len(text[:start].encode())
    return Quote(
        text=text[start:end],
        start=start,
        end=end,
        start_byte=start_byte,
        end_byte=start_byte + len(text[start:end].encode()),
        first_line=document.line(start),
        last_line=document.line(max(start, end - 1)),
        page=document.page(start),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPassage:
    """A passage that may hold the answer.

    Attributes:
        file: what its document is called.
        document: the number of its document among those that were asked, from 0.
        quote: its words in the document, and its place.
        text: its words as they are to be read: on one line, or one line per speaker.
        sentence: the sentence in it that comes nearest to the question.
        mark: the characters of that sentence in `text`.
        heading: of its section, or None.
        speakers: who speaks in it, in a dialogue.
        probability: that it holds the answer, between 0 and 1.
    """

    file: str
    document: int
    quote: Quote
    text: str
    sentence: Quote
    mark: tuple[int, int]
    heading: str | None = None
    speakers: tuple[str, ...] = ()
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortAnswer:
    """The words that answer, which a model of questions found.

    Attributes:
        document: the number of its document, from 0.
        quote: the words and their place.
        probability: of these words among all and none, as that model sees it.
        yes_no: "yes" or "no" where the model says that this is the answer, else "none".
    """

    document: int
    quote: Quote
    probability: float
    yes_no: str = "none"

    def __str__(self) -> str:
        return str(self.quote) if self.yes_no == "none" else self.yes_no


@dataclass(frozen=True, kw_only=True)
class DocumentAnswer:
    """What some documents hold on a question.

    Attributes:
        question: as it was asked.
        answered: whether an answer is more likely there than not; False only where that is right more often than not.
        probability: that one of the three best passages holds an answer, between 0 and 1.
        passages: those most likely to hold it, best first.
        short: the answer itself, where a model of questions was given and found one.
        scores: for each document every passage in order, with its place and probability.
        seconds: time for this question, without reading documents and loading models.
        note: a warning for the reader, or None.
    """

    question: str
    answered: bool
    probability: float
    passages: tuple[RankedPassage, ...]
    short: ShortAnswer | None = None
    scores: tuple[tuple[ScoredSentence, ...], ...] = ()
    seconds: float
    note: str | None = None

    @property
    def text(self) -> str:
        """In as few words as there are: the short answer, else the sentence of the best passage that matters."""
        if not self.answered:
            return "no answer found"
        return str(self.passages[0].sentence if self.short is None else self.short)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How a summary is written; None keeps what the model was trained to use."""

    beams: Beams | None = None
    length_penalty: LengthPenalty | None = None
    max_tokens: NewTokens | None = None
    """Longest summary, in tokens."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check(self)

    def options(self) -> dict[str, Any]:
        """Keyword arguments of `generate`."""
        named = {"num_beams": self.beams, "length_penalty": self.length_penalty, "max_new_tokens": self.max_tokens}
        return {name: value for name, value in named.items() if value is not None}
