"""Scores of predicted labels, and calibration of their probabilities.

Accuracy and F1 are those of scikit-learn (`accuracy_score`, `f1_score` with `average="macro"`, `"micro"` and of each
label); the calibration error is that of Guo et al. 2017 (1706.04599, eq. 3); the Brier score is Brier's own of 1950,
the sum over all labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

BINS = 10
"""Number of equally wide bins of the confidences from 0 to 1."""


class Bin(NamedTuple):
    """Predictions whose confidence lies in one interval."""

    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    confidence: float
    """Their mean confidence."""
    accuracy: float
    """The share of right ones."""


def classification_scores(probabilities: np.ndarray, gold: np.ndarray, labels: Sequence[str]) -> dict[str, float]:
    """Returns scores of predictions; in percent, except `brier`.

    Args:
        probabilities: `(N, L)`, each row sums to 1.
        gold: `(N,)`, the indices of the right labels.
        labels: L, their names.

    Returns:
        `accuracy`, `macro_f1` (the mean over the labels that are right or predicted somewhere, equally weighed),
        `micro_f1` (which, with one label for each document, is the accuracy), `f1_<label>`, `calibration_error` and
        `brier` (0 is perfect, 2 is sure and wrong).
    """
    predicted = probabilities.argmax(1)
    each = {label: 100 * f1(predicted == index, gold == index) for index, label in enumerate(labels)}
    present = np.unique(np.concatenate([predicted, gold]))
    right = predicted == gold
    wanted = np.eye(len(labels))[gold]
    return {
        "accuracy": 100 * float(right.mean()),
        "macro_f1": float(np.mean([each[labels[int(index)]] for index in present])),
        "micro_f1": 100 * f1((np.eye(len(labels))[predicted] > 0).ravel(), (wanted > 0).ravel()),
        **{f"f1_{label}": value for label, value in each.items()},
        "calibration_error": 100 * calibration_error(probabilities.max(1), right),
        "brier": float(np.square(probabilities - wanted).sum(1).mean()),
    }


def f1(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Returns `2·TP / (2·TP + FP + FN)` of two boolean arrays `(N,)`; 0 if a label neither occurs nor is predicted."""
    both, either = int((predicted & gold).sum()), int(predicted.sum()) + int(gold.sum())
    return 2 * both / either if either else 0.0


def reliability(confidence: np.ndarray, right: np.ndarray, bins: int = BINS) -> list[Bin]:
    """Returns the bins `((b − 1)/B, b/B]` that have predictions, in order.

    Args:
        confidence: `(N,)`, the probability of the predicted label.
        right: `(N,)` bool, whether it is the right one.
        bins: B.
    """
    places = np.clip(np.ceil(confidence * bins) - 1, 0, bins - 1)
    chosen = (places == number for number in range(bins))
    return [Bin(int(c.sum()), float(confidence[c].mean()), float(right[c].mean())) for c in chosen if c.any()]


def calibration_error(confidence: np.ndarray, right: np.ndarray, bins: int = BINS) -> float:
    """Returns `Σ_b |B_b|/N · |accuracy(B_b) − confidence(B_b)|`, 0 to 1 (Guo et al. 2017, equation 3); arguments
    as in `reliability`.
    """
    groups = reliability(confidence, right, bins)
    return sum(group.count * abs(group.accuracy - group.confidence) for group in groups) / max(1, len(confidence))
