"""`longspan.summarize`: a long text in, its summary out.

Without a model, the bundled one picks sentences: it scores every sentence of the document, whatever its length, in
linear time and memory. With a sequence-to-sequence model the summary is written word by word.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from longspan.characters import mend, mended_note
from longspan.errors import InputError

if TYPE_CHECKING:
    from longspan.inference.abstractive import Decoding

BUNDLED = Path(__file__).parents[1] / "bundled"
"""The folder of the model that comes with the package; its README.md is the model card."""


@dataclass(frozen=True, slots=True)
class ScoredSentence:
    """A sentence with its place, `document[start:end] == text`, and its score between 0 and 1.

    Sentences that a model wrote itself have no place and no score: these are None.
    """

    text: str
    start: int | None = None
    end: int | None = None
    score: float | None = None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A summary and what it was made from.

    Attributes:
        sentences: the summary, in the document's order.
        document: every sentence of the document with its score; empty where a model wrote the summary.
        tokens: how many tokens the model read.
        seconds: time from text to summary, without loading the model.
        note: a warning for the reader, or None.
    """

    sentences: tuple[ScoredSentence, ...]
    document: tuple[ScoredSentence, ...] = ()
    tokens: int
    seconds: float
    note: str | None = None

    @property
    def text(self) -> str:
        """The summary, one sentence per line."""
        return "\n".join(" ".join(sentence.text.split()) for sentence in self.sentences)

    def __str__(self) -> str:
        return self.text


class Summarizer(Protocol):
    """What `load_summarizer` gives: a model that is ready to summarise any number of texts."""

    def summarize(self, text: str, sentences: int | None = None) -> Summary:
        """Summarise one text; `sentences` is the length wanted, None chooses one by the document's length."""
        ...


def summarize(
    text: str,
    sentences: int | None = None,
    model: str | Path | Summarizer | None = None,
    *,
    language: str | None = None,
    decoding: Decoding | None = None,
) -> Summary:
    """Summarise a text of any length.

    Args:
        text: the document.
        sentences: number of sentences; None takes half the square root of the document's, between 3 and 20. Only for
            models that pick sentences.
        model: None takes the bundled model, which picks sentences. Else the folder or name of a model (one trained
            here, or a published LED, BART or mBART, which write), or what `load_summarizer` returned.
        language: ISO 639-1 code for cutting sentences; None guesses by the script.
        decoding: beams and lengths of models that write; None keeps the model's own.

    Returns:
        A `Summary`; `print` shows its text.

    Raises:
        InputError: no text, `sentences` below 1 or not for this model, a model that cannot be loaded or cannot
            summarise, or a document longer than a model that writes can read.
    """
    if not isinstance(text, str) or not text.strip():
        raise InputError("text holds nothing to summarise; give a document with words in it")
    text, halves = mend(text)
    summarizer = load_summarizer(model, language, decoding) if model is None or isinstance(model, str | Path) else model
    summary = summarizer.summarize(text, sentences)
    if not halves:
        return summary
    return replace(summary, note="; ".join(note for note in (summary.note, mended_note(halves)) if note))


def load_summarizer(
    model: str | Path | None = None, language: str | None = None, decoding: Decoding | None = None
) -> Summarizer:
    """Load a model once to summarise many texts; arguments and errors as in `summarize`. The latest ones are kept."""
    if model is not None:
        return _load(str(model), language, decoding)
    if decoding is not None:
        raise InputError("the bundled model picks sentences and decodes nothing; leave the decoding options out")
    return _bundled(language)


@lru_cache(maxsize=2)
def _bundled(language: str | None) -> Summarizer:
    from longspan.inference.bundled import open_bundled
    from longspan.models.heads.sentence_network import SentenceScoringNetwork

    return Extractive(*open_bundled(BUNDLED, SentenceScoringNetwork), english_only=True, language=language)


@lru_cache(maxsize=2)
def _load(source: str, language: str | None, decoding: Decoding | None) -> Summarizer:
    from longspan.checkpoints import from_transformers
    from longspan.checkpoints.registry import load_any
    from longspan.models import LongspanForConditionalGeneration, LongspanForSentenceScoring, LongspanPreTrainedModel
    from longspan.training.tokenizers import load_tokenizer

    model = load_any(source)
    if not isinstance(model, LongspanPreTrainedModel):
        model = from_transformers(model)
    tokenizer = load_tokenizer(source)
    if len(tokenizer) > model.config.vocab_size:
        raise InputError(
            f"model {source!r} knows {model.config.vocab_size} tokens but its tokenizer has {len(tokenizer)}; "
            "they do not belong together"
        )
    model = model.float().eval()
    if isinstance(model, LongspanForSentenceScoring):
        if decoding is not None:
            raise InputError(f"model {source!r} picks sentences and decodes nothing; leave the decoding options out")
        return Extractive(model, tokenizer, language=language)
    if isinstance(model, LongspanForConditionalGeneration):
        from longspan.inference.abstractive import Abstractive

        return Abstractive(model, tokenizer, source=source, decoding=decoding)
    raise InputError(
        f"model {source!r} is a {type(model).__name__}, which cannot summarise; give a sentence scorer or a "
        "sequence-to-sequence model such as LED or BART"
    )


class Extractive:
    """Summarises by picking sentences with a `LongspanForSentenceScoring` model."""

    def __init__(self, model: Any, tokenizer: Any, *, english_only: bool = False, language: str | None = None) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.english_only = english_only
        self.language = language

    def summarize(self, text: str, sentences: int | None = None) -> Summary:
        """See `longspan.summarize`."""
        from longspan.data.text.sentences import split_sentences
        from longspan.tasks.summaries.selection import choose, default_count

        if sentences is not None and sentences < 1:
            raise InputError(f"sentences={sentences} is no length of a summary; give at least 1")
        begin = time.perf_counter()
        found = split_sentences(text, self.language)
        texts = [sentence.text for sentence in found]
        scores, tokens = self.score(texts)
        picked = choose(texts, scores, sentences or default_count(len(texts)))
        document = tuple(
            ScoredSentence(sentence.text, sentence.start, sentence.end, round(score, 4))
            for sentence, score in zip(found, scores, strict=True)
        )
        return Summary(
            sentences=tuple(document[index] for index in picked),
            document=document,
            tokens=tokens,
            seconds=time.perf_counter() - begin,
            note=self._note(text),
        )

    def score(self, sentences: list[str]) -> tuple[list[float], int]:
        """A score between 0 and 1 for each sentence of a document, and the number of tokens read."""
        import torch

        from longspan.tasks.summaries.extraction import encode_sentences

        if not sentences:
            return [], 0
        encoded = encode_sentences(sentences, self.tokenizer)
        lengths = torch.tensor([len(ids) for ids in encoded])
        input_ids = torch.tensor([token for ids in encoded for token in ids])
        sentence_ids = torch.arange(len(encoded)).repeat_interleave(lengths)
        return self.model.score_document(input_ids, sentence_ids).sigmoid().tolist(), len(input_ids)

    def _note(self, text: str) -> str | None:
        if not self.english_only or reads_english(text):
            return None
        return "the bundled model was trained on English; its choice in other languages is less sure"


def reads_english(text: str) -> bool:
    """Whether a text is English, so far as samples of it tell; texts under 40 words of Latin letters pass.

    Prose tells at once: the commonest English words make up a tenth of it. Where they do not (code, tables, lists of
    references, other languages), langdetect decides, where the 'documents' extra brings it; it takes a while to load.
    """
    from longspan.data.text.sentences import guess_language

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
