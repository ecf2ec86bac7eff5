"""HotpotQA's metric against numbers worked out by hand."""

from __future__ import annotations

import pytest

from longspan_papers.hotpotqa.metric import match_answer, match_facts, multi_hop_scores


@pytest.mark.parametrize(
    ("predicted", "said", "exact", "precision", "recall"),
    [
        ("The flotilla!", "flotilla", 1, 1, 1),
        ("a red boat", "red boats of Spain", 0, 1 / 2, 1 / 4),
        ("yes", "Yes", 1, 1, 1),
        ("yes", "yes it is", 0, 0, 0),  # such words are right as a whole or not at all
        ("no man", "no", 0, 0, 0),
        ("noanswer", "the noanswer prize", 0, 0, 0),
        ("", "boat", 0, 0, 0),
        (None, "the", 0, 0, 0),  # no prediction, although nothing is left of the answer either
    ],
)
def test_answers(predicted: str | None, said: str, exact: float, precision: float, recall: float) -> None:
    assert match_answer(predicted, said) == pytest.approx((exact, precision, recall))


@pytest.mark.parametrize(
    ("predicted", "exact", "precision", "recall"),
    [
        ([("A", 0), ("B", 2)], 1, 1, 1),
        ([("B", 2), ("A", 0), ("A", 0)], 1, 1, 1),  # a set
        ([("A", 0), ("A", 1), ("C", 2)], 0, 1 / 3, 1 / 2),
        ([("A", 2)], 0, 0, 0),
        ([], 0, 0, 0),
        (None, 0, 0, 0),
    ],
)
def test_facts(predicted: list | None, exact: float, precision: float, recall: float) -> None:
    assert match_facts(predicted, [("A", 0), ("B", 2)]) == pytest.approx((exact, precision, recall))


def test_joint_scores_multiply_and_are_means() -> None:
    half = match_answer("a red boat", "red boats of Spain"), match_facts([("A", 0), ("C", 1)], [("A", 0)])
    right = match_answer("boat", "boat"), match_facts([("A", 0)], [("A", 0)])
    # The first: answer P 1/2, R 1/4, F1 1/3; facts P 1/2, R 1, F1 2/3; joint P 1/4, R 1/4.
    assert multi_hop_scores([half, right]) == pytest.approx(
        {
            "answer_exact_match": 50,
            "answer_f1": 100 * (1 / 3 + 1) / 2,
            "evidence_exact_match": 50,
            "evidence_f1": 100 * (2 / 3 + 1) / 2,
            "joint_exact_match": 50,
            "joint_f1": 100 * (1 / 4 + 1) / 2,
        }
    )
