"""Which checkpoints count, and what is deleted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longspan.errors import InputError
from longspan.files import write_whole
from longspan.training import checkpoints
from longspan.training.checkpoints import Saving


def _write(folder: Path, step: int) -> Path:
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"12345")
    (checkpoint / "trainer_state.json").write_text("{}")
    (checkpoint / "training_args.bin").write_bytes(b"pickle")
    return checkpoint


def test_a_checkpoint_counts_only_while_it_is_whole(tmp_path: Path) -> None:
    checkpoint = _write(tmp_path, 2)
    assert not checkpoints.is_complete(checkpoint)
    checkpoints.seal(checkpoint)
    assert checkpoints.is_complete(checkpoint)
    (checkpoint / "model.safetensors").write_bytes(b"123")
    assert not checkpoints.is_complete(checkpoint)
    (checkpoint / "model.safetensors").unlink()
    assert not checkpoints.is_complete(checkpoint)


def test_order_is_by_step_and_other_names_are_ignored(tmp_path: Path) -> None:
    for step in (100, 20, 3):
        checkpoints.seal(_write(tmp_path, step))
    (tmp_path / "checkpoint-best").mkdir()
    _write(tmp_path, 200)
    assert [path.name for path in checkpoints.complete_checkpoints(tmp_path)] == [
        "checkpoint-3",
        "checkpoint-20",
        "checkpoint-100",
    ]
    checkpoints.clear(tmp_path, checkpoints.find_damaged(tmp_path))
    assert not (tmp_path / "checkpoint-200").exists()
    assert (tmp_path / "checkpoint-best").exists()


@pytest.mark.parametrize(("best", "left"), [(2, [2, 6, 8]), (8, [6, 8]), (None, [6, 8])])
def test_the_newest_and_the_best_stay(tmp_path: Path, best: int | None, left: list[int]) -> None:
    callback = checkpoints.CompleteCheckpoints(tmp_path, 2, Saving())
    for step in (2, 4, 6, 8):
        _write(tmp_path, step)
        state = SimpleNamespace(
            is_world_process_zero=True,
            global_step=step,
            best_model_checkpoint=None if best is None else str(tmp_path / f"checkpoint-{min(best, step)}"),
        )
        callback.on_save(None, state, None)
    found = checkpoints.complete_checkpoints(tmp_path)
    assert [int(path.name.rpartition("-")[2]) for path in found] == left
    assert not list(tmp_path.rglob("training_args.bin"))


def test_writing_is_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "a.json"
    write_whole({file: "one"})
    write_whole({file: "two"})
    assert file.read_text() == "two"
    assert [path.name for path in file.parent.iterdir()] == ["a.json"]


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


DAMAGES = {
    "a bit": (lambda checkpoint: _flip(checkpoint / "model.safetensors"), "model.safetensors has changed"),
    "cut": (lambda checkpoint: (checkpoint / "model.safetensors").write_bytes(b"12"), "2 bytes instead of 5"),
    "gone": (lambda checkpoint: (checkpoint / "model.safetensors").unlink(), "model.safetensors is missing"),
    "list": (lambda checkpoint: (checkpoint / "files.json").write_text("{"), "files.json cannot be read"),
    "a list of sizes": (lambda checkpoint: (checkpoint / "files.json").write_text('{"a": 3}'), "files.json cannot be"),
    "another list": (lambda checkpoint: (checkpoint / "files.json").write_text('{"a": {}}'), "files.json cannot be"),
    "state": (lambda checkpoint: _flip(checkpoint / "trainer_state.json"), "trainer_state.json has changed"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_is_damaged_is_said_and_kept_aside(
    tmp_path: Path, damage: tuple[Any, str], caplog: pytest.LogCaptureFixture
) -> None:
    spoil, words = damage
    for step in (2, 4):
        checkpoints.seal(_write(tmp_path, step))
    spoil(tmp_path / "checkpoint-4")
    before = sorted(file.name for file in (tmp_path / "checkpoint-4").iterdir())
    checkpoints.clear(tmp_path, checkpoints.find_damaged(tmp_path))
    assert words in caplog.text
    assert "checkpoint-4 is skipped" in caplog.text
    assert "kept as checkpoint-4.damaged-1" in caplog.text
    assert [path.name for path in checkpoints.complete_checkpoints(tmp_path)] == ["checkpoint-2"]
    assert sorted(file.name for file in (tmp_path / "checkpoint-4.damaged-1").iterdir()) == before
    spoil(tmp_path / "checkpoint-2")
    with pytest.raises(InputError, match=r"every checkpoint .*checkpoint-2: .*begin again at step 0"):
        checkpoints.find_damaged(tmp_path)
    assert (tmp_path / "checkpoint-2").is_dir()


def test_the_best_is_the_best_of_those_that_are_there(tmp_path: Path) -> None:
    for step in (2, 4, 6, 8, 10):
        checkpoints.seal(_write(tmp_path, step))
    losses = {2: 3.0, 4: 1.0, 6: 2.0, 8: 2.0, 10: float("nan")}
    history: list[dict[str, Any]] = [{"step": step, "eval_loss": loss} for step, loss in losses.items()]
    history.append({"step": 12, "eval_loss": 0.5})
    assert checkpoints.best_step(history, tmp_path, "loss", False) == 4
    checkpoints.remove(tmp_path / "checkpoint-4")
    assert checkpoints.best_step(history, tmp_path, "loss", False) == 6
    assert checkpoints.best_step(history, tmp_path, "loss", True) == 2
    assert checkpoints.best_step([], tmp_path, "loss", True) is None
