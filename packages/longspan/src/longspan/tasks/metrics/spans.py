"""SQuAD's scores of an answer in words: exact match and F1 over words, without articles and punctuation.

As its official evaluation computes them (Rajpurkar et al. 2016, section 6.1): the best over all that annotators said.
TriviaQA's does the same over all names of the answer, but puts a space where punctuation stood
(`longspan_documents.questions.triviaqa.normalized_alias`), and gives two empty texts an F1 of 0, where SQuAD 2.0's
gives 1.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
    """Lower case, without ASCII punctuation and English articles, one space between words."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(predicted: str, said: Sequence[str], normal: Callable[[str], str] = normalized) -> float:
    """1 where it is what one annotator said, as `normal` writes both; with nothing said, where it is empty."""
    return float(any(normal(predicted) == normal(each) for each in said or [""]))


def word_f1(
    predicted: str, said: Sequence[str], normal: Callable[[str], str] = normalized, *, both_empty: float = 1.0
) -> float:
    """The best F1 over words against what one annotator said.

    Args:
        predicted: the answer of a model.
        said: what annotators said; with nothing said, the empty text.
        normal: how texts are written before their words are compared.
        both_empty: the F1 of two texts without a word: 1 in SQuAD 2.0, where it is "no answer", 0 in TriviaQA.
    """
    return max(_f1(normal(predicted).split(), normal(each).split(), both_empty) for each in said or [""])


def _f1(predicted: list[str], said: list[str], both_empty: float) -> float:
    if not predicted and not said:
        return both_empty
    shared = sum((Counter(predicted) & Counter(said)).values())
    return 2 * shared / (len(predicted) + len(said))
