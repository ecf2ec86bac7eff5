"""Arguments and results of inference: plain data, without a model.

`Extent` is the length of a summary; `Summary` and `DocumentAnswer` are results, with the positions of their sentences
and passages. `notes` joins warnings for the reader of a result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, get_args

from longspan.characters import mended_note
from longspan.data.text.sentences import FUNCTION_WORDS, count_of, guess_language, split_words
from longspan.errors import InputError
from longspan.settings import LARGEST, check_kind, show
from longspan_documents.inference.verbs import Length
from longspan_documents.text.blocks import Document

SLACK = 1.1
"""Maximum ratio of a summary's words to the requested number."""
SPARE = 20
"""Number of further sentences, in order of preference, that are tried to fill up the requested number of words."""
SHORTEST = 5
"""Minimum number of words of a sentence in the estimate of usual sentence lengths."""

Pick = Callable[[int], list[int]]
"""From a number of sentences to the indices of the best ones."""


@dataclass(frozen=True, kw_only=True)
class Extent:
    """The length of a summary, specified in at most one of three ways; the default is medium.

    Attributes:
        sentences: number of sentences.
        words: number of words, as counted by `count_of`. The summary has whole sentences, as near as possible to it
            and at most a tenth above, unless even one sentence is longer.
        length: medium is half the square root of the document's number of sentences, between 3 and 20; short is a
            quarter of that; long is four times medium, but at most a third of the document if that is above medium.
    """

    sentences: int | None = None
    words: int | None = None
    length: Length | None = None

    def __post_init__(self) -> None:
        """Validate the length.

        Raises:
            InputError: there are two lengths, or a value is invalid.
        """
        for name in ("sentences", "words"):
            value = getattr(self, name)
            if value is not None:
                check_kind(value, name, Integral, "a whole number")
        if self.length is not None:
            check_kind(self.length, "length", str, "short, medium or long")
        specified = [f"{name}={show(value)}" for name, value in vars(self).items() if value is not None]
        if len(specified) > 1:
            raise InputError(f"{' and '.join(specified)} ask for two lengths; give one of sentences, words and length")
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
        """The specified length for messages; None if the default is used."""
        return next((f"{name}={value!r}" for name, value in vars(self).items() if value is not None), None)

    def count(self, sentences: int) -> int:
        """Returns how many of `sentences` to pick, if the length is not a number of words."""
        from longspan_documents.summaries.selection import default_count

        if self.sentences is not None:
            return self.sentences
        medium = default_count(sentences)
        if self.length == "short":
            return max(1, round(medium / 4))
        return max(medium, min(4 * medium, sentences // 3)) if self.length == "long" else medium

    def expected_words(self, texts: Sequence[str]) -> int:
        """Returns the approximate number of words of a summary of these sentences."""
        if self.words is not None:
            return self.words
        lengths = sorted(length for length in map(count_of, map(split_words, texts)) if length >= SHORTEST)
        return self.count(len(texts)) * (lengths[len(lengths) // 2] if lengths else SHORTEST)

    def take(self, texts: Sequence[str], pick: Pick) -> list[int]:
        """Returns the indices of the sentences to take, in order.

        Args:
            texts: the document's sentences.
            pick: returns the requested number of best sentences.
        """
        if self.words is None:
            return pick(self.count(len(texts)))
        return _of_words([count_of(split_words(text)) for text in texts], self.words, pick)


def extent_of(sentences: int | Extent | None) -> Extent:
    """Returns an `Extent` unchanged; converts a number of sentences, or None, to one."""
    return sentences if isinstance(sentences, Extent) else Extent(sentences=sentences)


def _of_words(lengths: Sequence[int], words: int, pick: Pick) -> list[int]:
    """Take as many of the best sentences as fit, then those of the next ones that bring the total nearer to `words`."""
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
    """A sentence, its characters from `start` to `end` in the document, and its score between 0 and 1.

    Generated sentences have neither position nor score: these are None. `speaker` is set in dialogues.
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
    """A summary and the document's scores.

    Attributes:
        sentences: the summary, in the document's order.
        document: every sentence of the document with its score; empty for a generated summary.
        tokens: number of tokens that the model read.
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
    """A part of the document with its position: `text[start:end]` of the document as it was read.

    Attributes:
        text: the words, line ends included.
        start: first character, from 0.
        end: end character, exclusive.
        start_byte: `start` in bytes of the UTF-8 text.
        end_byte: `end` in bytes of the UTF-8 text.
        first_line: from 1.
        last_line: from 1.
        page: of a PDF file, from 1; None if there are no pages.
        extracted: whether characters and lines refer to text that was extracted from the file, not to the file.
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
        """ "lines 12–15"; "page 3, lines 12–15 of its text" if they do not refer to the file"""
        page = f"page {self.page}, " if self.page else ""
        same = self.first_line == self.last_line
        lines = f"line {self.first_line:,}" if same else f"lines {self.first_line:,}–{self.last_line:,}"
        return f"{page}{lines}{' of its text' if self.extracted else ''}"


def quote_of(document: Document, start: int, end: int) -> Quote:
    """Returns characters of a document as a `Quote`."""
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
    """A passage that may contain the answer.

    Attributes:
        file: name of its document.
        document: index of its document among those searched, from 0.
        quote: its words in the document, with their position.
        text: its words for display: on one line, or one line per speaker.
        sentence: its sentence that is most similar to the question.
        mark: the characters of that sentence in `text`.
        heading: of its section, or None.
        speakers: its speakers, in a dialogue.
        probability: that it contains the answer, between 0 and 1; None outside English, where it was not measured.
    """

    file: str
    document: int
    quote: Quote
    text: str
    sentence: Quote
    mark: tuple[int, int]
    heading: str | None = None
    speakers: tuple[str, ...] = ()
    probability: float | None

    @property
    def weight(self) -> float:
        """Its weight in comparisons of answers from several passages: its probability, 1 if there is none."""
        return 1.0 if self.probability is None else self.probability


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortAnswer:
    """An answer that a question-answering model extracted.

    Attributes:
        document: index of its document, from 0.
        quote: the words and their position.
        probability: of these words among all possible answers and no answer, according to the model.
        yes_no: "yes" or "no" if the model predicts that as the answer, else "none".
    """

    document: int
    quote: Quote
    probability: float
    yes_no: str = "none"

    def __str__(self) -> str:
        return str(self.quote) if self.yes_no == "none" else self.yes_no


@dataclass(frozen=True, kw_only=True)
class DocumentAnswer:
    """The answer of documents to a question.

    Attributes:
        question: the question.
        answered: whether there may be an answer; if False, three of four such questions have none. Outside English it
            is False only if no passage has a word of the question.
        probability: that one of the three best passages contains an answer, between 0 and 1; None outside English,
            where it was not measured.
        there: probability that any passage does; None outside English.
        likely: from this `probability` on, an answer is reported as likely.
        passages: the most likely passages, best first.
        short: the extracted answer, if a question-answering model was used and found one.
        scores: for each document every passage in order, with its position and probability (outside English, its score
            as a share of the best one's); empty for a collection in an index without a model.
        searched: number of passages that were ranked.
        seconds: time for this question, without reading documents and loading models.
        note: a warning for the reader, or None.
    """

    question: str
    answered: bool
    probability: float | None
    passages: tuple[RankedPassage, ...]
    short: ShortAnswer | None = None
    scores: tuple[tuple[ScoredSentence, ...], ...] = ()
    searched: int = 0
    seconds: float
    note: str | None = None
    there: float | None
    likely: float

    @property
    def sure(self) -> Literal["likely", "unsure", "probably not there"]:
        """How certain an answer is, in words."""
        if self.short is not None:
            return "likely"
        if self.probability is None:
            return "unsure"
        if not self.answered:
            return "probably not there"
        return "likely" if self.probability >= self.likely else "unsure"

    @property
    def text(self) -> str:
        """The short answer, or else the most relevant sentence of the best passage."""
        if not self.answered:
            return "no answer found"
        if self.short is not None:
            return str(self.short)
        best = self.passages[0]
        return " ".join(best.text[slice(*best.mark)].split()) or str(best.sentence)  # as displayed, without markup

    def __str__(self) -> str:
        return self.text


def notes(*warnings: str | None, halves: int = 0) -> str | None:
    """Join warnings, and one on `halves` lone surrogates that were replaced; None if there are none."""
    return "; ".join(filter(None, (*warnings, mended_note(halves) if halves else None))) or None


def further_note(document: Document, summary: Summary) -> str | None:
    """Returns the note of a summary without that of its document, for readers who have seen the latter."""
    return (summary.note or "").removeprefix(document.note or "").removeprefix("; ") or None


def reads_english(text: str) -> bool:
    """Whether a text is English, judged by samples; always true for less than 40 words in Latin letters.

    In English prose, the most common words make up a tenth of the text, and in technical texts almost, without function
    words of other languages. If they do not (code, tables, lists of references, other languages), langdetect decides if
    it is installed (extra 'documents'); it takes a while to load.
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
    share = sum(word in common for word in words) / len(words)
    foreign = sum(word in FOREIGN_WORDS for word in words) / len(words)
    return share >= 0.1 or (share >= 0.07 and foreign <= 0.005) or _detected(sample) == "en"


_FOREIGN_WORDS = """
    der die das dem ein eine einen und ist sind wird werden wer wo wann warum wofür welche welcher welches nicht wie
    viele wenn sie für sich
    une est sont au aux ne qui que quoi quand où pourquoi comment quel quelle quels quelles combien dans pour avec
    se una por qué quién quiénes cuándo cómo como cuál cuáles cuánto cuánta cuántos cuántas dónde es son para que
    il lo gli della che chi cosa dove quando perché quale quali quanti sono nel con per di
    um uma os das dos quem onde porque qual quais quantos não é são como em
    het een wie waar waarom hoe welke hoeveel zijn niet
    och är vad vem hur när var vilka vilken inte og hvad hvem hvor hvornår ikke på
    co kto gdzie kiedy dlaczego jak jaki jakie ile jest są nie kdo kde proč kolik
    bir ve nedir kim nerede neden nasıl hangi kaç
"""
FOREIGN_WORDS = frozenset(_FOREIGN_WORDS.split()) - FUNCTION_WORDS
"""Function words of other languages in Latin letters, without those that are English too or parts of names."""


def asks_in_english(question: str) -> bool:
    """Whether a question is in English: in Latin letters, not begun with a function word of another language, and with
    fewer of them than of English, or none. Names and key words alone count as English."""
    if guess_language(question) != "en":
        return False
    words = split_words(question)
    foreign = sum(word in FOREIGN_WORDS for word in words)
    return foreign == 0 or (words[0] not in FOREIGN_WORDS and foreign < sum(word in FUNCTION_WORDS for word in words))


def _detected(sample: str) -> str | None:
    """Returns the language that langdetect finds in a sample's words; None if it is not installed or finds none."""
    from importlib.util import find_spec

    if find_spec("langdetect") is None:
        return None
    from langdetect import DetectorFactory, LangDetectException, detect

    DetectorFactory.seed = 0  # it samples randomly
    try:
        return detect(" ".join(re.findall(r"\b[^\W\d_]{2,}\b", sample))[:5_000])
    except LangDetectException:
        return None
