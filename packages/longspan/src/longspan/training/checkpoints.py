"""Checkpoints that survive interruption and damage: one is valid only while all of its files are unchanged.

`Trainer` writes the files of `checkpoint-<step>` one after another. A process killed in between leaves a folder that
looks complete. So each finished checkpoint is sealed: a list of its files with sizes and checksums is written last, in
one atomic step. Resuming verifies every checkpoint and uses the newest intact one. One that was never sealed is a
partial save of a killed process, and is removed; one that is sealed but has changed since is renamed. Old checkpoints
are removed only after a newer one is sealed, list first, so that there is always a complete one.

The model is in safetensors. Trainer saves optimizer, schedule and random states with `torch.save` and loads them with
`weights_only=True` (tensors and plain values, no code); its `training_args.bin`, a full pickle, is deleted here.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from longspan.errors import InputError
from longspan.files import flush, write_whole
from longspan.ops.runtime import is_distributed
from longspan.training.processes import largest

FILES = "files.json"
STATE = "trainer_state.json"
UNLOGGED = "unlogged.json"
"""File with the losses that were not logged yet when a checkpoint was saved, and the number of processes."""
PROCESSES = "processes"
"""Key of the number of processes in that file."""
PARTS = "parts"
"""The folder of the shards in a checkpoint of `longspan.training.distributed_checkpoints`."""
MEMORY = "memory-"
"""Prefix of the files with the memory of contiguous streams, one for each process."""
NAME = re.compile(r"checkpoint-\d+")

logger = logging.getLogger(__name__)


def memory_file(process: int) -> str:
    """Returns the name of the file with the memory of one process's streams."""
    return f"{MEMORY}{process}.safetensors"


class Saving:
    """A checkpoint that is being written in the background, of which there is at most one.

    Attributes:
        background: writes in a thread while training goes on.
    """

    def __init__(self, *, background: bool = False) -> None:
        self.background = background
        self._future: Future[Any] | None = None
        self._after: Callable[[], None] | None = None
        # A thread must not exchange anything with the group in which training does.
        self._group: Any = torch.distributed.new_group(backend="gloo") if background else None

    def write(self, tensors: Mapping[str, Any], folder: Path, files: Mapping[str, int]) -> None:
        """Writes the shards of this process; in the background after a copy of them is made."""
        from torch.distributed.checkpoint import HuggingFaceStorageWriter, async_save, save

        folder.mkdir(parents=True, exist_ok=True)
        writer = HuggingFaceStorageWriter(str(folder), dict(files), save_distributed=True)
        if not self.background:
            with plain_errors():
                save(dict(tensors), storage_writer=writer)
            return
        self.wait()
        made: Any = async_save(dict(tensors), storage_writer=writer, process_group=self._group)
        self._future = made

    def then(self, after: Callable[[], None] | None) -> None:
        """Calls `after`, if this process has one, when the checkpoint is written: now, if none is being written."""
        self._after = after
        if self._future is None:
            self.wait()

    def poll(self, args: Any) -> None:
        """Completes the checkpoint if every process has written its part by now; `args` are Trainer's.

        Raises what prevented it, in every process after the same step.
        """
        if self._future is not None and not largest([not self._future.done()], args)[0]:
            self.wait()

    def wait(self) -> None:
        """Waits for the checkpoint and completes it; raises what prevented it, in every process."""
        future, after = self._future, self._after
        self._future = self._after = None
        if future is not None:
            with plain_errors():
                future.result()
        if after is not None:
            after()


def is_in_parts(checkpoint: Path) -> bool:
    """Whether a checkpoint has shards instead of whole weights."""
    return (checkpoint / PARTS).is_dir()


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raises the exception of the first process that failed instead of PyTorch's `BaseException` with all of them."""
    from torch.distributed.checkpoint import CheckpointException

    try:
        yield
    except CheckpointException as error:
        _, (reason, _) = min(error.failures.items())
        raise reason from None


class CompleteCheckpoints(TrainerCallback):
    """Seals every checkpoint after it is written, then deletes the ones that are not needed any more."""

    def __init__(self, folder: Path, keep: int, saving: Saving) -> None:
        self.folder = folder
        self.keep = keep
        self.saving = saving

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer after it has loaded the checkpoint to resume from: its best one may be missing or moved."""
        if state.log_history:
            step = best_step(state.log_history, self.folder, args.metric_for_best_model, args.greater_is_better)
            state.best_global_step = step
            state.best_model_checkpoint = None if step is None else str(self.folder / f"checkpoint-{step}")
            scores = evaluations(state.log_history, args.metric_for_best_model)
            state.best_metric = None if step is None else scores[step]

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer after all files of the checkpoint of this step have been written, but for what is still
        being written in the background.
        """
        if is_distributed():
            torch.distributed.barrier()  # every process has written its random states
        best = Path(state.best_model_checkpoint).name if state.best_model_checkpoint else None
        checkpoint = self.folder / f"checkpoint-{state.global_step}"
        self.saving.then(partial(self._complete, checkpoint, best) if state.is_world_process_zero else None)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer after every update of the weights."""
        self.saving.poll(args)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer after the last step."""
        self.saving.wait()
        if is_distributed():
            torch.distributed.barrier()  # the first process has sealed it

    def _complete(self, checkpoint: Path, best: str | None) -> None:
        (checkpoint / "training_args.bin").unlink(missing_ok=True)
        seal(checkpoint)
        for old in complete_checkpoints(self.folder)[: -self.keep]:
            if old.name != best:
                remove(old)


