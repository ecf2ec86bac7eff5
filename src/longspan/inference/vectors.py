"""What all encoders do with vectors: means of length 1, and texts of like length in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

BATCH_TOKENS = 16_384
"""Tokens, padding included, of a batch of loose texts."""


def mean_vector(vectors: np.ndarray) -> np.ndarray:
    """The vector of a document from those of its sentences: `(N, D)` → `(D,)` of length 1, or 0 where there is none."""
    return of_length_one(vectors.sum(0))


def of_length_one(vectors: np.ndarray) -> np.ndarray:
    """Vectors `(…, D)` at length 1; those that are 0 stay so."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def batches_of(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of texts of like length, so many together that a batch has at most `BATCH_TOKENS`, or one text."""
    found: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not found or (len(found[-1]) + 1) * lengths[index] > BATCH_TOKENS:
            found.append([])
        found[-1].append(index)
    return found


def padded(encoded: Sequence[Sequence[int]], padding: int) -> tuple[Tensor, Tensor]:
    """Token ids as a batch `(B, T)` int64, and which of them are real `(B, T)` bool."""
    import torch

    longest = max(map(len, encoded))
    ids = torch.full((len(encoded), longest), padding)
    for row, tokens in zip(ids, encoded, strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    return ids, torch.arange(longest) < torch.tensor([[len(tokens)] for tokens in encoded])
