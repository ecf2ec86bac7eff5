"""Training without padding: the batches, the losses and the weights of the padded run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from longspan.errors import InputError
from longspan.tasks.base import rows_of_batch
from longspan.tasks.predicting import without_padding
from longspan.training.recipe_file import load_recipe
from longspan.training.train import train

RECIPE = """
name: tiny
task: {name: TASK, max_tokens: 61}
data: {train: synthetic, validation: synthetic, train_rows: 9, validation_rows: 4}
model:
  new:
    hidden_size: 16
    num_hidden_layers: 2
    num_attention_heads: 2
    intermediate_size: 24
    dropout: 0.0
  attention: {mechanism: longformer, left_tokens: 5, right_tokens: 5}
  max_tokens: 61
tokenizer: {train: 300}
optimisation: {steps: 3, batch_size: 6, micro_batch_size: 3, log_every: 1, evaluate_every: 3, report_to: [none]}
"""


@pytest.mark.slow
@pytest.mark.parametrize("task", ["masked_lm", "language_model"])
def test_losses_are_those_of_padded_batches(task: str, tmp_path: Path) -> None:
    curves = []
    for padding_free in (False, True):
        file = tmp_path / f"{padding_free}.yaml"
        file.write_text(
            RECIPE.replace("TASK", task).replace("steps: 3", f"steps: 3, padding_free: {str(padding_free).lower()}")
        )
        folder = train(load_recipe(str(file)), tmp_path / str(padding_free)).folder
        history = json.loads((folder / "metrics.json").read_text())["history"]
        curves.append(
            [entry[name] for entry in history for name in ("loss", "grad_norm", "eval_loss") if name in entry]
        )
    assert len(curves[0]) == 7
    assert curves[1] == pytest.approx(curves[0], rel=1e-6)


def collated(features: list[dict[str, Any]]) -> dict[str, Any]:
    width = max(len(each["input_ids"]) for each in features)
    ids = torch.tensor([each["input_ids"] + [0] * (width - len(each["input_ids"])) for each in features])
    return {"input_ids": ids, "labels": ids + 1, "attention_mask": ids != 0}


def test_a_batch_in_one_row() -> None:
    features = [{"input_ids": [5, 6]}, {"input_ids": [7]}, {"input_ids": [8, 9, 4]}]
    batch = without_padding(collated, features)
    assert {name: value.tolist() for name, value in batch.items()} == {
        "seq_idx": [[0, 0, 1, 2, 2, 2]],
        "input_ids": [[5, 6, 7, 8, 9, 4]],
        "labels": [[6, 7, 8, 9, 10, 5]],
    }
    assert rows_of_batch(batch) == 3
    with pytest.raises(InputError, match="and place of this task is not"):
        without_padding(lambda rows: collated(rows) | {"place": torch.zeros(3)}, features)
    with pytest.raises(InputError, match="the batches of this task have none"):
        without_padding(lambda rows: {"input_ids": torch.zeros(1, 2)}, features)


@pytest.mark.parametrize(
    ("task", "stack", "sentence"),
    [
        ("classification, max_tokens: 61", "sequential", "SequenceClassification has one output for a row"),
        ("masked_lm, max_tokens: 61", "universal", "stack 'universal' does not support"),
        ("language_stream, max_tokens: 16", "sequential", "segments of a stream go on"),
    ],
)
def test_what_reads_whole_rows_is_refused(task: str, stack: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    text = RECIPE.replace("TASK, max_tokens: 61", task).replace("steps: 3", "steps: 3, padding_free: true")
    file.write_text(text.replace("dropout: 0.0", f"dropout: 0.0\n    stack: {{stack: {stack}}}"))
    with pytest.raises(InputError, match=sentence):
        train(load_recipe(str(file)), tmp_path / "run")
