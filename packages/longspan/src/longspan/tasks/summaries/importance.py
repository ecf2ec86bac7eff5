"""Predicts which words of a document are in its summary: the importance tagger of top-down and bottom-up inference.

A word of the document is important if its lemma is in the reference summary and it is not a function word; all of its
sub-words get the label. The tagger is an encoder with one number per token, trained with binary cross-entropy (Pang et
al. 2022, arXiv 2203.07586, section 2.3). A model with `pooling: importance` uses the labels of a reference, or the
predictions of a trained tagger, as weights when it pools tokens to segments (AdaPool).

Lemmas need the 'lemmas' extra (simplemma, dictionaries of some fifty languages).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import torch

from longspan.data.summaries.rows import SummaryRow
from longspan.data.text.sentences import FUNCTION_WORDS, guess_language, placed_words
from longspan.errors import InputError
from longspan.imports import require
from longspan.models.losses import IGNORED
from longspan.settings import LARGEST, Range
from longspan.tasks.base import Metrics, Outcome, check_room, label_fields, room_for
from longspan.tasks.predicting import pad, predict
from longspan.tasks.summaries.base import SummaryTask
from longspan.tasks.tokenizers import encode_placed, padding_id

UPPER_BOUND = "importance of tokens from the references themselves (oracle): an upper bound, and no result"
"""Note of an evaluation that used labels of the references."""

Offsets = Sequence[tuple[int, int]]
"""Positions of tokens in a text, in characters; special tokens have no width."""


def important_words(text: str, reference: str, language: str | None = None) -> list[tuple[int, int]]:
    """Returns the words of a text whose lemma is in the reference, except English function words, as character
    positions (Pang et al. 2022, arXiv 2203.07586, section 2.3).

    Args:
        text: the document.
        reference: its summary.
        language: ISO 639-1 code of both; None guesses it from the script. Words of a language without a dictionary, and
            unknown words, are their own lemmas.
    """
    lemma_of = lemmatizer(guess_language(text) if language is None else language)
    named = {lemma_of(word) for _, _, word in placed_words(reference)} - {None}
    return [(start, end) for start, end, word in placed_words(text) if lemma_of(word) in named]


@lru_cache(maxsize=4)
def lemmatizer(language: str) -> Any:
    """Returns a function from a word to its lemma; `None` for function words.

    Raises:
        InputError: the 'lemmas' extra is not installed.
    """
    simplemma = require("simplemma", extra="lemmas", purpose="telling which words a summary names")
    known = language
    try:
        simplemma.lemmatize("a", lang=language)
    except ValueError:  # a language without a dictionary
        known = None

    @lru_cache(maxsize=100_000)
    def lemma_of(word: str) -> str | None:
        lemma = word if known is None else simplemma.lemmatize(word, lang=known).lower()
        return None if word in FUNCTION_WORDS or lemma in FUNCTION_WORDS else lemma

    return lemma_of


def check_reference(reference: str) -> None:
    """Raises `InputError` for a reference without a word."""
    if next(iter(placed_words(reference)), None) is None:
        raise InputError("the reference holds no words; give a summary with words")


def labels_of(offsets: Offsets, text: str, reference: str, language: str | None = None) -> list[int]:
    """Returns 1 for each token that overlaps an important word of the text, 0 for others, −100 for special tokens."""
    labels, words, at = [], important_words(text, reference, language), 0
    for start, end in offsets:
        while at < len(words) and words[at][1] <= start:
            at += 1
        inside = at < len(words) and words[at][0] < end
        labels.append(IGNORED if end <= start else int(inside))
    return labels


def weights_of_labels(labels: Sequence[int]) -> list[float]:
    """Returns the importance weights of labels; special tokens have 0."""
    return [float(label == 1) for label in labels]


class Tagger:
    """A model that `longspan train` trained for the task `importance`, and its tokenizer."""

    def __init__(self, model: Any, tokenizer: Any, source: str) -> None:
        self.model, self.tokenizer, self.source = model, tokenizer, source

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Raises `InputError` if another model's tokenizer differs from the tagger's."""
        if tokenizer is not self.tokenizer and tokenizer.get_vocab() != self.tokenizer.get_vocab():
            own, here = len(self.tokenizer), len(tokenizer)
            differ = f"{own} entries, here {here}" if own != here else f"{own} entries, as here, but others"
            raise InputError(
                f"the importance tagger {self.source!r} was trained with another tokenizer ({differ}); train one with "
                "this model's tokenizer"
            )

    @torch.no_grad()
    def probabilities(self, ids: Sequence[int], offsets: Offsets) -> list[float]:
        """Returns the probability that each token is important; 0 for special tokens.

        Raises:
            InputError: more tokens than the tagger supports.
        """
        config = self.model.config
        if config.position_embedding != "sinusoidal" and len(ids) > config.max_position_embeddings:
            raise InputError(
                f"the document has {len(ids)} tokens, but the importance tagger {self.source!r} reads at most "
                f"{config.max_position_embeddings}; shorten it, or train a tagger that reads more"
            )
        given = torch.tensor([list(ids)], device=self.model.device)
        probabilities = self.model(given).logits[0, :, 0].float().sigmoid().tolist()
        return [value if end > start else 0.0 for value, (start, end) in zip(probabilities, offsets, strict=True)]


