"""Which checkpoints count, and what is deleted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from longspan.training import checkpoints


def _write(folder: Path, step: int) -> Path:
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"12345")
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
    checkpoints.remove_incomplete(tmp_path)
    assert not (tmp_path / "checkpoint-200").exists()
    assert (tmp_path / "checkpoint-best").exists()


@pytest.mark.parametrize(("best", "left"), [(2, [2, 6, 8]), (8, [6, 8]), (None, [6, 8])])
def test_the_newest_and_the_best_stay(tmp_path: Path, best: int | None, left: list[int]) -> None:
    callback = checkpoints.CompleteCheckpoints(tmp_path, keep=2)
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
    checkpoints.write_atomically(file, "one")
    checkpoints.write_atomically(file, "two")
    assert file.read_text() == "two"
    assert [path.name for path in file.parent.iterdir()] == ["a.json"]
