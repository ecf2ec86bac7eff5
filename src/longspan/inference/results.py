"""What inference gives, and how it may be asked to write: plain data, without a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True, kw_only=True)
class DocumentAnswer:
    """The answer to one question about one document.

    Attributes:
        question: as it was asked.
        answered: whether the document holds an answer, as far as the model can tell.
        passage: the passage that answers; where there is no answer, the one that comes nearest to it.
        short: the answer itself, in the passage; None where there is none, or only the whole passage answers. The
            bundled reader gives the sentence, since its shorter answers are too often wrong.
        yes_no: "yes" or "no" where that is the answer, else "none".
        probability: that the document answers the question, between 0 and 1, as the model sees it.
        passages: every passage of the document in order, with its place and the probability that it is the one.
        tokens: how many tokens the model read of the document.
        seconds: time from text to answer, without loading the model.
        note: a warning for the reader, or None.
    """

    question: str
    answered: bool
    passage: Quote
    short: Quote | None
    yes_no: str
    probability: float
    passages: tuple[ScoredSentence, ...]
    tokens: int
    seconds: float
    note: str | None = None

    @property
    def text(self) -> str:
        """The answer in as few words as there are: the short answer, yes or no, else the passage."""
        if not self.answered:
            return "no answer in this document"
        if self.yes_no != "none":
            return self.yes_no
        return str(self.passage if self.short is None else self.short)

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