@lru_cache(maxsize=2)
def load_tagger(source: str, device: str | None = None, dtype: str | None = None) -> Tagger:
    """Loads the tagger in a folder, on a device (default: the CPU) and in a dtype (default: float32).

    Raises:
        InputError: there is no model, or one of another kind.
    """
    from longspan.checkpoints.loading import load_pair
    from longspan.models import LongspanForTokenClassification

    model, tokenizer = load_pair(source, device, dtype)
    if not isinstance(model, LongspanForTokenClassification) or model.config.num_labels != 1:
        raise InputError(
            f"model {source!r} is a {type(model).__name__} and no importance tagger; give one that `longspan train` "
            "made for the task importance"
        )
    return Tagger(model, tokenizer, source)


SCORES = ("average_precision", "f1", "precision", "recall", "important")


@dataclass(frozen=True, kw_only=True)
class Importance(SummaryTask):
    """Predicts which tokens of a document belong to words of its summary.

    Attributes:
        max_tokens: documents are truncated to this number of tokens, including special tokens.
        language: ISO 639-1 code, for lemmas; None guesses it from the script.
    """

    name: ClassVar[str] = "importance"
    head: ClassVar[str | None] = "token_classification"
    metrics: ClassVar[Metrics] = Metrics(names=SCORES)
    takes_encoders: ClassVar[bool] = True

    max_tokens: Annotated[int, Range(3, LARGEST)] = 16384
    language: str | None = None

    def model_fields(self) -> dict[str, Any]:
        """Returns the head, with one number per token."""
        return super().model_fields() | label_fields(("important",))

    def check_model(self, config: Any) -> None:
        """Raises `InputError` for more tokens than the model has positions for."""
        check_room(self.max_tokens, config)

    def fitted(self, config: Any) -> Self:
        """Returns the task with at most as many tokens as the model has positions for."""
        return replace(self, max_tokens=room_for(self.max_tokens, config))

    def features(self, row: SummaryRow, tokenizer: Any) -> dict[str, Any]:
        """Returns `input_ids`, and `labels`: 1, 0, or −100 for special tokens; a question is not included."""
        ids, offsets = encode_placed(tokenizer, row.source, max_tokens=self.max_tokens)
        language = row.language if self.language is None else self.language
        return {"input_ids": ids, "labels": labels_of(offsets, row.source, row.reference, language)}

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Pads B rows to `input_ids` and `labels` `(B, T)` with the mask."""
        return partial(pad, fillers={"input_ids": padding_id(tokenizer), "labels": IGNORED})

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[SummaryRow], *, batch_size: int) -> Outcome:
        """Scores the predictions over the tokens of all rows together."""
        features = [self.features(row, tokenizer) for row in rows]  # lemmatisation is slow: once, for model and scores
        logits = predict(model, features, self.collator(tokenizer), batch_size=batch_size)
        lines, labels, scores = [], [], []
        for index, row in enumerate(rows):
            gold = np.array(features[index]["labels"])
            real = gold != IGNORED
            chances = 1 / (1 + np.exp(-logits[index, : len(gold), 0][real].astype(np.float64)))
            lines.append({"id": row.id, "probabilities": [round(float(each), 4) for each in chances]})
            labels.append(gold[real] == 1)
            scores.append(chances)
        flavour = f"Percent, of tokens; important is 0.5 and more; documents cut at {self.max_tokens} tokens"
        return Outcome(scores=tag_scores(np.concatenate(labels), np.concatenate(scores)), lines=lines, flavour=flavour)


def tag_scores(gold: np.ndarray, chances: np.ndarray) -> dict[str, float]:
    """Returns percentages: average precision (the mean, over important tokens, of the precision down to each),
    precision, recall and F1 at 0.5, and the share of important tokens; `gold` `(N,)` bool, `chances` `(N,)`.

    Tokens with equal probabilities are ranked together.
    """
    order = np.argsort(-chances, kind="stable")
    hits = np.cumsum(gold[order])
    last = np.searchsorted(-chances[order], -chances[order], side="right")
    precisions = hits[last - 1] / last if len(gold) else np.zeros(0)
    chosen, right = int((chances >= 0.5).sum()), int((gold & (chances >= 0.5)).sum())
    total = int(gold.sum())
    values = (
        float(precisions[gold[order]].mean()) if total else 0.0,
        2 * right / max(chosen + total, 1),
        right / max(chosen, 1),
        right / max(total, 1),
        total / max(len(gold), 1),
    )
    return {name: 100 * value for name, value in zip(SCORES, values, strict=True)}
