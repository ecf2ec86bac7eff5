"""Confidence intervals of a mean over rows, and of the difference of two systems on the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from longspan.errors import InputError


class Interval(NamedTuple):
    """A mean with the bounds of its confidence interval."""

    mean: float
    low: float
    high: float


def bootstrap(values: Sequence[float], *, samples: int = 2000, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Computes a percentile bootstrap of the mean (Efron 1979): rows are resampled with replacement, `samples` times.

    Args:
        values: one score per row.
        samples: number of resampled sets of rows.
        confidence: share of the resampled means between `low` and `high`.
        seed: random seed; with the same seed, systems are compared on equal samples.

    Raises:
        InputError: no values, samples < 1, or confidence outside (0, 1).
    """
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or not len(scores):
        raise InputError(f"values has shape {scores.shape}; give one score for each of at least one row")
    if samples < 1:
        raise InputError(f"samples={samples} is less than 1; give the number of draws, such as 2000")
    if not 0 < confidence < 1:
        raise InputError(f"confidence={confidence} is not between 0 and 1; give a share such as 0.95")
    generator = np.random.default_rng(seed)
    means = np.array([scores[generator.integers(len(scores), size=len(scores))].mean() for _ in range(samples)])
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(scores.mean()), float(low), float(high))


def bootstrap_difference(
    values: Sequence[float], baseline: Sequence[float], *, samples: int = 2000, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Computes the interval of `mean(values) − mean(baseline)` over the same rows in the same order,
    resampled in pairs.

    A low bound above 0 means that `values` is significantly better. Raises `InputError` if the lengths differ, or
    as `bootstrap` does.
    """
    if len(values) != len(baseline):
        raise InputError(f"values has {len(values)} rows and baseline {len(baseline)}; score the same rows with both")
    differences = np.asarray(values, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    return bootstrap(differences.tolist(), samples=samples, confidence=confidence, seed=seed)
