"""Finds and reads recipes: those of packages by name, others by path, and the one that a recipe `extends`.

```yaml
extends: led-arxiv-4k                 # a recipe of the package, or a path beside this file such as ./base.yaml
name: meetings
data: {train: meetings.csv, validation: meetings.jsonl}
model: {attention: {left_tokens: 128}}
```

The extended recipe must be complete itself. `name`, `about` and `published` are not inherited. Everything else is, and
the recipe overrides it: mappings are merged key by key; lists and single values, including null, are replaced. A spec
that names another mechanism, stack, head or task replaces the whole spec, since its options differ.
"""

from __future__ import annotations

import os
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from longspan.data.catalogue import known_name
from longspan.errors import InputError
from longspan.imports import added
from longspan.plain_yaml import read_yaml_file
from longspan.settings import show

ENDINGS = (".yaml", ".yml")
EXTENDS = "extends"
OWN = ("name", "about", "published")
"""Keys that are never inherited."""
KINDS = {"task": "name", "attention": "mechanism", "decoder_attention": "mechanism", "stack": "stack", "head": "head"}
"""Key of a spec → the key inside it that determines its options."""


@cache
def recipe_folders() -> tuple[Path, ...]:
    """Returns the recipe folders of all installed packages, cached.

    A package has them in its folder `recipes`, with a folder for each system, and declares an entry point in the group
    `longspan.recipes` with its module.
    """
    places = [find_spec(entry.value) for entry in added("recipes")]
    return tuple(Path(root, "recipes") for place in places if place for root in place.submodule_search_locations or ())


def shipped_recipes() -> dict[str, Path]:
    """Returns name → file, in order of the names; the folder of the file is the recipe's system."""
    paths = (path for folder in recipe_folders() for path in folder.rglob("*.yaml"))
    return {path.stem: path for path in sorted(paths, key=lambda path: path.stem)}


def recipes_by_data() -> dict[str, list[str]]:
    """Returns name in `longspan.data.catalogue.KNOWN` → the shipped recipes that use it."""
    readers: dict[str, list[str]] = {}
    for recipe, path in shipped_recipes().items():
        data = read_recipe(path)["data"]
        for name in dict.fromkeys(known_name(source) for source in (*data["train"], *data["validation"])):
            if name is not None:
                readers.setdefault(name, []).append(recipe)
    return readers


def find_recipe(recipe: str | Path) -> Path:
    """Returns the file of a recipe that is named on the command line.

    A `Path`, and a string with a separator or the ending .yaml or .yml, is a file. Any other string is the name of a
    shipped recipe, for any content of the current folder, so that a command means the same everywhere.
    """
    text = str(recipe)
    if isinstance(recipe, Path) or _is_path(text):
        return Path(recipe)
    known = shipped_recipes()
    if text in known:
        return known[text]
    if os.path.isfile(text):  # False, too, for a name that no file can have
        raise InputError(f"recipe {show(text)} is no recipe of the package; for the file here write ./{text}")
    raise InputError(f"recipe {show(text)} is no .yaml file and no recipe of the package; {_near(text)}")


def read_recipe(path: Path) -> dict[str, Any]:
    """Returns the plain data of a recipe file, merged over the recipe that it extends; not checked yet.

    Raises:
        InputError: the file, or the extended one, does not exist or has no mapping; the extended file is not a recipe,
            or extends another one.
    """
    what = f"recipe {show(str(path))}"
    if not os.path.isfile(path):  # False, too, for a name that no file can have
        inside = f", or the name {path.stem!r}" if path.stem in shipped_recipes() else ""
        raise InputError(f"{what} is not a file; give the path of a .yaml file{inside}")
    data = _mapping(path, what)
    if EXTENDS not in data:
        return data
    name = data.pop(EXTENDS)
    base = _mapping(_extended_file(name, path, what), f"{what} extends {show(name)}: this")
    if EXTENDS in base:
        raise InputError(
            f"{what} extends {show(name)}, which itself extends {show(base[EXTENDS])}; extend a recipe that is written "
            "in full"
        )
    own = {key: data.pop(key) for key in OWN if key in data}
    return {**own, **merged({key: value for key, value in base.items() if key not in OWN}, data)}


def merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Merges `own` over `base`: mappings key by key, other values are replaced."""
    result = dict(base)
    for key, value in own.items():
        before, kind = base.get(key), KINDS.get(key.rpartition(".")[2])  # keys of `smoke` are dotted
        if isinstance(before, dict) and isinstance(value, dict):
            another = kind in value and value[kind] != before.get(kind)  # whose options differ
            result[key] = value if another else merged(before, value)
        else:
            result[key] = value
    return result


def _extended_file(name: Any, path: Path, what: str) -> Path:
    """Returns the file of the recipe that the recipe at `path` extends under `name`."""
    remedy = "the name of a recipe of the package, or the path of a .yaml file in the same folder"
    if not isinstance(name, str) or not name:
        raise InputError(f"{what} extends {show(name)}; give {remedy}")
    if not _is_path(name):
        known = shipped_recipes()
        if name not in known:
            beside = os.path.isfile(path.parent / name)
            hint = f"for the file in the same folder write ./{name}" if beside else _near(name)
            raise InputError(f"{what} extends {show(name)}, which is no recipe of the package; {hint}")
        file = known[name]
    else:
        file = path.parent / name
        if not os.path.isfile(file):
            raise InputError(f"{what} extends {show(name)}, which is not a file in the same folder; give {remedy}")
    if os.path.samefile(file, path):
        raise InputError(f"{what} extends itself; give {remedy}")
    return file


def _mapping(path: Path, what: str) -> dict[str, Any]:
    data = read_yaml_file(path, what)
    if not isinstance(data, dict):
        raise InputError(f"{what} holds no mapping of keys to values; `longspan recipes NAME` prints one")
    return data


def _is_path(text: str) -> bool:
    return text.lower().endswith(ENDINGS) or os.sep in text or "/" in text


def _near(name: str) -> str:
    matches = get_close_matches(name[:100], shipped_recipes(), n=1)
    return f"did you mean {matches[0]!r}" if matches else "`longspan recipes` lists them"
