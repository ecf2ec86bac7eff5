"""MUC, B³ and CEAF-φ4 on the examples that their authors worked by hand; pairing against every permutation."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from longspan_papers.coreference.metric import KINDS, best_assignment, coreference_scores


def clusters(*groups: str):
    """Mentions named by letters and digits, as one-word spans."""
    return [[(ord(name), ord(name)) for name in group] for group in groups]


# Bagga and Baldwin 1998, figure 1; the same in Luo 2005, figure 1, with the responses c and d.
TRUTH = clusters("12345", "67", "89ABC")
RESPONSES = {
    "a": clusters("12345", "6789ABC"),
    "b": clusters("1234589ABC", "67"),
    "c": clusters("123456789ABC"),
    "d": clusters(*"123456789ABC"),
}


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        # MUC: 10 links are in the response, 9 of them in the truth: precision 90 %, for either response (the paper's
        # point), recall 9 of 9. B³ precision of a: 5 mentions with 5/5, two with 2/7, five with 5/7: (64/7)/12 = 76 %;
        # of b: ten with 5/10, two with 1: 7/12 = 58 %.
        # CEAF of a: {12345} pairs with itself, 1; {89ABC} with the seven, 2·5/12: together 11/6, so recall 11/18,
        # precision 11/12, F1 0.733 as in Luo's table 1. Of b: {67} 1, one five with the ten 2·5/15: 5/3, F1 2·(5/3)/5.
        ("a", {"muc_precision": 90, "muc_recall": 100, "b_cubed_precision": 6400 / 84, "b_cubed_recall": 100}),
        ("a", {"ceaf_recall": 1100 / 18, "ceaf_precision": 1100 / 12, "ceaf": 100 * 2 * (11 / 6) / 5}),
        ("b", {"muc_precision": 90, "muc_recall": 100, "b_cubed_precision": 700 / 12, "b_cubed_recall": 100}),
        ("b", {"ceaf": 200 / 3}),
        # One cluster: the best pair is a five with the twelve, 2·5/17; F1 2·(10/17)/4 = 0.294 (Luo).
        ("c", {"ceaf": 100 * 5 / 17, "muc_recall": 100, "muc_precision": 900 / 11}),
        # All alone: no links at all; pairs 2/6, 2/3, 2/6 make 4/3; F1 2·(4/3)/15 = 0.178 (Luo). B³ recall: each of the
        # twelve mentions finds 1/|K| of its cluster: 5/5 + 2/2 + 5/5 = 3 of 12.
        ("d", {"muc": 0, "ceaf": 100 * 8 / 45, "b_cubed_recall": 25, "b_cubed_precision": 100}),
    ],
)
def test_the_examples_of_the_papers(response: str, expected: dict[str, float]) -> None:
    found = coreference_scores([(TRUTH, RESPONSES[response])], singletons=True)
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found["conll"] == pytest.approx(sum(found[kind] for kind in KINDS) / 3)
    assert found["mentions"] == 100


def test_precision_and_recall_change_places() -> None:
    forward = coreference_scores([(TRUTH, RESPONSES["a"])])
    back = coreference_scores([(RESPONSES["a"], TRUTH)])
    for kind in KINDS:
        assert forward[f"{kind}_precision"] == pytest.approx(back[f"{kind}_recall"])
        assert forward[kind] == pytest.approx(back[kind])


def test_mentions_that_only_one_side_has() -> None:
    # Truth {ab} {cd}; predicted {abx} {y z}. MUC: of 2 links 1 is found; of 3 predicted links {abx} keeps 1.
    # B³ recall: a and b find 2/2, c and d nothing: 2/4; precision: (2·2/3)/5 = 4/15. CEAF: 2·2/5 once: recall and
    # precision 0.4. Mentions: 2 of 4, 2 of 5.
    found = coreference_scores([(clusters("ab", "cd"), clusters("abx", "yz"))])
    assert (found["muc_recall"], found["muc_precision"]) == pytest.approx((50, 100 / 3))
    assert (found["b_cubed_recall"], found["b_cubed_precision"]) == pytest.approx((50, 400 / 15))
    assert (found["ceaf_recall"], found["ceaf_precision"]) == pytest.approx((40, 40))
    assert found["mentions"] == pytest.approx(100 * 4 / 9)


def test_singletons_count_only_where_they_are_asked_for() -> None:
    gold, said = clusters("ab", "c"), clusters("ab", "d")
    assert coreference_scores([(gold, said)])["conll"] == pytest.approx(100)
    assert coreference_scores([(gold, said)], singletons=True)["ceaf"] == pytest.approx(50)


@pytest.mark.parametrize("pairs", [[], [([], [])], [(TRUTH, [])], [([], TRUTH)]])
def test_nothing_on_a_side_is_nothing_right(pairs) -> None:
    assert set(coreference_scores(pairs).values()) == {0.0}


def test_documents_add_up_before_they_are_divided() -> None:
    # 9 of 10 links and 1 of 1: 10 of 11, not the mean of the two.
    pairs = [(TRUTH, RESPONSES["a"]), (clusters("xy"), clusters("xy"))]
    assert coreference_scores(pairs)["muc_precision"] == pytest.approx(1000 / 11)


@given(arrays(np.float64, array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=5), elements=st.integers(-4, 4)))
def test_pairing_is_the_best_of_all_permutations(values: np.ndarray) -> None:
    found = best_assignment(values)
    rows, columns = values.shape
    assert len(found) == min(rows, columns) == len({row for row, _ in found}) == len({column for _, column in found})
    wide = values if rows <= columns else values.T
    best = max(
        (
            sum(wide[row, column] for row, column in enumerate(order))
            for order in permutations(range(wide.shape[1]), wide.shape[0])
        ),
        default=0,
    )
    assert sum(values[pair] for pair in found) == pytest.approx(best)
