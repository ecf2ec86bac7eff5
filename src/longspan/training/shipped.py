"""The recipes that come with the package, by name."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

from longspan.data.catalogue import known_name
from longspan.errors import InputError
from longspan.plain_yaml import read_yaml_file
from longspan.settings import show

ENDINGS = (".yaml", ".yml")


def recipe_folder() -> Path:
    """Where the recipes lie: in the package, or at the top of a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parents[1] / "recipes"


def shipped_recipes() -> dict[str, Path]:
    """Name → file, in order of the names."""
    return {path.stem: path for path in sorted(recipe_folder().rglob("*.yaml"), key=lambda path: path.stem)}


def recipes_by_data() -> dict[str, list[str]]:
    """Name in `longspan.data.catalogue.KNOWN` → the shipped recipes that read it."""
    found: dict[str, list[str]] = {}
    for recipe, path in shipped_recipes().items():
        data = read_yaml_file(path, f"recipe {recipe!r}")["data"]
        for name in dict.fromkeys(known_name(source) for source in (*data["train"], *data["validation"])):
            if name is not None:
                found.setdefault(name, []).append(recipe)
    return found


def find_recipe(recipe: str | Path) -> Path:
    """The file of a recipe that is named on the command line.

    A `Path`, and a text with a separator or the ending .yaml or .yml, is a file. Any other text is the name of a recipe
    that comes with the package, whatever lies in the current folder, so that a command means the same everywhere.
    """
    text = str(recipe)
    if isinstance(recipe, Path) or text.lower().endswith(ENDINGS) or os.sep in text or "/" in text:
        return Path(recipe)
    known = shipped_recipes()
    if text in known:
        return known[text]
    if os.path.isfile(text):  # False, too, for a name that no file can have
        raise InputError(f"recipe {show(text)} is no recipe of the package; for the file here write ./{text}")
    near = get_close_matches(text[:100], known, n=1)
    hint = f"did you mean {near[0]!r}" if near else "`longspan recipes` lists them"
    raise InputError(f"recipe {show(text)} is no .yaml file and no recipe of the package; {hint}")
