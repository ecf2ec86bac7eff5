"""What a comparison leaves to be looked at: a page that holds everything, a table, a CSV and the plots."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longspan.compare.plots import draw_plots, picture
from longspan.compare.probes import PROBES
from longspan.compare.run import read_record, results_in
from longspan.compare.settings import Comparison
from longspan.compare.skeleton import NEAR
from longspan.compare.summary import Line, as_csv, lines_of, markdown, plain, table_of
from longspan.files import whole_file, write_whole
from longspan.pictures.pages import as_line, as_text, page_frame
from longspan.settings import from_plain, to_plain
from longspan.version import __version__

ALT = {
    "quality": "Bars of the score of each mechanism",
    "distance": "Accuracy of each mechanism by the distance of the answer",
    "price": "Score of each mechanism against its speed in training",
}


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was written.

    Attributes:
        folder: where.
        text: the table, for a terminal.
        data: settings and all results, as plain data.
    """

    folder: Path
    text: str
    data: dict[str, Any]


def write_report(folder: str | Path) -> Report:
    """Write `report.html`, `table.md`, `cells.csv` and `plots/` from the results in a folder.

    Raises:
        InputError: there is no comparison in it, matplotlib is missing, or it cannot be written.
    """
    folder = Path(folder)
    record = read_record(folder)
    comparison = from_plain(Comparison, _given(record["comparison"]))
    results = results_in(folder, comparison, record.get("steps"))
    lines = lines_of(comparison, results)
    header, rows = table_of(lines, PROBES[comparison.task].score)
    figures = draw_plots(lines, comparison.task, PROBES[comparison.task](comparison.tokens, folder).chance)
    settings = _settings(comparison, record, lines, folder)
    for name, figure in figures.items():
        with whole_file(folder / "plots" / f"{name}.png") as part:
            part.write_bytes(picture(figure, "png"))
    svgs = {name: picture(figure, "svg") for name, figure in figures.items()}
    write_whole(
        {
            folder / "table.md": markdown(header, rows) + "\n",
            folder / "cells.csv": as_csv(results),
            folder / "report.html": _page(comparison, header, rows, svgs, settings),
        }
    )
    data = {**record, "results": [to_plain(result) for result in results]}
    return Report(folder=folder, text=plain(header, rows), data=data)


def _given(comparison: dict[str, Any]) -> dict[str, Any]:
    """The comparison as it was asked for: steps and a budget are not given together."""
    return {name: value for name, value in comparison.items() if value is not None}


def _settings(comparison: Comparison, record: dict[str, Any], lines: Sequence[Line], folder: Path) -> dict[str, str]:
    """Everything that was set, and where it ran, in words."""
    skeleton, kind = comparison.skeleton, PROBES[comparison.task]
    measured = [line.as_trained for line in lines if line.as_trained is not None and line.as_trained.words]
    chance = kind(comparison.tokens, folder).chance
    clock = measured[0].words["clock"] if measured else "seconds"
    memory = "torch.cuda.max_memory_allocated" if comparison.device == "cuda" else "resident memory"
    found = {
        "task": f"{kind.name}: {kind.about()}",
        "rows": f"{comparison.tokens:,} tokens each at most, {comparison.rows} in a batch",
        "training": f"{record.get('steps') or 0:,} steps, the same for all, of AdamW at {comparison.learning_rate:g} "
        "(a tenth of the steps to rise, then linearly to 0; β₂ = 0.98; gradients cut at 1)",
        "seeds": f"{comparison.seeds}, for weights and rows; row k of a seed is the same for every mechanism",
        "score": f"{kind.score} on {comparison.held_out:,} held-out rows, the same for all",
        "chance": "not known" if chance is None else f"{chance:.3f}",
        "skeleton": f"{skeleton.layers} blocks, {skeleton.stack}, width {skeleton.width}, {skeleton.heads} heads, "
        f"feed-forward {skeleton.feed_forward} (adjusted to equal weights within {NEAR:.0%}), pre-norm, sinusoidal "
        "positions, no dropout",
        "budget": "none" if comparison.budget is None else f"{comparison.budget:,.0f} s",
        "speed": f"median of repeated runs, in {clock}; inference is a forward pass, training a whole step with AdamW; "
        "the table's with the batches of training, the curves' with one row",
        "memory": f"peak above what the process held before, its weights not counted: {memory}",
        "machine": measured[0].words["machine"] if measured else "–",
        "version": f"longspan {__version__}",
    }
    found |= record.get("documents", {})
    for line in lines:
        if line.as_trained is not None and line.as_trained.words:
            words = line.as_trained.words
            found[line.mechanism] = f"{words['mechanism']}; {words['form']}; global tokens: {words['global_tokens']}"
    return found


