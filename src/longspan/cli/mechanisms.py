"""`longspan mechanisms`: the attention mechanisms one can put into a model."""

from typing import Annotated, Any

import typer

from longspan.errors import InputError


def mechanisms(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the attention mechanisms, what each costs and where it was published.

    The first column is the name that recipes, `--attention` and `LongspanConfig(attention=…)` accept. Cost counts the
    scores computed per token; `T` is the number of tokens and `globals` the number of global tokens.
    """
    from longspan.attention import MECHANISMS

    rows = [_row(name, config) for name, config in MECHANISMS.items()]
    if as_json:
        import json

        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    _print_table(rows)


def _row(name: str, config: Any) -> dict[str, Any]:
    from dataclasses import fields

    return {
        "name": name,
        "bidirectional": config.bidirectional,
        "causal": config.causal,
        "incremental": config.incremental,
        "cost": config.cost,
        "source": config.source,
        "options": {field.name: field.default for field in fields(config)},
    }


def _print_table(rows: list[dict[str, Any]]) -> None:
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError as error:
        raise InputError("the table needs the 'cli' extra; install it with: pip install 'longspan[cli]'") from error
    table = Table(title="Attention mechanisms", title_justify="left", header_style="bold")
    table.add_column("name", style="bold cyan", no_wrap=True)
    table.add_column("reads", no_wrap=True)
    table.add_column("token by token", no_wrap=True)
    table.add_column("scores per token")
    table.add_column("source", style="dim")
    for row in rows:
        directions = [word for word, has in (("both ways", row["bidirectional"]), ("causal", row["causal"])) if has]
        reads, steps = " or ".join(directions), "yes" if row["incremental"] else "no"
        table.add_row(row["name"], reads, steps, row["cost"], row["source"])
    # Costs and sources may hold [brackets], which are text here, not markup.
    Console(markup=False).print(table)
