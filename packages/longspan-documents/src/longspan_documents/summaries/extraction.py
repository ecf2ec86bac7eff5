"""Extractive summarisation: every sentence of a document gets a score, and the best ones form the summary.

Nothing is truncated: the model reads the whole document, and all of its sentences compete. There are no global tokens:
the sentence layers of `LongspanForSentenceScoring` model the context of the whole document.

Labels are computed from the reference summaries, so any summarisation data set can train a scorer. Extractive
summarisers are mostly trained on a greedy oracle, a binary label per sentence (Nallapati et al. 2017, SummaRuNNer). In
a long paper it selects ten sentences of three hundred and rejects near copies of them. Here every sentence gets a
number instead: the share of its words, plus the share of its word pairs, that occur in the reference,

    salience(s) = |{w ∈ s: w ∈ R}| / (|s| + α)  +  |{(w, w′) ∈ s: (w, w′) ∈ R}| / (|s| − 1 + α),

a mean over the references R. It is a density (ROUGE-1 and ROUGE-2 precision), so long sentences are not preferred, and
α penalises fragments of two or three words. Ranked by it, sentences reach nearly the ROUGE of the greedy oracle.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate, chain, pairwise
from typing import Any, ClassVar

import numpy as np

from longspan.data.summaries.rows import SummaryRow
from longspan.data.text.sentences import split_words
from longspan.imports import require
from longspan.models.losses import IGNORED
from longspan.settings import Count
from longspan.tasks.metrics.rouge import Rouge, UnicodeTokenizer
from longspan.tasks.predicting import pad
from longspan.tasks.summaries.base import SummaryTask
from longspan.tasks.tokenizers import encode_sentences, padding_id
from longspan_documents.summaries.selection import fill, ranking

DAMPING = 3.0
"""α: number of words outside of the reference added to each sentence."""
FEWEST_WORDS = 3
"""Shorter pieces (stray marks, section numbers) have no salience."""
STEEPNESS, THRESHOLD = 1.5, 1.0


def words_of(text: str) -> list[str]:
    """Returns lower-case stemmed words of any script, as ROUGE counts them."""
    return _tokenizer().tokenize(text)


def salience(sentences: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> np.ndarray:
    """Returns the salience of each sentence, `(N,)` float64 ≥ 0; all texts are passed as words (`words_of`)."""
    total = np.zeros(len(sentences))
    for reference in references:
        words, pairs = set(reference), set(pairwise(reference))
        for index, sentence in enumerate(sentences):
            if len(sentence) < FEWEST_WORDS:
                continue
            singles = sum(word in words for word in sentence) / (len(sentence) + DAMPING)
            doubles = sum(pair in pairs for pair in pairwise(sentence))
            total[index] += singles + doubles / (len(sentence) - 1 + DAMPING)
    return total / max(len(references), 1)


def soft_labels(values: np.ndarray) -> np.ndarray:
    """Converts the salience within one document to labels in (0, 1): `sigmoid(1.5 · (z − 1))` of the standardised
    values z.

    Overlap with the reference differs between data sets far more than between sentences; standardisation removes that.
    The threshold gives the upper end, where sentences are chosen, most of the resolution.
    """
    spread = values.std() if len(values) else 0.0
    if spread == 0:
        return np.full(len(values), 0.5)
    z = (values - values.mean()) / spread
    return 1 / (1 + np.exp(-STEEPNESS * (z - THRESHOLD)))


@cache
def _tokenizer() -> UnicodeTokenizer:
    tokenizers = require("rouge_score.tokenizers", extra="train", purpose="labelling sentences")
    return UnicodeTokenizer(tokenizers.DefaultTokenizer(use_stemmer=True))


@dataclass(frozen=True, kw_only=True)
class Extraction(SummaryTask):
    """Scores sentences and selects the best.

    Attributes:
        max_source_tokens: read only the first sentences that fit into this number of tokens; None reads everything.
        summary_words: length of the summaries of `texts` for evaluation; None uses the length of each row's first
            reference.
        block_repeats: in `texts`, skip sentences that mostly repeat selected ones, see `choose`.
    """

    name: ClassVar[str] = "extraction"
    head: ClassVar[str | None] = "sentence_scoring"

    max_source_tokens: Count | None = None
    summary_words: Count | None = None
    block_repeats: bool = False

    @property
    def rouge(self) -> Rouge:
        """Returns ROUGE with Porter's stemmer and the best of several references."""
        return Rouge(stemmer=True)

    def features(self, row: SummaryRow, tokenizer: Any) -> dict[str, Any]:
        """Returns token ids, the sentence of each token, and a soft label per sentence if the row has references."""
        sentences = row.sentences
        encoded = encode_sentences(sentences, tokenizer)
        count = len(encoded)
        if self.max_source_tokens is not None:
            count = max(bisect_right(list(accumulate(map(len, encoded))), self.max_source_tokens), 1)
        features: dict[str, Any] = {
            "input_ids": list(chain.from_iterable(encoded[:count])),
            "sentence_ids": [index for index, ids in enumerate(encoded[:count]) for _ in ids],
        }
        if row.references:
            values = salience([words_of(text) for text in sentences], [words_of(text) for text in row.references])
            features["labels"] = soft_labels(values)[:count].tolist()
        return features

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Returns a function that pads documents to a batch: `input_ids`, `attention_mask`, `sentence_ids` `(B, T)`,
        `labels` `(B, N)`."""
        fillers = {"input_ids": padding_id(tokenizer), "sentence_ids": -1, "labels": float(IGNORED)}
        return partial(pad, fillers=fillers)

    def texts(self, predictions: Any, rows: Sequence[SummaryRow], tokenizer: Any) -> list[str]:
        """Returns the best sentences of each row, in order, one per line, truncated to the requested length."""
        texts = []
        for scores, row in zip(predictions, rows, strict=True):
            words = self.summary_words or len(split_words(row.reference))
            order = ranking(scores[: len(row.sentences)])
            texts.append("\n".join(fill(row.sentences, order, words, block_repeats=self.block_repeats)))
        return texts
