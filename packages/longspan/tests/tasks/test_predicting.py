"""Predictions of a model for a data set: in order, padded, without labels, and the model's mode given back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from longspan.models.losses import IGNORED
from longspan.tasks.predicting import FeatureRows, batches, pad, predict


class Doubled(nn.Module):
    """Twice its input; refuses labels."""

    device = torch.device("cpu")

    def forward(self, values: Tensor) -> tuple[Tensor]:
        assert not self.training
        return (2.0 * values,)


def collate(features: list[dict[str, Any]]) -> dict[str, Tensor]:
    rows = [torch.tensor(feature["values"]) for feature in features]
    return {"values": nn.utils.rnn.pad_sequence(rows, True), "labels": torch.zeros(len(rows))}


def rows(*lengths: int) -> FeatureRows:
    return FeatureRows(lengths, lambda length: {"values": list(range(length))})


def test_features_are_made_when_they_are_asked_for() -> None:
    made: list[int] = []
    dataset = FeatureRows([5, 3], lambda row: made.append(row) or {"row": row})  # type: ignore[func-returns-value]
    assert len(dataset) == 2
    assert not made
    assert dataset[1] == {"row": 3}
    assert made == [3]


@pytest.mark.parametrize("training", [True, False])
def test_rows_of_unequal_length_are_padded_and_in_order(training: bool) -> None:
    model = Doubled().train(training)
    found = predict(model, rows(1, 3, 2), collate, batch_size=1)
    expected = [[0, IGNORED, IGNORED], [0, 2, 4], [0, 2, IGNORED]]
    np.testing.assert_array_equal(found, expected)
    assert model.training == training


def test_no_rows() -> None:
    assert predict(Doubled(), rows(), collate, batch_size=2).shape == (0, 0)


def test_the_mode_comes_back_when_reading_stops_early() -> None:
    model = Doubled().train()
    some = batches(model, rows(2, 2), collate, 1)
    next(some)
    assert not model.training
    some.close()  # type: ignore[attr-defined]
    assert model.training


def test_padding_by_hand() -> None:
    features = [
        {"input_ids": [7, 8, 9], "labels": [1.5], "scores": np.array([4, 5]), "extra": [1]},
        {"input_ids": [6], "labels": [0.0, 2.0], "scores": np.array([], dtype=np.int64)},
    ]
    batch = pad(features, {"input_ids": 1, "labels": float(IGNORED), "scores": -1, "extra": 0}, leading=[2, 0])
    assert {name: value.tolist() for name, value in batch.items()} == {
        "input_ids": [[7, 8, 9], [6, 1, 1]],
        "labels": [[1.5, -100.0], [0.0, 2.0]],
        "scores": [[4, 5], [-1, -1]],
        "attention_mask": [[True, True, True], [True, False, False]],
        "global_attention_mask": [[True, True, False], [False, False, False]],
    }
    assert (batch["input_ids"].dtype, batch["labels"].dtype) == (torch.int64, torch.float32)
    wide = pad(features, {"input_ids": 1, "scores": -1}, multiple=4)
    assert list(wide) == ["input_ids", "scores", "attention_mask"]
    assert wide["input_ids"].tolist() == [[7, 8, 9, 1], [6, 1, 1, 1]]
    assert wide["attention_mask"].sum(1).tolist() == [3, 1]
    assert features[1]["input_ids"] == [6]
