"""How much of its reference summaries a sentence says: the soft labels that a sentence scorer learns from.

Extractive summarisers are mostly trained on a greedy oracle, a yes or no per sentence (Nallapati et al. 2017,
SummaRuNNer). In a long paper it says yes to ten sentences of three hundred and no to near copies of them. Here every
sentence gets a number instead: the share of its words, plus the share of its word pairs, that occur in the reference,

    salience(s) = |{w ∈ s: w ∈ R}| / (|s| + α)  +  |{(w, w′) ∈ s: (w, w′) ∈ R}| / (|s| − 1 + α),

a mean over the references R. It is a density (ROUGE-1 and ROUGE-2 precision), so long sentences are not preferred,
and α keeps fragments of two or three words from the top. Ranked by it, sentences reach nearly the ROUGE of the greedy
oracle.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np

from longspan.extras import require
from longspan.tasks.metrics.rouge import UnicodeTokenizer

DAMPING = 3.0
"""α: how many words that are not in the reference each sentence is charged with."""
FEWEST_WORDS = 3
"""Shorter pieces (stray marks, section numbers) have no salience."""
STEEPNESS, THRESHOLD = 1.5, 1.0


def words_of(text: str) -> list[str]:
    """Lower-case stemmed words of any script, as ROUGE counts them."""
    return _tokenizer().tokenize(text)


def salience(sentences: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> np.ndarray:
    """The salience of each sentence, `(N,)` float64 ≥ 0; everything is given as words (`words_of`)."""
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
    """Salience within one document as labels in (0, 1): `sigmoid(1.5 · (z − 1))` of the standardised values z.

    How much a document shares with its reference differs between data sets far more than between sentences; the
    standard score removes that. The threshold leaves the resolution to the upper end, where sentences are chosen.
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
