"""A recipe that trains in a second: two small layers, made-up rows, dropout on, several epochs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from longspan.training.checkpoints import complete_checkpoints
from longspan.training.recipe_file import load_recipe
from longspan.training.train import train

TINY = """
name: tiny
task: {name: summarization, max_source_tokens: 384, max_target_tokens: 32}
data: {train: synthetic, validation: synthetic, train_rows: 10, validation_rows: 3}
model:
  new:
    hidden_size: 32
    num_hidden_layers: 2
    num_attention_heads: 4
    intermediate_size: 64
    decoder_layers: 1
    dropout: 0.1
    attention_dropout: 0.1
  attention:
    mechanism: poolingformer
    left_tokens: 16
    right_tokens: 16
    pooled_left_tokens: 64
    pooled_right_tokens: 64
    init: normal
  max_tokens: 384
tokenizer: {train: 400}
optimisation: {steps: 12, batch_size: 2, learning_rate: 3e-3, log_every: 1, evaluate_every: 2, warmup_steps: 2}
generation: {beams: 2, max_tokens: 16}
"""


@pytest.fixture
def curve() -> Callable[[Path], list[tuple[Any, ...]]]:
    """What must not depend on interruptions: every logged loss, gradient norm, learning rate, number of tokens and
    validation loss.
    """

    def read(folder: Path) -> list[tuple[Any, ...]]:
        history = json.loads((folder / "metrics.json").read_text())["history"]
        names = ("step", "loss", "grad_norm", "learning_rate", "num_input_tokens_seen", "eval_loss")
        steps = [entry for entry in history if not {"train_runtime", "packed_rows"} & entry.keys()]
        return [tuple(entry.get(name, 0.0) for name in names) for entry in steps]

    return read


@pytest.fixture
def same(curve: Callable[[Path], list[tuple[Any, ...]]]) -> Callable[[Path, Path], None]:
    """Two runs have the same curves and the same weights."""

    def check(one: Path, other: Path) -> None:
        assert curve(one) == curve(other)
        ours, theirs = (load_file(folder / "model.safetensors") for folder in (one, other))
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())

    return check


@pytest.fixture
def interrupted(tmp_path: Path) -> Callable[[Path], Path]:
    """A copy of a run as it was after its first checkpoint."""

    def copied(whole: Path) -> Path:
        folder = tmp_path / "interrupted"
        shutil.copytree(whole, folder)
        (folder / "metrics.json").unlink()
        for checkpoint in complete_checkpoints(folder / "checkpoints")[1:]:
            shutil.rmtree(checkpoint)
        return folder

    return copied


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of the tiny recipe trained without an interruption, once for the same changes; to be read only."""
    done: dict[tuple[str, ...], Path] = {}

    def run(*changes: str) -> Path:
        if changes not in done:
            folder = tmp_path_factory.mktemp("whole")
            (folder / "tiny.yaml").write_text(TINY)
            done[changes] = train(load_recipe(folder / "tiny.yaml", changes), folder / "run").folder
        return done[changes]

    return run


@pytest.fixture
def tiny_recipe(tmp_path: Path) -> Path:
    """The file of the tiny recipe: five steps are one epoch, every second step is saved."""
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path
