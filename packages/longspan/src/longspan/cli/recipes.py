"""`longspan recipes`: the experiments that come with the package."""

from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from longspan.cli.terminal import say, say_json
from longspan.errors import InputError

PANEL = "Models"


def recipes(
    name: Annotated[
        str | None, typer.Argument(help="Print this recipe, or that of a .yaml file, with what it extends written out.")
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of recipes, for editors.")] = False,
) -> None:
    """List the recipes that come with the package by system, or print one of them.

    Examples: `longspan recipes`, `longspan recipes sentence-scorer > my.yaml`, `longspan recipes --schema >
    recipe.schema.json`.
    """
    if name is not None and schema:
        raise InputError(f"{name} and --schema print different things; give one of them")
    if schema:
        from longspan.training.recipe_schema import recipe_schema

        say_json(recipe_schema())
    elif name is not None:
        say(_resolved(name).removesuffix("\n"))
    else:
        _list()


def _resolved(name: str) -> str:
    """Returns a recipe as it is in its file, or merged with the recipe that it extends."""
    from longspan.plain_yaml import read_yaml_file, write_yaml
    from longspan.training.shipped import EXTENDS, find_recipe, read_recipe

    path = find_recipe(name)
    data = read_recipe(path)
    written = read_yaml_file(path, f"recipe {name!r}")
    if EXTENDS not in written:
        return path.read_text(encoding="utf-8-sig")
    return f"# Extends {written[EXTENDS]}, whose keys are written out here.\n{write_yaml(data)}"


def _list() -> None:
    """Print the recipes of each system: a line for each, and one for the published result that it reproduces."""
    from longspan.training.shipped import read_recipe, shipped_recipes

    def system(item: tuple[str, Path]) -> str:
        return item[1].parent.name

    for folder, members in groupby(sorted(shipped_recipes().items(), key=system), key=system):
        say(folder)
        for name, path in members:
            data = read_recipe(path)
            about = str(data.get("about", "")).strip()
            say(f"  {name}\n      {about.split('. ')[0].rstrip('.')}")
            published = data.get("published")
            if published:
                scores = ", ".join(f"{score} {value}" for score, value in (published.get("scores") or {}).items())
                say(f"      published: {published['source']}{f' ({scores})' if scores else ''}")
