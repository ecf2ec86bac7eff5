"""SQuAD's exact match and F1, against numbers worked out by hand."""

from __future__ import annotations

import re
import string
from collections import Counter

import pytest

from longspan.tasks.metrics.spans import exact_match, normalized, word_f1
from longspan_documents.questions.triviaqa import normalized_alias


@pytest.mark.parametrize(
    ("predicted", "said", "exact", "f1"),
    [
        ("The  Pond!", ["pond"], 1, 1),
        ("a pond in June", ["the pond"], 0, 2 * 1 / (3 + 1)),
        ("old old pond", ["old pond of carps"], 0, 2 * 2 / (3 + 4)),
        ("carps", ["pond", "nine carps"], 0, 2 / 3),
        ("", [], 1, 1),
        ("", ["pond"], 0, 0),
        ("pond", [], 0, 0),
        ("the", ["a"], 1, 1),
    ],
)
def test_scores(predicted: str, said: list[str], exact: float, f1: float) -> None:
    assert exact_match(predicted, said) == exact
    assert word_f1(predicted, said) == pytest.approx(f1)


def test_what_does_not_count() -> None:
    assert normalized("An  apple-tree, the U.S.\tand a Theatre") == "appletree us and theatre"


@pytest.mark.parametrize(
    ("predicted", "aliases", "exact", "f1"),
    [
        ("The Sunset Boulevard!", ("sunset boulevard", "sunset blvd"), 1, 1),
        ("O’Brien", ("o brien",), 1, 1),  # a space where punctuation stood: SQuAD's metric would join the two
        ("Sir Henry Campbell-Bannerman", ("henry campbell bannerman",), 0, 2 * 3 / (4 + 3)),
        ("Chicago", ("chicago illinois", "chicago illinois u s"), 0, 2 / 3),
        ("", ("york",), 0, 0),
        ("", ("the",), 1, 0),  # as its official script: no shared word, F1 0, while two empty texts match
        ("a", ("!", "york"), 1, 0),
    ],
)
def test_triviaqa_takes_the_best_alias(predicted, aliases, exact, f1) -> None:
    assert exact_match(predicted, aliases, normalized_alias) == exact
    assert word_f1(predicted, aliases, normalized_alias, both_empty=0) == pytest.approx(f1)
    assert max(official_f1(predicted, each) for each in aliases) == pytest.approx(f1)


def official_f1(predicted: str, said: str) -> float:
    """`f1_score` of TriviaQA's evaluation as it is written, with its own normalisation."""

    def normal(text: str) -> str:
        marks = string.punctuation + "‘’´`"
        text = "".join(" " if mark in marks else mark for mark in text.lower().replace("_", " "))
        return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split()).strip()

    one, other = normal(predicted).split(), normal(said).split()
    same = sum((Counter(one) & Counter(other)).values())
    if same == 0:
        return 0
    precision, recall = same / len(one), same / len(other)
    return 2 * precision * recall / (precision + recall)
