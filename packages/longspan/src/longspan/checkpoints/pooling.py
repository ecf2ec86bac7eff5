"""Pooling of token states in sentence-transformers folders: `modules.json`, `1_Pooling/config.json`.

The files are small JSON; weights of further modules (such as a dense layer after the pooling) are refused here, and
read by `longspan.checkpoints.sentence_modules`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import Any, Literal, cast

from longspan.checkpoints.folder import WEIGHTS
from longspan.errors import InputError
from longspan.model_files import check_file, read_json

MODULES, TEXT, SETTINGS = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
KNOWN = ("Transformer", "Pooling", "Normalize")
MODES = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_max_tokens": "max"}
"""A switch of `1_Pooling/config.json` → its mode; newer files name the mode directly."""


@dataclass(frozen=True, kw_only=True)
class Pooling:
    """How states become one vector.

    Attributes:
        mode: the "mean" over real tokens, including special ones, their maximum ("max"), or the first token's state
            ("cls").
        lower: whether texts are lower-cased.
    """

    mode: Literal["mean", "cls", "max"] = "mean"
    lower: bool = False


def pooling_of(source: str | Path) -> Pooling:
    """Returns the pooling of an encoder's folder or Hub name; the mean if it defines none.

    Raises:
        InputError: a file is damaged, or names unknown modules or modes.
    """
    listed = checkpoint_file(source, MODULES)
    if listed is None:
        return Pooling()
    kinds = {kind_of(module): module for module in modules_in(listed)}
    if other := [kind for kind in kinds if kind not in KNOWN]:
        raise InputError(
            f"model '{source}' is a sentence encoder with the module {other[0]!r}, which is not read here; use "
            "--encoder (encoder=… in Python), which reads all of its files"
        )
    text = checkpoint_file(source, TEXT)
    lower = text is not None and bool(read_json(text).get("do_lower_case"))
    place = str(kinds.get("Pooling", {}).get("path", ""))
    file = checkpoint_file(source, f"{place}/config.json") if place else None
    return Pooling(lower=lower) if file is None else Pooling(mode=_mode(read_json(file), source), lower=lower)


def carry_pooling(source: str | Path, folder: Path, max_tokens: int) -> bool:
    """Copies the pooling files of `source`, including weights of layers after the pooling, into the folder of a model
    made from it, which reads `max_tokens` tokens. Returns whether there are any."""
    listed = checkpoint_file(source, MODULES)
    if listed is None:
        return False
    modules = modules_in(listed)
    (folder / MODULES).write_text(json.dumps(modules, indent=2), encoding="utf-8")
    names = [f"{module['path']}/config.json" for module in modules if module.get("path")]
    for name in (*names, TEXT, SETTINGS):
        if (file := checkpoint_file(source, name)) is not None:
            settings = read_json(file) | ({"max_seq_length": max_tokens} if name == TEXT else {})
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(json.dumps(settings, indent=2), encoding="utf-8")
    for place in [module["path"] for module in modules if module.get("path") and kind_of(module) != "Transformer"]:
        if (file := checkpoint_file(source, f"{place}/{WEIGHTS}")) is not None:
            (folder / place).mkdir(exist_ok=True)
            copyfile(file, folder / place / WEIGHTS)
    return True


def kind_of(module: Mapping[str, Any]) -> str:
    """Returns the class name of a module, such as "Pooling"."""
    return str(module.get("type", "")).rpartition(".")[2]


def _mode(config: Mapping[str, Any], source: str | Path) -> Literal["mean", "cls", "max"]:
    mode_name = config.get("pooling_mode")
    chosen = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    named = [mode_name] if isinstance(mode_name, str) else [MODES.get(name, name) for name in chosen]
    if len(named) != 1 or named[0] not in MODES.values():
        raise InputError(
            f"model '{source}' pools by {' and '.join(map(repr, named)) or 'nothing'}; known are "
            f"{', '.join(map(repr, MODES.values()))}, one of them alone; --encoder (encoder=… in Python) "
            "reads others too"
        )
    return cast(Literal["mean", "cls", "max"], named[0])


def modules_in(file: Path) -> list[dict[str, Any]]:
    """Returns the listed modules, whose folders are next to the list."""
    check_file(file)
    try:
        modules = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"'{file}' is damaged: it is not valid JSON; fetch the checkpoint again") from error
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise InputError(f"'{file}' is damaged: it holds no list of modules; fetch the checkpoint again")
    for module in modules:
        place = module.get("path", "")
        if not isinstance(place, str) or Path(place).name != place or place == "..":
            raise InputError(
                f"'{file}' names the folder {place!r}, which does not exist next to it; fetch the checkpoint again"
            )
    return modules


def checkpoint_file(source: str | Path, name: str) -> Path | None:
    """Returns a file of a folder or of a Hub repository; None if it does not exist."""
    folder = Path(os.path.expanduser(source))
    if folder.is_dir():
        return folder / name if (folder / name).exists() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return Path(hf_hub_download(str(source), name))
    except EntryNotFoundError:
        return None
