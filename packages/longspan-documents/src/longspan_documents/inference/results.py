"""What inference is asked for and what it gives: plain data, without a model.

`Extent` says how long a summary is to be; `Summary` and `DocumentAnswer` are results,
with the places of their sentences and passages. `notes` is what a reader of a result should know.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, get_args

from longspan.characters import mended_note
from longspan.data.text.sentences import guess_language, split_words
from longspan.errors import InputError
from longspan.settings import LARGEST, check_kind, show
from longspan_documents.inference.verbs import Length
from longspan_documents.text.blocks import Document

SLACK = 1.1
"""A summary of N words has at most so many times N."""
SPARE = 20
"""Further sentences, in order of preference, among which what is missing in words is looked for."""
SHORTEST = 5
"""Words of the shortest pieces that are counted as sentences where one asks how long these usually are."""

Pick = Callable[[int], list[int]]
"""From a number of sentences to the indices of the best ones."""


@dataclass(frozen=True, kw_only=True)
class Extent:
    """The length of a summary, in at most one of three ways; without any, it is medium.

    Attributes:
        sentences: number of sentences.
        words: number of words, counted as `split_words` does: whole sentences, as near as possible to it and at most a
            tenth above, unless not even one sentence is as short.
        length: medium is half the square root of the document's sentences, between 3 and 20; short a quarter of that;
            long four times as much, but no more than a third of the document where that is above medium.
    """

    sentences: int | None = None
    words: int | None = None
    length: Length | None = None

    def __post_init__(self) -> None:
        """Refuse two lengths at once, and lengths that are none."""
        for name in ("sentences", "words"):
            value = getattr(self, name)
            if value is not None:
                check_kind(value, name, Integral, "a whole number")
        if self.length is not None:
            check_kind(self.length, "length", str, "short, medium or long")
        given = [f"{name}={show(value)}" for name, value in vars(self).items() if value is not None]
        if len(given) > 1:
            raise InputError(f"{' and '.join(given)} ask for two lengths; give one of sentences, words and length")
        for name in ("sentences", "words"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name}={value} is no length of a summary; give at least 1")
            if value is not None and value > LARGEST:
                raise InputError(f"{name} is {show(value)}, more than any document has; give at most {LARGEST:,}")
        if self.length is not None and self.length not in get_args(Length):
            raise InputError(f"length={show(self.length)} is unknown; give short, medium or long")

    @property
    def given(self) -> str | None:
        """What was asked for, as messages say it; None where nothing was."""
        return next((f"{name}={value!r}" for name, value in vars(self).items() if value is not None), None)

    def count(self, sentences: int) -> int:
        """How many sentences to take of so many, where words do not say it."""
        from longspan_documents.summaries.selection import default_count

        if self.sentences is not None:
            return self.sentences
        medium = default_count(sentences)
        if self.length == "short":
            return max(1, round(medium / 4))
        return max(medium, min(4 * medium, sentences // 3)) if self.length == "long" else medium

    def expected_words(self, texts: Sequence[str]) -> int:
        """How many words a summary of these sentences will have, about: those asked for, or of as many usual ones."""
        if self.words is not None:
            return self.words
        lengths = sorted(length for length in map(len, map(split_words, texts)) if length >= SHORTEST)
        return self.count(len(texts)) * (lengths[len(lengths) // 2] if lengths else SHORTEST)

    def take(self, texts: Sequence[str], pick: Pick) -> list[int]:
        """The indices of the sentences to take, in order.

        Args:
            texts: the document's sentences.
            pick: gives the best ones, as many as it is asked for.
        """
        if self.words is None:
            return pick(self.count(len(texts)))
        return _of_words([len(split_words(text)) for text in texts], self.words, pick)


def extent_of(sentences: int | Extent | None) -> Extent:
    """A length as it is; a number of sentences, or None, as a length."""
    return sentences if isinstance(sentences, Extent) else Extent(sentences=sentences)


def _of_words(lengths: Sequence[int], words: int, pick: Pick) -> list[int]:
    """As many of the best sentences as fit, and then of the next ones those that bring the total nearer to `words`."""
    most = SLACK * words

    def total(indices: Sequence[int]) -> int:
        return sum(lengths[index] for index in indices)

    low, high = 0, 1
    while high < len(lengths) and total(pick(high)) <= most:
        low, high = high, 2 * high
    high = min(high, len(lengths) + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if total(pick(middle)) <= most else (low, middle)
    taken = pick(low) if low else []
    spare = [index for index in pick(low + SPARE) if index not in taken]
    while spare:
        best = min(spare, key=lambda index: abs(words - total([*taken, index])))
        added = total([*taken, best])
        if added > most or abs(words - added) >= abs(words - total(taken)):
            break
        spare.remove(best)
        taken.append(best)
    return sorted(taken) or pick(1)


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

    @property
    def place(self) -> tuple[int, int]:
        """Start and end of a sentence that was picked from a document."""
        assert self.start is not None
        assert self.end is not None
        return self.start, self.end


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
        extracted: whether characters and lines are those of the text that was taken out of the file, not of the file.
    """

    text: str
    start: int
    end: int
    start_byte: int
    end_byte: int
    first_line: int
    last_line: int
    page: int | None = None
    extracted: bool = False

    def __str__(self) -> str:
        return " ".join(self.text.split())

    @property
    def place(self) -> str:
        """ "lines 12–15"; "page 3, lines 12–15 of its text" where they are not those of the file"""
        page = f"page {self.page}, " if self.page else ""
        same = self.first_line == self.last_line
        lines = f"line {self.first_line:,}" if same else f"lines {self.first_line:,}–{self.last_line:,}"
        return f"{page}{lines}{' of its text' if self.extracted else ''}"


