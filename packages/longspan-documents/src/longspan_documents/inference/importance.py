"""The importance of each word of a document: predicted by a tagger, or whether a summary contains the word. Without a
summary, the bundled model generates one."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from longspan.devices import check_numbers
from longspan.errors import InputError
from longspan.settings import check_kind, show

if TYPE_CHECKING:
    from longspan.tasks.summaries.importance import Tagger
    from longspan_documents.text.blocks import Document


@dataclass(frozen=True, kw_only=True)
class WeighedWord:
    """A word of a text.

    Attributes:
        start: first character.
        end: end character, exclusive.
        importance: from 0 to 1.
    """

    start: int
    end: int
    importance: float


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """A text and the importance of each of its words.

    Attributes:
        text: the text as it was read: without boilerplate and lists of references.
        words: its words in order.
        by: "tagger", "reference", or "summary" (of the bundled model).
        note: a warning about that summary, or None.
    """

    text: str
    words: tuple[WeighedWord, ...]
    by: str
    note: str | None = None

    @property
    def important(self) -> int:
        """The number of words with an importance of at least 0.5."""
        return sum(word.importance >= 0.5 for word in self.words)


def importance(
    document: str | Path | Document,
    *,
    model: str | None = None,
    reference: str | None = None,
    language: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
) -> Weighed:
    """Compute the importance of each word of a document.

    Without model and reference, the summary of the bundled model (`longspan.summarize`) is the reference.

    Args:
        document: the text itself, a `Path` to a file of any kind that `read` supports, or a document returned by
            `read`.
        model: folder of a tagger, trained with `longspan train` for the task `importance`. The importance of a word is
            the maximum over its tokens.
        reference: a summary. The importance of a word is 1 if its lemma occurs in the summary and it is no function
            word, else 0.
        language: ISO 639-1 code, for lemmas; None guesses it by the script.
        device: of the tagger or the bundled model, as PyTorch names devices ("cpu", "cuda", "cuda:1", "mps"); None is
            the CPU.
        dtype: of the tagger's weights: "float32", "bfloat16" or "float16"; None is float32.

    Raises:
        InputError: there are both a model and a reference, or nothing to read; a model is no tagger, or its input is
            shorter than the document; a device does not exist, or is specified with a reference, which needs no model.
    """
    from longspan.data.text.sentences import guess_language, placed_words
    from longspan.tasks.summaries.importance import check_reference, important_words, lemmatizer, load_tagger
    from longspan_documents.inference.summarize import summarize
    from longspan_documents.text.reading import as_document

    for name, value in (("model", model), ("reference", reference)):
        if value is not None:
            check_kind(value, name, str, "a folder or a name" if name == "model" else "a text")
    if model is not None and reference is not None:
        raise InputError(
            "give a trained tagger (model) or a summary (reference) to tell what is important; both are given"
        )
    if reference is not None and device is not None:
        raise InputError(f"device={show(device)} is for a model, and none computes with a reference; leave it out")
    check_numbers(dtype, model)
    document, by, note = as_document(document), "reference", None
    text = document.words
    spans = [(start, end) for start, end, _ in placed_words(text)]
    if model is not None:
        by, weights = "tagger", _tagged(text, spans, load_tagger(model, device, dtype))
    else:
        if reference is None:
            # Load the dictionary first: without it, the summary would be generated in vain.
            lemmatizer(guess_language(text) if language is None else language)
            summary = summarize(document, language=language, device=device)
            by, reference, note = "summary", summary.text, summary.note
        else:
            check_reference(reference)
        named = set(important_words(text, reference, language))
        weights = [float(place in named) for place in spans]
    words = zip(spans, weights, strict=True)
    return Weighed(
        text=text,
        words=tuple(WeighedWord(start=start, end=end, importance=weight) for (start, end), weight in words),
        by=by,
        note=note,
    )


def _tagged(text: str, word_spans: list[tuple[int, int]], tagger: Tagger) -> list[float]:
    """Returns the maximum probability over the tokens of each word."""
    from longspan.tasks.tokenizers import encode_placed

    ids, spans = encode_placed(tagger.tokenizer, text, max_tokens=sys.maxsize)
    tokens = [(*span, chance) for span, chance in zip(spans, tagger.probabilities(ids, spans), strict=True)]
    tokens = [token for token in tokens if token[1] > token[0]]
    weights, first = [], 0
    for start, end in word_spans:
        while first < len(tokens) and tokens[first][1] <= start:
            first += 1
        inside, at = [0.0], first
        while at < len(tokens) and tokens[at][0] < end:
            inside.append(tokens[at][2])
            at += 1
        weights.append(max(inside))
    return weights
