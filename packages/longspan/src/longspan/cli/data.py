"""`longspan data`: the data sets that recipes name, and their sources."""

from typing import Annotated, Any

import typer

from longspan.cli.terminal import say, say_json
from longspan.errors import InputError

PANEL = "Models"


def data(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these.", show_default="all")
    ] = None,
    missing: Annotated[bool, typer.Option("--missing", help="Only those that are not here.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the data sets that recipes and commands know by name.

    For each: its description, size, licence, web page, the expected files, whether they exist, and the recipes of the
    package that read it. Nothing is downloaded: read a licence before you use its data. A data set is in the current
    folder, or in that of the environment variable LONGSPAN_DATA.

    Examples: `longspan data`, `longspan data arxiv-dataset`, `longspan data --missing --json`.
    """
    from longspan.data.catalogue import KNOWN, known_name, place_of
    from longspan.settings import near, show
    from longspan.training.shipped import recipes_by_data

    chosen = list(KNOWN)
    if names:
        chosen = list(dict.fromkeys(known_name(name) or name for name in names))
        for name in chosen:
            if name not in KNOWN:
                raise InputError(f"data set {show(name)} is unknown; {near(name, list(KNOWN))}")
    needed = recipes_by_data()
    rows: list[dict[str, Any]] = []
    for name in chosen:
        known, place = KNOWN[name], place_of(name)
        about = {key: getattr(known, key) for key in ("names", "title", "size", "licence", "page", "layout")}
        record = {"place": None if place is None else str(place), "recipes": needed.get(name, [])}
        if place is None or not missing:
            rows.append({"name": name, **about, **record})
    if json:
        say_json(rows)
    else:
        say("\n\n".join(map(_told, rows)) or "none is missing")


def _told(row: dict[str, Any]) -> str:
    also = f", also {', '.join(row['names'])}" if row["names"] else ""
    lines = [
        f"{row['name']}{also}: {row['place'] or 'missing'}",
        row["title"],
        f"size: {row['size']}; licence: {row['licence']}",
        row["page"],
        f"LONGSPAN_DATA/{row['name']}: {row['layout']}",
    ]
    if row["recipes"]:
        lines.append(f"recipes: {', '.join(row['recipes'])}")
    return "\n    ".join(lines)
