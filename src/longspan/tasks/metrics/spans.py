"""SQuAD's scores of an answer in words: exact match and F1 over words, without articles and punctuation.

As its official evaluation computes them (Rajpurkar et al. 2016, section 6.1): the best over all that annotators said.
TriviaQA's does the same over all names of the answer, and puts a space where punctuation stood
(`longspan.data.questions.triviaqa.normalized_alias`).
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


def word_f1(predicted: str, said: Sequence[str], normal: Callable[[str], str] = normalized) -> float:
    """The best F1 over words against what one annotator said."""
    return max(_f1(normal(predicted).split(), normal(each).split()) for each in said or [""])


def _f1(predicted: list[str], said: list[str]) -> float:
    if not predicted or not said:
        return float(predicted == said)
    shared = sum((Counter(predicted) & Counter(said)).values())
    return 2 * shared / (len(predicted) + len(said))
