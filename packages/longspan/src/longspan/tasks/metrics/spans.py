"""SQuAD's scores of an answer: exact match and F1 over words, without articles and punctuation.

As in its official evaluation (Rajpurkar et al. 2016, section 6.1): the best score over all annotators' answers.
TriviaQA's does the same over all aliases of the answer, but replaces punctuation by spaces
(`longspan_documents.questions.triviaqa.normalized_alias`), and gives two empty texts an F1 of 0, where SQuAD
2.0's gives 1.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
    """Returns lower case, without ASCII punctuation and English articles, one space between words."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(predicted: str, answers: Sequence[str], normal: Callable[[str], str] = normalized) -> float:
    """Returns 1 if the prediction equals an annotator's answer after `normal`; without answers, if it is empty."""
    return float(any(normal(predicted) == normal(answer) for answer in answers or [""]))


def word_f1(
    predicted: str, answers: Sequence[str], normal: Callable[[str], str] = normalized, *, both_empty: float = 1.0
) -> float:
    """Returns the best F1 over words against the annotators' answers.

    Args:
        predicted: the answer of a model.
        answers: answers of the annotators; without any, the empty text.
        normal: normalisation of texts before their words are compared.
        both_empty: the F1 of two texts without a word: 1 in SQuAD 2.0, where it is "no answer", 0 in TriviaQA.
    """
    return max(_f1(normal(predicted).split(), normal(answer).split(), both_empty) for answer in answers or [""])


def _f1(predicted: list[str], expected: list[str], both_empty: float) -> float:
    if not predicted and not expected:
        return both_empty
    shared = sum((Counter(predicted) & Counter(expected)).values())
    return 2 * shared / (len(predicted) + len(expected))
