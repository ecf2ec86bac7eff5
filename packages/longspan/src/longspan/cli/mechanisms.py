"""`longspan mechanisms`: the available attention mechanisms."""

from dataclasses import fields
from typing import Annotated, Any

import typer

from longspan.cli.terminal import say_json

PANEL = "Attention"


def mechanisms(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the attention mechanisms with their costs and sources.

    The first column is the name that recipes, `--attention` and `LongspanConfig(attention=…)` accept. Cost counts the
    scores computed per token; T is the number of tokens and G the number of global tokens.
    """
    from longspan.attention import MECHANISMS
    from longspan.imports import load_plugins

    load_plugins()
    columns = ("bidirectional", "causal", "incremental", "cost", "source")
    rows: list[dict[str, Any]] = [
        {"name": name}
        | {key: getattr(config, key) for key in columns}
        | {"options": {field.name: field.default for field in fields(config)}}
        for name, config in MECHANISMS.items()
    ]
    if as_json:
        say_json(rows)
        return

    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("name", style="bold cyan", no_wrap=True)
    for title in ("both\nways", "causal", "token by\ntoken"):
        table.add_column(title, justify="center", no_wrap=True)
    table.add_column("scores per token, and source")
    for row in rows:
        ticks = ["✓" if row[key] else "–" for key in ("bidirectional", "causal", "incremental")]
        # Text, not str: costs and sources may contain [brackets], which are not markup here.
        table.add_row(row["name"], *ticks, Text.assemble(row["cost"], "\n", (row["source"], "dim")))
    Console().print(table)
