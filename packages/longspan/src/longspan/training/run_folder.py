"""The folder of a run: its lock, and a record of the run."""

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
from longspan.training.filling import INITIAL
from longspan.training.models import RANDOM
from longspan.training.processes import is_main_process, on_main_process_first, process_count
from longspan.training.recipe import Recipe
from longspan.training.recipe_file import load_recipe
from longspan.training.trainer_section import SECTION, UNIMPORTANT
from longspan.version import __version__

METRICS = "metrics.json"
ENVIRONMENT = "environment.json"
CHANGEABLE = (
    *("about", "published", "smoke"),
    *("optimisation.workers", "optimisation.keep_checkpoints", "optimisation.report_to", "optimisation.parallel"),
    "optimisation.max_shard_size",
    *(f"{SECTION}.{name}" for name in UNIMPORTANT),
)
"""Keys that may differ when a run is resumed: they change no more than random draws of dropout, and roundings."""
MIXED = "mixed"
"""Folder of the files of weighted sources."""
STREAM = "stream.json"
"""File with the identity of sources that are read while the model trains."""
RAISABLE = ("optimisation.steps", "optimisation.epochs")
"""Keys that may be increased when a run is resumed, if the completed part would have been the same."""
INDEPENDENT = ("constant", "constant_with_warmup", "inverse_sqrt")
"""Schedules whose learning rates do not depend on the number of steps."""
PREPARED = (
    RECIPE,
    ENVIRONMENT,
    "tokenizer",
    *RANDOM,
    INITIAL,
    "tensorboard",
    MIXED,
    STREAM,
    *(f"{kind}-{part}" for kind in ("tokens", "chunks") for part in ("train", "validation")),
)
"""Files that a run writes into its folder before the first step."""

Begun = Literal["new", "resumed", "raised", "finished"]


@contextmanager
def opened(folder: Path, recipe: Recipe, *, resume: bool) -> Iterator[tuple[Begun, Callable[..., None] | None]]:
    """Locks the folder of a run within the context; yields the result of `begin`, and how the first of several
    processes deletes what it wrote there (see `claimed`; None in the others).
    """
    with ExitStack() as stack:
        with on_main_process_first():
            # The other processes of this run share the lock of the first one, and use its recipe.
            remove = stack.enter_context(claimed(folder)) if is_main_process() else None
        if process_count() > 1:
            _check_is_shared(folder)
        with on_main_process_first():
            begun = begin(folder, recipe, resume=resume or remove is None)
        yield begun, remove


def _check_is_shared(folder: Path) -> None:
    """Raises `InputError`, in every process alike, if some process does not see the first one's files."""
    from accelerate.utils import broadcast_object_list, gather_object

    # A new name, since network file systems also cache that a file does not exist.
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
    """Checks the folder of a run, and writes the resolved recipe into a new one.

    Returns:
        "new"; "resumed", to continue a run; "raised", to continue it with more steps than before; "finished", if
        nothing is left to do.

    Raises:
        InputError: a folder with other content, with a run of another recipe, or with a recipe that cannot be read.
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
    """Writes the current recipe and environment; deletes the result of a shorter run."""
    (folder / METRICS).unlink(missing_ok=True)
    write_whole(
        {folder / RECIPE: write_yaml(to_plain(recipe)), folder / ENVIRONMENT: json.dumps(environment(), indent=2)}
    )


def check_identity(file: Path, identity: Any) -> None:
    """Writes the identity of the sources of a run, or checks that it is the same as when the run was begun.

    Raises:
        InputError: it is another one, with which the resumed run would see other rows.
    """
    text = json.dumps(identity)
    if not file.exists():
        write_whole({file: text})
    elif file.read_text(encoding="utf-8") != text:
        raise InputError(
            f"the sources of data.train have changed since the run in {str(file.parent)!r} was begun, so it cannot go "
            f"on with the same rows; put back what has changed, remove {file.name} there to go on with what there is "
            "now, or give another --output"
        )


def read_recipe(folder: Path) -> Recipe:
    """Reads the recipe in the folder of a run; keys that are newer than the run have their defaults.

    Raises:
        InputError: it is damaged.
    """
    try:
        return load_recipe(folder / RECIPE)
    except InputError as error:
        raise InputError(f"the run in {str(folder)!r} is damaged: {error}; put its {RECIPE} back") from error


def read_metrics(folder: Path) -> dict[str, Any]:
    """Reads the result of a finished run.

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
    """Returns versions, machine and command, to be saved with a result."""
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
    """Whether the run is to continue with more steps; any other difference raises `InputError`."""
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
