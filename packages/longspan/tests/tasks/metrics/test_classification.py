"""Scores of predicted labels: worked by hand, and against scikit-learn where it is installed."""

from __future__ import annotations

import numpy as np
import pytest

from longspan.tasks.metrics.classification import Bin, calibration_error, classification_scores, f1, reliability


def test_by_hand() -> None:
    # Five documents, labels a and b: predicted a a a b b, right are a a b b a.
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7], [0.45, 0.55]])
    found = classification_scores(probabilities, np.array([0, 0, 1, 1, 0]), ["a", "b"])
    assert found["accuracy"] == pytest.approx(60)
    assert found["f1_a"] == pytest.approx(100 * 4 / 6)  # 2 right, 3 predicted, 3 there
    assert found["f1_b"] == pytest.approx(100 * 2 / 4)  # 1 right, 2 predicted, 2 there
    assert found["macro_f1"] == pytest.approx(100 * (4 / 6 + 2 / 4) / 2)
    assert found["micro_f1"] == pytest.approx(60)
    # Twice the squared distance: 2·(0.1² + 0.2² + 0.6² + 0.3² + 0.55²)/5.
    assert found["brier"] == pytest.approx(2 * (0.01 + 0.04 + 0.36 + 0.09 + 0.3025) / 5)
    # Each document has a bin of its own: |1 − 0.9|, |1 − 0.8|, |0 − 0.6|, |1 − 0.7|, |0 − 0.55|.
    assert found["calibration_error"] == pytest.approx(100 * (0.1 + 0.2 + 0.6 + 0.3 + 0.55) / 5)


def test_bins_by_hand() -> None:
    confidence, right = np.array([0.50, 0.51, 0.59, 0.60, 0.61, 1.0]), np.array([True, True, False, True, False, True])
    found = reliability(confidence, right)
    assert [one.count for one in found] == [1, 3, 1, 1]  # borders belong to the bin below
    assert found[1] == Bin(3, pytest.approx(1.7 / 3), pytest.approx(2 / 3))
    wanted = (abs(1 - 0.5) + 3 * abs(2 / 3 - 1.7 / 3) + abs(0 - 0.61) + 0) / 6
    assert calibration_error(confidence, right) == pytest.approx(wanted)


def test_perfect_and_hopeless() -> None:
    sure = np.eye(3)[[0, 1, 2, 0]]
    perfect = classification_scores(sure, np.array([0, 1, 2, 0]), ["x", "y", "z"])
    assert perfect["accuracy"] == perfect["macro_f1"] == 100
    assert perfect["brier"] == perfect["calibration_error"] == 0
    wrong = classification_scores(sure, np.array([1, 2, 0, 1]), ["x", "y", "z"])
    assert wrong["accuracy"] == wrong["macro_f1"] == 0
    assert wrong["brier"] == 2
    assert wrong["calibration_error"] == 100
    alone = classification_scores(sure[:1], np.array([0]), ["x", "y", "z"])
    assert (alone["macro_f1"], alone["f1_y"]) == (100, 0)  # "y" is nowhere, and counts nowhere
    assert f1(np.zeros(3, bool), np.zeros(3, bool)) == 0


def test_against_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    draw = np.random.default_rng(0)
    probabilities, gold = draw.dirichlet(np.ones(4), size=211), draw.integers(4, size=211)
    found = classification_scores(probabilities, gold, list("abcd"))
    predicted = probabilities.argmax(1)
    assert found["accuracy"] == pytest.approx(100 * metrics.accuracy_score(gold, predicted))
    for average in ("macro", "micro"):
        assert found[f"{average}_f1"] == pytest.approx(100 * metrics.f1_score(gold, predicted, average=average))
    few = classification_scores(
        np.pad(probabilities, ((0, 0), (0, 2)))[gold == 1], gold[gold == 1], list("abcdef")
    )  # of "e" and "f" nothing
    macro = metrics.f1_score(gold[gold == 1], predicted[gold == 1], average="macro")
    assert few["macro_f1"] == pytest.approx(100 * macro)
    each = metrics.f1_score(gold, predicted, average=None)
    assert [found[f"f1_{label}"] for label in "abcd"] == pytest.approx(100 * each)
