"""The page that lists the data sets, from the table in the code and from the recipes that name them."""

from __future__ import annotations

from longspan.data.catalogue import KNOWN
from longspan.training.shipped import recipes_by_data


def data_sets() -> str:
    """The page of the documentation that lists every data set."""
    parts = [
        "# Data sets",
        "",
        "What recipes and commands know by name: what it is, where its makers offer it, and what must lie where. "
        "Nothing is fetched, since licences are to be read first. A data set lies in the current folder, or in the one "
        "that the environment variable `LONGSPAN_DATA` names. `longspan data` lists the same, with what is here "
        "already; `longspan data --missing --json` is for programs. Where a recipe or a command misses one, the error "
        "says what to get and where to put it.",
        "",
        "Made from the table in the code by `python docs/figures.py`.",
    ]
    needed = recipes_by_data()
    for name, known in KNOWN.items():
        parts += ["", f"## {name}", "", f"{known.title[0].upper()}{known.title[1:]}.", ""]
        parts += [f"- Page: {known.page}", f"- Size: {known.size}", f"- Licence: {known.licence}"]
        parts.append(f"- In `LONGSPAN_DATA/{name}`: {known.layout}".replace("*", "\\*"))
        if known.names:
            parts.append(f"- Also named {', '.join(f'`{one}`' for one in known.names)}")
        if name in needed:
            parts.append(f"- Recipes: {', '.join(f'`{one}`' for one in needed[name])}")
    return "\n".join(parts) + "\n"