def quote_of(document: Document, start: int, end: int) -> Quote:
    """Characters of a document with their words and their place."""
    return Quote(
        text=document.text[start:end],
        start=start,
        end=end,
        start_byte=document.byte(start),
        end_byte=document.byte(end),
        first_line=document.line(start),
        last_line=document.line(max(start, end - 1)),
        page=document.page(start),
        extracted=document.extracted,
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
        answered: whether an answer may be there; False only where that is right twice out of three.
        probability: that one of the three best passages holds an answer, between 0 and 1.
        likely: the probability from which on an answer is said to be likely.
        passages: those most likely to hold it, best first.
        short: the answer itself, where a model of questions was given and found one.
        scores: for each document every passage in order, with its place and probability; empty for a collection that
            an index without a model holds.
        searched: how many passages competed.
        seconds: time for this question, without reading documents and loading models.
        note: a warning for the reader, or None.
    """

    question: str
    answered: bool
    probability: float
    passages: tuple[RankedPassage, ...]
    short: ShortAnswer | None = None
    scores: tuple[tuple[ScoredSentence, ...], ...] = ()
    searched: int = 0
    seconds: float
    note: str | None = None
    likely: float = 0.7

    @property
    def sure(self) -> Literal["likely", "unsure", "probably not there"]:
        """How sure an answer is, in words."""
        if not self.answered:
            return "probably not there"
        return "likely" if self.short is not None or self.probability >= self.likely else "unsure"

    @property
    def text(self) -> str:
        """In as few words as there are: the short answer, else the sentence of the best passage that matters."""
        if not self.answered:
            return "no answer found"
        if self.short is not None:
            return str(self.short)
        best = self.passages[0]
        return " ".join(best.text[slice(*best.mark)].split()) or str(best.sentence)  # as it is read, without marks

    def __str__(self) -> str:
        return self.text


def notes(*warnings: str | None, halves: int = 0) -> str | None:
    """Warnings as one text, with a word on `halves` of characters that were mended; None where there are none."""
    return "; ".join(filter(None, (*warnings, mended_note(halves) if halves else None))) or None


def reads_english(text: str) -> bool:
    """Whether a text is English, so far as samples of it tell; texts under 40 words of Latin letters pass.

    Prose tells at once: the commonest English words make up a tenth of it. Where they do not (code, tables, lists of
    references, other languages), langdetect decides, where the 'documents' extra brings it; it takes a while to load.
    """
    if guess_language(text) != "en":  # another script
        return False
    step = max(1, len(text) // 8)
    pieces = (text[start : start + 2_500] for start in range(0, len(text), step))
    sample = "\n".join(pieces) if len(text) > 20_000 else text
    words = sample.lower().split()
    if len(words) < 40:
        return True
    common = {"the", "of", "and", "to", "that", "for", "with", "this", "are", "from", "by", "which", "it", "you", "we"}
    return sum(word in common for word in words) >= len(words) / 10 or _detected(sample) == "en"


def _detected(sample: str) -> str | None:
    """The language that langdetect finds in a sample's words; None without it, or without anything to go by."""
    from importlib.util import find_spec

    if find_spec("langdetect") is None:
        return None
    from langdetect import DetectorFactory, LangDetectException, detect

    DetectorFactory.seed = 0  # it draws at random what it looks at
    try:
        return detect(" ".join(re.findall(r"\b[^\W\d_]{2,}\b", sample))[:5_000])
    except LangDetectException:
        return None
