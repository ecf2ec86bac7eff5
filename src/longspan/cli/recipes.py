"""`longspan recipes`: the experiments that come with the package."""

from typing import Annotated

import typer

from longspan.cli.terminal import say, say_json
from longspan.errors import InputError


def recipes(
    show: Annotated[str | None, typer.Option(metavar="NAME", help="Print this recipe, to save and change it.")] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of recipes, for editors.")] = False,
) -> None:
    """List the recipes that come with the package, or print one of them.

    Examples: `longspan recipes`, `longspan recipes --show sentence-scorer > my.yaml`,
    `longspan recipes --schema > recipe.schema.json`.
    """
    from longspan.training.shipped import find_recipe, shipped_recipes

    if show is not None and schema:
        raise InputError(f"--show {show} and --schema print different things; give one of them")
    if schema:
        from longspan.training.recipe_schema import recipe_schema

        say_json(recipe_schema())
    elif show is not None:
        if show not in shipped_recipes():
            find_recipe(show)  # says what is wrong with the name
            raise InputError(f"--show {show} is a file; give the name of a recipe of the package")
        say(shipped_recipes()[show].read_text(encoding="utf-8").removesuffix("\n"))
    else:
        _list()


def _list() -> None:
    """A line for each recipe, and one for the row that it aims at."""
    from longspan.training.recipe_file import read_recipe
    from longspan.training.shipped import shipped_recipes

    for name, path in shipped_recipes().items():
        data = read_recipe(path)
        about = str(data.get("about", "")).strip()
        say(f"{name}\n    {about.split('. ')[0].rstrip('.')}")
        published = data.get("published")
        if published:
            scores = ", ".join(f"{score} {value}" for score, value in (published.get("scores") or {}).items())
            say(f"    published: {published['source']}{f' ({scores})' if scores else ''}")
