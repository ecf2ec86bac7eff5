"""Checkpoints that survive being killed: a checkpoint counts only once all of its files are known to be on disk.

`Trainer` writes the files of `checkpoint-<step>` one after another. A process killed in between leaves a folder that
looks whole. So each finished checkpoint gets a list of its files with their sizes, written last and in one atomic
step; resuming takes the newest checkpoint whose list agrees with the disk. Old checkpoints are removed only after that,
list first, so that no moment is without a complete one.

The model is in safetensors. Trainer keeps optimizer, schedule and random states with `torch.save` and reads them with
`weights_only=True` (tensors and plain values, no code); its `training_args.bin`, a full pickle, is deleted here.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from longspan.files import flush, write_whole

FILES = "files.json"
STATE = "trainer_state.json"


class CompleteCheckpoints(TrainerCallback):
    """Seal every checkpoint after it is written, then delete the ones that are not needed any more."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer when all files of the checkpoint of this step have been written."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.barrier()  # every process has written its random states
        if not state.is_world_process_zero:
            return
        checkpoint = self.folder / f"checkpoint-{state.global_step}"
        (checkpoint / "training_args.bin").unlink(missing_ok=True)
        seal(checkpoint)
        best = Path(state.best_model_checkpoint).name if state.best_model_checkpoint else None
        for old in complete_checkpoints(self.folder)[: -self.keep]:
            if old.name != best:
                remove(old)


def seal(checkpoint: Path) -> None:
    """Declare a checkpoint complete: flush its files to disk and write the list of them."""
    sizes = {}
    for file in sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != FILES):
        flush(file)
        sizes[file.relative_to(checkpoint).as_posix()] = file.stat().st_size
    write_atomically(checkpoint / FILES, json.dumps(sizes, indent=2))


def is_complete(checkpoint: Path) -> bool:
    """Whether the checkpoint's list of files exists and every file is there with its size."""
    try:
        sizes = json.loads((checkpoint / FILES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return all(
        (checkpoint / name).is_file() and (checkpoint / name).stat().st_size == size for name, size in sizes.items()
    )


def complete_checkpoints(folder: Path) -> list[Path]:
    """All complete checkpoints of a run, oldest first."""
    return [path for path in _checkpoints(folder) if is_complete(path)]


def remove_incomplete(folder: Path) -> None:
    """Delete what an interrupted save or an interrupted deletion left behind."""
    for path in _checkpoints(folder):
        if not is_complete(path):
            remove(path)


def remove(checkpoint: Path) -> None:
    """Delete a checkpoint, its list first: an interrupted deletion must not look complete."""
    (checkpoint / FILES).unlink(missing_ok=True)
    shutil.rmtree(checkpoint)


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Trainer's own record in a checkpoint: step, history of losses, best checkpoint."""
    return json.loads((checkpoint / STATE).read_text(encoding="utf-8"))


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that it is there whole or not at all, even if the process or the machine stops."""
    write_whole({path: text})


def _checkpoints(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))