def seal(checkpoint: Path) -> None:
    """Marks a checkpoint as complete: flushes its files to disk and writes the list of them."""
    files = {}
    for file in sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != FILES):
        flush(file)
        files[file.relative_to(checkpoint).as_posix()] = {"size": file.stat().st_size, "sha256": _digest(file)}
    write_whole({checkpoint / FILES: json.dumps(files, indent=2)})


def is_sealed(checkpoint: Path) -> bool:
    """Whether the checkpoint was saved completely, even if it has changed since."""
    return (checkpoint / FILES).is_file()


def is_complete(checkpoint: Path) -> bool:
    """Whether the checkpoint is sealed and every file exists with its size: `damage` without reading the files."""
    return is_sealed(checkpoint) and _missing(checkpoint) is None


def damage(checkpoint: Path) -> str | None:
    """Describes what is wrong with a sealed checkpoint; None if every file is unchanged."""
    if (missing := _missing(checkpoint)) is not None:
        return missing
    for name, entry in _list(checkpoint).items():
        if _digest(checkpoint / name) != entry.get("sha256"):
            return f"{name} has changed since it was written"
    try:
        read_state(checkpoint)
    except (OSError, ValueError):
        return f"{STATE} cannot be read"
    return None


def complete_checkpoints(folder: Path) -> list[Path]:
    """Returns all complete checkpoints of a run, oldest first."""
    return [path for path in _checkpoints(folder) if is_complete(path)]


def find_damaged(folder: Path) -> dict[Path, str]:
    """Returns the sealed checkpoints that are damaged, and why; every file is read.

    Raises:
        InputError: there are sealed checkpoints and none is intact.
    """
    sealed = [path for path in _checkpoints(folder) if is_sealed(path)]
    damaged = {path: reason for path in sealed if (reason := damage(path)) is not None}
    if sealed and len(damaged) == len(sealed):
        reasons = "; ".join(f"{path.name}: {reason}" for path, reason in damaged.items())
        raise InputError(
            f"every checkpoint in {str(folder)!r} is damaged ({reasons}); put one back from a copy, or remove "
            f"{str(folder)!r} to begin again at step 0"
        )
    return damaged


def clear(folder: Path, damaged: dict[Path, str]) -> None:
    """Keeps only intact checkpoints under their names, and logs what was done with the others."""
    for path, reason in damaged.items():
        number = 1
        while (new_path := path.with_name(f"{path.name}.damaged-{number}")).exists():
            number += 1
        path.rename(new_path)
        logger.warning("%s is skipped: %s; it is kept as %s", path.name, reason, new_path.name)
    remove_unfinished(folder)


def remove_unfinished(folder: Path) -> None:
    """Deletes the remains of an interrupted save or deletion, and logs it."""
    for path in _checkpoints(folder):
        if not is_sealed(path):
            logger.warning("%s was not saved to its end; what there is of it is removed", path.name)
            shutil.rmtree(path)


def remove(checkpoint: Path) -> None:
    """Deletes a checkpoint, its list first: an interrupted deletion must not look complete."""
    (checkpoint / FILES).unlink(missing_ok=True)
    shutil.rmtree(checkpoint)


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Returns Trainer's state in a checkpoint: step, history of losses, best checkpoint."""
    return json.loads((checkpoint / STATE).read_text(encoding="utf-8"))


def read_unlogged(checkpoint: Path) -> dict[str, Any]:
    """Returns the losses that were not logged yet when a checkpoint was saved, and the number of processes."""
    return json.loads((checkpoint / UNLOGGED).read_text(encoding="utf-8"))


def best_step(history: list[dict[str, Any]], folder: Path, name: str, greater_is_better: bool) -> int | None:
    """Returns the step of the best existing checkpoint by the score `name`; the first of equals."""
    steps = {int(path.name.rpartition("-")[2]) for path in complete_checkpoints(folder)}
    scores = {step: score for step, score in evaluations(history, name).items() if step in steps}
    sign = 1 if greater_is_better else -1
    return max(scores, key=lambda step: sign * scores[step]) if scores else None


def evaluations(history: list[dict[str, Any]], name: str) -> dict[int, float]:
    """Returns step → score of the evaluations in Trainer's log with a finite score."""
    key = f"eval_{name}"
    return {entry["step"]: entry[key] for entry in history if key in entry and math.isfinite(entry[key])}


def _checkpoints(folder: Path) -> list[Path]:
    paths = [path for path in folder.glob("checkpoint-*") if NAME.fullmatch(path.name)]
    return sorted(paths, key=lambda path: int(path.name.rpartition("-")[2]))


def _list(checkpoint: Path) -> dict[str, Any]:
    """Returns the files of a sealed checkpoint: name → size and checksum."""
    return json.loads((checkpoint / FILES).read_text(encoding="utf-8"))


def _missing(checkpoint: Path) -> str | None:
    try:
        sizes = {name: entry["size"] for name, entry in _list(checkpoint).items()}
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return f"{FILES} cannot be read"
    for name, size in sizes.items():
        if not (checkpoint / name).is_file():
            return f"{name} is missing"
        if (checkpoint / name).stat().st_size != size:
            return f"{name} has {(checkpoint / name).stat().st_size} bytes instead of {size}"
    return None


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
