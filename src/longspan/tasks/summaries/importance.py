"""Which words of a document its summary will name: the importance tagger of top-down and bottom-up inference.

A word of the document is important if its lemma is in the reference summary and it is no function word; the label goes
to all of its sub-words. The tagger is an encoder with one number per token, trained by binary cross-entropy (Pang et
al. 2022, arXiv 2203.07586, section 2.3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from longspan.data.summaries.rows import SummaryRow
from longspan.models.losses import IGNORED
from longspan.settings import LARGEST, Range
from longspan.tasks.base import Outcome, check_room, room_for
from longspan.tasks.classification.labels import label_fields
from longspan.tasks.predicting import pad, predict
from longspan.tasks.summaries.base import SummaryTask
from longspan.tasks.summaries.weighing import labels_of
from longspan.tasks.tokenizers import encode_placed, padding_id

SCORES = ("average_precision", "f1", "precision", "recall", "important")


@dataclass(frozen=True, kw_only=True)
class Importance(SummaryTask):
    """Tell which tokens of a document belong to words that its summary names.

    Attributes:
        max_tokens: documents are cut to so many tokens, special tokens included.
        language: ISO 639-1 code, for lemmas; None guesses it by the script.
    """

    name: ClassVar[str] = "importance"
    generates: ClassVar[bool] = False
    head: ClassVar[str | None] = "token_classification"
    score_names: ClassVar[tuple[str, ...]] = SCORES
    takes_encoders: ClassVar[bool] = True

    max_tokens: Annotated[int, Range(3, LARGEST)] = 16384
    language: str | None = None

    def model_fields(self) -> dict[str, Any]:
        """The head, with one number per token."""
        return super().model_fields() | label_fields(("important",))

    def check_model(self, config: Any) -> None:
        """Refuse more tokens than the model has positions for."""
        check_room(self.max_tokens, config)

    def fitted(self, config: Any) -> Self:
        """As many tokens as the model has positions for, at most."""
        return replace(self, max_tokens=room_for(self.max_tokens, config))

    def features(self, row: SummaryRow, tokenizer: Any) -> dict[str, Any]:
        """`input_ids`, and `labels`: 1, 0, or −100 for special tokens; a question is not read."""
        ids, places = encode_placed(tokenizer, row.source, max_tokens=self.max_tokens)
        language = row.language if self.language is None else self.language
        return {"input_ids": ids, "labels": labels_of(places, row.source, row.reference, language)}

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Pads B rows to `input_ids` and `labels` `(B, T)` with the mask."""
        return partial(pad, fillers={"input_ids": padding_id(tokenizer), "labels": IGNORED})

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[SummaryRow], *, batch_size: int) -> Outcome:
        """How well the model tells important tokens, over the tokens of all rows together."""
        features = [self.features(row, tokenizer) for row in rows]  # lemmas take long: once, for model and scores
        found = predict(model, features, self.collator(tokenizer), batch_size=batch_size)
        lines, labels, scores = [], [], []
        for index, row in enumerate(rows):
            gold = np.array(features[index]["labels"])
            real = gold != IGNORED
            chances = 1 / (1 + np.exp(-found[index, : len(gold), 0][real].astype(np.float64)))
            lines.append({"id": row.id, "probabilities": [round(float(each), 4) for each in chances]})
            labels.append(gold[real] == 1)
            scores.append(chances)
        flavour = f"Percent, of tokens; important is 0.5 and more; documents cut at {self.max_tokens} tokens"
        return Outcome(scores=tag_scores(np.concatenate(labels), np.concatenate(scores)), lines=lines, flavour=flavour)


def tag_scores(gold: np.ndarray, chances: np.ndarray) -> dict[str, float]:
    """Percentages: average precision (the mean, over important tokens, of the precision down to each), precision,
    recall and F1 at 0.5, and how many tokens are important; `gold` `(N,)` bool, `chances` `(N,)`.

    Tokens with the same chance are taken together.
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
