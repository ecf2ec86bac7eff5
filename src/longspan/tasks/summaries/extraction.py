"""Extractive summarisation: every sentence of a document gets a score, and the best ones are the summary.

Nothing is cut off: a document goes through the model whole, all of its sentences compete. Labels are computed from the
reference summaries (`longspan.tasks.summaries.salience`), so any summarisation data set trains a scorer. There are no
global tokens: the sentence layers of `LongspanForSentenceScoring` carry what the whole document is about.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from typing import Any, ClassVar

from longspan.data.summaries.rows import SummaryRow
from longspan.data.text.words import split_words
from longspan.models.losses import IGNORED
from longspan.settings import Count
from longspan.tasks.metrics.rouge import Rouge
from longspan.tasks.predicting import pad
from longspan.tasks.summaries.base import SummaryTask
from longspan.tasks.summaries.salience import salience, soft_labels, words_of
from longspan.tasks.summaries.selection import fill, ranking
from longspan.tasks.tokenizers import padding_id


@dataclass(frozen=True, kw_only=True)
class Extraction(SummaryTask):
    """Score sentences and take the best.

    Attributes:
        max_source_tokens: read only the first sentences that fit into so many tokens; None reads everything.
        summary_words: length of the summaries that `texts` gives for scoring; None takes the length of each row's
            first reference.
        block_repeats: in `texts`, pass over sentences that mostly repeat those already taken, see `choose`.
    """

    name: ClassVar[str] = "extraction"
    generates: ClassVar[bool] = False
    head: ClassVar[str | None] = "sentence_scoring"

    max_source_tokens: Count | None = None
    summary_words: Count | None = None
    block_repeats: bool = False

    @property
    def rouge(self) -> Rouge:
        """With Porter's stemmer, the best of several references."""
        return Rouge(stemmer=True)

    def features(self, row: SummaryRow, tokenizer: Any) -> dict[str, Any]:
        """Token ids, the sentence of each token, and a soft label per sentence where the row has references."""
        sentences = row.sentences
        encoded = encode_sentences(sentences, tokenizer)
        kept = len(encoded)
        if self.max_source_tokens is not None:
            kept = max(bisect_right(list(accumulate(map(len, encoded))), self.max_source_tokens), 1)
        features: dict[str, Any] = {
            "input_ids": list(chain.from_iterable(encoded[:kept])),
            "sentence_ids": [index for index, ids in enumerate(encoded[:kept]) for _ in ids],
        }
        if row.references:
            values = salience([words_of(text) for text in sentences], [words_of(text) for text in row.references])
            features["labels"] = soft_labels(values)[:kept].tolist()
        return features

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Pads documents to a batch: `input_ids`, `attention_mask`, `sentence_ids` `(B, T)`, `labels` `(B, N)`."""
        fillers = {"input_ids": padding_id(tokenizer), "sentence_ids": -1, "labels": float(IGNORED)}
        return partial(pad, fillers=fillers)

    def texts(self, predictions: Any, rows: Sequence[SummaryRow], tokenizer: Any) -> list[str]:
        """The best sentences of each row, in order, one per line, cut to the length asked for."""
        texts = []
        for scores, row in zip(predictions, rows, strict=True):
            words = self.summary_words or len(split_words(row.reference))
            order = ranking(scores[: len(row.sentences)])
            texts.append("\n".join(fill(row.sentences, order, words, block_repeats=self.block_repeats)))
        return texts


def encode_sentences(sentences: Sequence[str], tokenizer: Any) -> list[list[int]]:
    """Token ids of each sentence, without special tokens; a sentence that has none becomes one unknown token."""
    if not sentences:
        return []
    encoded = tokenizer(list(sentences), add_special_tokens=False, return_attention_mask=False, verbose=False)
    unknown = tokenizer.unk_token_id if tokenizer.unk_token_id is not None else 0
    return [ids or [unknown] for ids in encoded["input_ids"]]