# The page -------------------------------------------------------------------------------------------------------------


def _page(
    comparison: Comparison, header: list[str], rows: list[list[str]], plots: dict[str, bytes], settings: dict[str, str]
) -> str:
    title = f"{len(rows)} attention mechanisms on {comparison.task}"
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    body = [
        f"<header>\n<h1>{as_line(title)}</h1>\n<p>{as_line(settings['task'].partition(': ')[2])}</p>\n",
        f'<p class="quiet">{as_line(settings["training"])} · {as_line(settings["machine"])}</p>\n</header>\n<main>\n',
        '<h2>Table</h2>\n<div class="wide" tabindex="0" role="region" aria-label="Table">\n',
        f"{_table(header[:-1], [row[:-1] for row in rows])}</div>\n",
        '<p class="quiet">Best first. Speed and memory are those of the batches of training.</p>\n',
        f"{_notes(rows)}",
        f'<h2>Plots</h2>\n<div class="plots">\n{"".join(_figures(plots))}</div>\n',
        f'<h2>Settings</h2>\n<div class="wide">\n{_setting_table(settings)}</div>\n</main>\n',
    ]
    return page_frame(title, style, body, pictures=True)


def _table(header: list[str], rows: list[list[str]]) -> str:
    best = {column: _best(header[column], [row[column] for row in rows]) for column in range(1, 7)}
    head = "".join(f'<th scope="col">{as_line(name)}</th>' for name in header)
    lines = []
    for row in rows:
        cells = [f'<th scope="row">{as_line(row[0])}</th>']
        for column, cell in enumerate(row[1:], 1):
            kind = ' class="best"' if cell == best.get(column) else ""
            cells.append(f"<td{kind}>{as_line(cell)}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>\n")
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{''.join(lines)}</tbody>\n</table>\n"


def _notes(rows: list[list[str]]) -> str:
    """What went otherwise than with the others, each on a line."""
    found = "".join(f"<li><b>{as_line(row[0])}</b>: {as_line(row[-1])}</li>\n" for row in rows if row[-1])
    return f"<ul>\n{found}</ul>\n" if found else ""


def _best(name: str, cells: list[str]) -> str | None:
    """The best cell of a column, where that has a meaning."""
    numbers = {cell: float(cell.replace(",", "")) for cell in cells if cell != "–"}
    if len(numbers) < 2 or name.startswith("±"):
        return None
    higher = name == "accuracy" or name.startswith("tokens/s")
    return (max if higher else min)(numbers, key=numbers.__getitem__)


def _figures(plots: dict[str, bytes]) -> Iterator[str]:
    for name, svg in plots.items():
        alt = ALT.get(name, f"{name.replace('-', ', ')} of each mechanism by length")
        data = base64.b64encode(svg).decode()
        yield f'<figure><img alt="{as_text(alt)}" src="data:image/svg+xml;base64,{data}"></figure>\n'


def _setting_table(settings: dict[str, str]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{as_line(key)}</th><td>{as_line(text)}</td></tr>\n' for key, text in settings.items()
    )
    return f'<table class="settings">\n<tbody>\n{rows}</tbody>\n</table>\n'
