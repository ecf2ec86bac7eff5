"""Features made on access, and a model's predictions for a data set: what evaluation in every task is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from longspan.progress import progress_bar

PADDING = -100
"""Fills up predictions of unequal length, as transformers does."""


class FeatureRows(Dataset[dict[str, Any]]):
    """Features of rows, made when they are asked for: a large corpus never lies tokenised in memory.

    Access by index is what makes resuming exact: a sampler can skip what was seen without computing it.
    """

    def __init__(self, rows: Sequence[Any], features: Callable[[Any], dict[str, Any]]) -> None:
        self.rows = rows
        self.features = features

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The features of one row."""
        return self.features(self.rows[index])


def batches(model: Any, dataset: Any, collator: Callable[..., Any], batch_size: int) -> Iterator[dict[str, Any]]:
    """Batches of a map-style data set in its order, on the model's device, with a progress bar.

    The model is in evaluation mode until the last one; whoever calls it says `torch.no_grad()`.
    """
    loader: Any = DataLoader(dataset, batch_size=batch_size, collate_fn=collator)
    was_training = model.training
    model.eval()
    try:
        for batch in progress_bar(loader, doing="predicting"):
            yield {
                name: value.to(model.device) if isinstance(value, torch.Tensor) else value
                for name, value in batch.items()
            }
    finally:
        model.train(was_training)


def predict(
    model: Any, dataset: Any, collator: Callable[..., Any], *, batch_size: int, generate: bool = False
) -> np.ndarray:
    """The first output of `model.forward` for every row, or the token ids that `model.generate` writes.

    `(rows, …)`, where rows differ in length filled up with −100. Labels are not shown to the model.
    """
    found: list[np.ndarray] = []
    for batch in batches(model, dataset, collator, batch_size):
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        with torch.no_grad():
            output = model.generate(**inputs) if generate else model(**inputs)[0]
        found.extend(output.float().cpu().numpy() if output.is_floating_point() else output.cpu().numpy())
    widest = max((len(row) for row in found), default=0)
    padded = [
        np.pad(row, [(0, widest - len(row))] + [(0, 0)] * (row.ndim - 1), constant_values=PADDING) for row in found
    ]
    return np.stack(padded) if padded else np.empty((0, 0))
