"""The folder of a run: who may write into it, and a record of what ran there."""

from __future__ import annotations

import json
import os
import platform
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
import transformers

from longspan.errors import InputError
from longspan.files import claimed, is_empty, temporary, write_whole
from longspan.plain_yaml import write_yaml
from longspan.settings import to_plain
from longspan.tasks import RECIPE
from longspan.training.models import RANDOM
from longspan.training.processes import is_main_process, on_main_process_first, process_count
from longspan.training.recipe import Recipe
from longspan.training.recipe_file import load_recipe
from longspan.version import __version__

METRICS = "metrics.json"
ENVIRONMENT = "environment.json"
CHANGEABLE = (
    *("about", "published", "smoke"),
    *("optimisation.workers", "optimisation.keep_checkpoints", "optimisation.report_to", "optimisation.parallel"),
    "optimisation.max_shard_size",
)
"""Keys that may differ when a run is resumed, because they cannot change its result but for what dropout draws."""
RAISABLE = ("optimisation.steps", "optimisation.epochs")
"""Keys that may be raised when a run is resumed, as long as what has been trained would have been the same."""
INDEPENDENT = ("constant", "constant_with_warmup", "inverse_sqrt")
"""Schedules whose learning rates do not depend on the number of steps."""
PREPARED = (
    RECIPE,
    ENVIRONMENT,
    "tokenizer",
    *RANDOM,
    "tensorboard",
    *(f"{kind}-{part}" for kind in ("tokens", "chunks") for part in ("train", "validation")),
)
"""What a run writes into its folder before the first step."""

Begun = Literal["new", "resumed", "raised", "finished"]


@contextmanager
def opened(folder: Path, recipe: Recipe, *, resume: bool) -> Iterator[tuple[Begun, Callable[..., None] | None]]:
    """The folder of a run, ours while the block runs: what `begin` says of it, and how the first of several processes
    takes back what it has put there (as `claimed` gives it; None in the others)."""
    with ExitStack() as stack:
        with on_main_process_first():
            # The other processes of this run share the claim of the first one, and find its recipe written.
            remove = stack.enter_context(claimed(folder)) if is_main_process() else None
        if process_count() > 1:
            _check_is_shared(folder)
        with on_main_process_first():
            begun = begin(folder, recipe, resume=resume or remove is None)
        yield begun, remove


def _check_is_shared(folder: Path) -> None:
    """Raise `InputError`, in every process alike, where some process does not see what the first one writes there."""
    from accelerate.utils import broadcast_object_list, gather_object

    # A name that nobody has looked up before, since file systems over a network also keep what was not there.
    mark = folder / broadcast_object_list([temporary(secrets.token_hex(), "part")])[0]
    with on_main_process_first():
        if is_main_process():
            mark.touch()
    try:
        blind = gather_object([] if mark.exists() else [f"process {os.environ['RANK']} on {platform.node()}"])
    finally:
        if is_main_process():
            mark.unlink(missing_ok=True)
    if blind:
        raise InputError(
            f"output {str(folder)!r} is not one folder for all processes: what the first of them writes there is not "
            f"seen by {', '.join(blind)}; give a folder that every machine shares"
        )


def begin(folder: Path, recipe: Recipe, *, resume: bool) -> Begun:
    """Look at the folder of a run, and write the resolved recipe into a new one.

    Returns:
        "new"; "resumed", where there is a run to go on with; "raised", where it goes on for longer than was planned;
        "finished", where there is nothing left to do.

    Raises:
        InputError: a folder with other content, or with a run of another recipe, or of one that cannot be read.
    """
    if is_empty(folder):
        record(folder, recipe)
        return "new"
    if not (folder / RECIPE).is_file():
        raise InputError(f"output {str(folder)!r} exists and holds no run of ours; give another --output")
    if not resume:
        raise InputError(f"output {str(folder)!r} already holds a run; add --resume, or change --output")
    if _is_raised(read_recipe(folder), recipe, folder):
        return "raised"
    if not (folder / METRICS).is_file():
        return "resumed"
    read_metrics(folder)
    return "finished"


def record(folder: Path, recipe: Recipe) -> None:
    """Write the recipe that is run from now on, and where it runs; a result of a shorter one is not the result."""
    (folder / METRICS).unlink(missing_ok=True)
    write_whole(
        {folder / RECIPE: write_yaml(to_plain(recipe)), folder / ENVIRONMENT: json.dumps(environment(), indent=2)}
    )


def read_recipe(folder: Path) -> Recipe:
    """The recipe in the folder of a run; a key that is newer than the run has its default.

    Raises:
        InputError: it is damaged.
    """
    try:
        return load_recipe(folder / RECIPE)
    except InputError as error:
        raise InputError(f"the run in {str(folder)!r} is damaged: {error}; put its {RECIPE} back") from error


def read_metrics(folder: Path) -> dict[str, Any]:
    """The result of a finished run.

    Raises:
        InputError: it is damaged.
    """
    try:
        metrics = json.loads((folder / METRICS).read_text(encoding="utf-8"))
        kinds = {"best_step": int, "best": dict, "history": list}
        if all(isinstance(metrics[name], kind) for name, kind in kinds.items()):
            return metrics
        reason = "it lacks what a run writes"
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        reason = " ".join(str(error).split())
    raise InputError(
        f"{str(folder / METRICS)!r} is damaged ({reason}); remove this file, and --resume writes it again from the "
        "checkpoints"
    )


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


def _is_raised(before: Recipe, now: Recipe, folder: Path) -> bool:
    """Whether the run is to go on for longer; any other difference raises `InputError`."""
    raised = False
    for key, (old, new) in _differences(to_plain(before), to_plain(now)).items():
        if key in RAISABLE and not now.stages and old is not None and new is not None and new > old:
            _check_independent(now, key, old, new)
            raised = True
        elif not key.startswith(CHANGEABLE):
            raise InputError(
                f"{str(folder)!r} was begun with {key}={old!r}, not {new!r}; resume it with the same recipe, "
                "or give another --output"
            )
    return raised


def _check_independent(recipe: Recipe, key: str, old: float, new: float) -> None:
    settings = recipe.optimisation
    reason = None
    if settings.schedule not in INDEPENDENT:
        reason = f"optimisation.schedule={settings.schedule!r}"
    elif settings.warmup_fraction:
        reason = f"optimisation.warmup_fraction={settings.warmup_fraction}"
    if reason is not None:
        raise InputError(
            f"{key} cannot be raised from {old} to {new}, since with {reason} the learning rates depend on it; resume "
            f"with {key}={old}, or train anew in another --output"
        )


def _differences(before: Any, now: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return {} if before == now else {path: (before, now)}
    differences: dict[str, tuple[Any, Any]] = {}
    for key in [*before, *(key for key in now if key not in before)]:
        differences |= _differences(before.get(key), now.get(key), f"{path}.{key}" if path else str(key))
    return differences
