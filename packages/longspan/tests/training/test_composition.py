"""What a run says of its training rows: packing statistics, and the rows of weighted sources."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from longspan.training.meter import ROWS, Meter
from longspan.training.processes import STAND_IN
from longspan.training.recipe_file import load_recipe
from longspan.training.train import train

NEW = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def corpus_recipe(recipe: Path, folder: Path, *more: str, **task: Any) -> Any:
    """A recipe of a language model on lines of one, two, … words."""
    text = folder / "text.txt"
    text.write_text("".join("word " * length + "\n" for length in range(1, 30)))
    task = {"name": "language_model", "max_tokens": 32, "text_unit": "line", **task}
    changes = [f"data.train={text}", f"data.validation={text}", "data.train_rows=null", "data.validation_rows=2"]
    changes += [f"model.new={json.dumps(NEW)}", "model.attention=longformer", "optimisation.steps=4"]
    return load_recipe(recipe, [*changes, f"task={json.dumps(task)}", *more])


def packed(history: list[dict[str, Any]]) -> list[dict[str, float]]:
    return [entry for entry in history if "packed_filled" in entry]


def test_packing_is_shown_and_kept_in_the_history(
    tiny_recipe: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    interrupted: Callable[[Path], Path],
) -> None:
    recipe = corpus_recipe(tiny_recipe, tmp_path, "optimisation.keep_checkpoints=9", cross_documents=False)
    result = train(recipe, tmp_path / "run")
    (numbers,) = packed(result.history)
    assert numbers["step"] == 0
    assert 0.9 < numbers["packed_filled"] <= 1
    # 29 documents with a separator each; those with tokens in several rows count once for each.
    assert numbers["packed_documents_per_row"] == (29 + numbers["packed_cut"] * 29) / numbers["packed_rows"]
    shown = capsys.readouterr().err
    assert f"packed rows: {numbers['packed_rows']}, {numbers['packed_filled']:.1%} filled, " in shown
    assert "documents per row, " in shown
    steps = [entry for entry in result.history if "loss" in entry]
    assert all(1 <= entry["documents_per_row"] <= 12 and 0.5 < entry["filled"] <= 1 for entry in steps)
    # A resumed run has them once.
    assert packed(train(recipe, interrupted(tmp_path / "run"), resume=True).history) == [numbers]
    assert "packed rows" not in capsys.readouterr().err


def test_rows_of_one_document_say_nothing_of_packing(
    tiny_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = "data.train=[{from: synthetic, weight: 1}, {from: synthetic, weight: 3}]"
    changes = [given, "data.train_rows=3", "data.validation_rows=1", "optimisation.steps=1"]
    result = train(load_recipe(tiny_recipe, changes), tmp_path / "run")
    assert not packed(result.history)
    assert not any("documents_per_row" in entry for entry in result.history)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("rows drawn in an epoch: ")]
    drawn = [part.split(": ")[-1].split(" of ") for part in line.split("; ")]
    assert [length for _, length in drawn] == ["3", "3"]
    assert min(int(count) for count, _ in drawn) == 3


def test_packed_batches_are_counted() -> None:
    """Rows of 6 places: two documents with 2 and 3 tokens and padding, and one of 6; a stand-in counts for nothing."""
    documents = torch.tensor([[0, 0, 1, 1, 1, -1], [0] * 6])
    batch = {"seq_idx": documents, ROWS: ((2, 0), (3, 0), (6, 0))}
    meter = Meter(clock=lambda: 0.0)
    assert meter.packed([batch, {**batch, STAND_IN: True}, {ROWS: ((5, 0),)}]) == [2, 3, 11, 12]
    meter.add(11, 0.0, meter.packed([batch]))
    meter.add(11, 0.0, meter.packed([batch]))

    class Arguments:
        world_size, device = 1, torch.device("cpu")

    numbers = meter.report(Arguments())
    assert (numbers["documents_per_row"], numbers["filled"]) == (1.5, 11 / 12)
    assert "filled" not in meter.report(Arguments())
