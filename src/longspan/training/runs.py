"""The folder of a run: who may write into it, and a record of what ran there."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import transformers

from longspan import __version__
from longspan.errors import InputError
from longspan.training import checkpoints
from longspan.training.recipe import Recipe
from longspan.training.recipe_file import RECIPE

METRICS = "metrics.json"
WAIT = timedelta(hours=12)
"""How long processes wait for the first one, which may have a large corpus to tokenise; not for one that has died."""
CHANGEABLE = ("about", "published", "smoke", "optimisation.workers", "optimisation.keep_checkpoints")
"""Keys that may differ when a run is resumed, because they cannot change its result."""


def claim(folder: Path, recipe: Recipe, *, resume: bool) -> dict[str, Any] | None:
    """Take the folder for this run and write the resolved recipe; return the metrics if the run has ended before.

    Raises `InputError` for a folder with other content, and for a run of another recipe.
    """
    import yaml

    finished = folder / METRICS
    if not is_main_process():
        # The first process has checked and written already, see `on_main_process_first`.
        return json.loads(finished.read_text(encoding="utf-8")) if finished.is_file() else None
    if folder.exists() and not folder.is_dir():
        raise InputError(f"output {str(folder)!r} is a file; give a folder as --output")
    # A name with a dot is what a process leaves that was killed while it wrote its very first file.
    if folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        if not (folder / RECIPE).is_file():
            raise InputError(f"output {str(folder)!r} exists and holds no run of ours; give another --output")
        if not resume:
            raise InputError(f"output {str(folder)!r} already holds a run; add --resume, or change --output")
        # Read as a recipe, so that a key which is newer than the run has its default.
        before = Recipe.from_dict(yaml.safe_load((folder / RECIPE).read_text(encoding="utf-8")))
        _same_recipe(before.to_dict(), recipe.to_dict(), folder)
        return json.loads(finished.read_text(encoding="utf-8")) if finished.is_file() else None
    text = yaml.safe_dump(recipe.to_dict(), sort_keys=False, allow_unicode=True)
    checkpoints.write_atomically(folder / RECIPE, text)
    checkpoints.write_atomically(folder / "environment.json", json.dumps(environment(), indent=2))
    return None


def environment() -> dict[str, Any]:
    """Versions, machine and command, for the record beside a result."""
    return {
        "longspan": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "cpu",
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "command": " ".join(sys.argv),
    }


def is_main_process() -> bool:
    """Whether this is the one process, or the first of several started by torchrun."""
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def on_main_process_first() -> Iterator[None]:
    """Run the block in the first process, then in the others, which find its files ready.

    Where the first one fails, the others do not wait for it: its end closes their connection, and torchrun stops them.
    """
    state = processes()
    if not state.is_main_process:
        try:
            state.wait_for_everyone()
        except RuntimeError:
            raise InputError("the first of the processes has stopped; its error says why") from None
    yield
    if state.is_main_process:
        state.wait_for_everyone()


def processes() -> Any:
    """Accelerate's record of the processes that torchrun started, joined when this is first called.

    Without an accelerator they are joined on CPUs, which accelerate does only when it is told to: otherwise each of
    them would take itself for the only one.
    """
    try:
        from accelerate import PartialState
    except ImportError:
        raise InputError("training needs the 'train' extra; install it with: pip install 'longspan[train]'") from None
    if not is_joined():
        return PartialState()
    on_cpu = not torch.accelerator.is_available() or os.environ.get("ACCELERATE_USE_CPU", "").lower() in {"true", "1"}
    return PartialState(cpu=on_cpu, timeout=WAIT)


def is_joined() -> bool:
    """Whether this process is one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def _same_recipe(before: Any, now: dict[str, Any], folder: Path) -> None:
    for key, (old, new) in _differences(before, now).items():
        if not key.startswith(CHANGEABLE):
            raise InputError(
                f"{str(folder)!r} was begun with {key}={old!r}, not {new!r}; resume it with the same recipe, "
                "or give another --output"
            )


def _differences(before: Any, now: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return {} if before == now else {path: (before, now)}
    found: dict[str, tuple[Any, Any]] = {}
    for key in [*before, *(key for key in now if key not in before)]:
        found |= _differences(before.get(key), now.get(key), f"{path}.{key}" if path else str(key))
    return found
