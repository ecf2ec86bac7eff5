"""The report of a comparison: a self-contained page, a table, a CSV and the plots.

Each plot shows one thing, and is readable at the width of a phone. Plots need the 'pictures' extra.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longspan.compare.probes import PROBES
from longspan.compare.run import read_record, results_in
from longspan.compare.settings import Comparison
from longspan.compare.skeleton import NEAR
from longspan.compare.summary import CHANCE, CONFIDENCE, MEBI, Line, as_csv, lines_of, markdown, plain, table_of
from longspan.files import whole_file, write_whole
from longspan.imports import require
from longspan.pictures.frame import as_line, as_text, page_frame
from longspan.pictures.patterns import COLOURS, INK, PAPER, QUIET, literal
from longspan.settings import from_plain, to_plain
from longspan.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 5.0
"""Inches; at the width of a phone, letters of 9 points are still readable."""
FEWEST_ANSWERS = 20
"""Distances with fewer answers are left out: their accuracy is random."""
PALE = "#c9ced6"
"""Colour of scores at chance."""
STYLES = ("-", "--", ":", "-.")
MARKS = "osD^vPX*"
CURVES = {
    "training": ("train_tokens_per_second", "Training speed", "tokens per second", 1),
    "inference": ("inference_tokens_per_second", "Inference speed", "tokens per second", 1),
    "memory-training": ("train_bytes", "Peak memory, training", "MiB", MEBI),
    "memory-inference": ("inference_bytes", "Peak memory, inference", "MiB", MEBI),
}
"""Plot → number, title, unit, divisor."""


def draw_plots(lines: Sequence[Line], task: str, chance: float | None = None) -> dict[str, Figure]:
    """Returns plots by name; plots without numbers are left out. A mechanism has the same style in all of them.

    `chance` is the score of guessing without reading the input.
    """
    looks: dict[str, dict[str, Any]] = {}  # also distinguishable in grey
    for number, name in enumerate(sorted(line.label for line in lines)):
        turn = number // len(COLOURS)
        style = {"color": COLOURS[number % len(COLOURS)], "linestyle": STYLES[turn % len(STYLES)]}
        marks = {"marker": MARKS[(number + turn) % len(MARKS)], "markersize": 4, "linewidth": 1.6}
        looks[name] = style | marks
    plots: dict[str, Figure | None] = {
        "quality": _quality(lines, task, chance),
        "distance": _distances(lines, looks, chance),
        "price": _price(lines, task, looks),
    }
    for name, (number, title, unit, divisor) in CURVES.items():
        plots[name] = _curve(lines, looks, number, title, unit, divisor)
    return {name: figure for name, figure in plots.items() if figure is not None}


def picture(figure: Figure, kind: str) -> bytes:
    """Render a figure as "svg" or "png", with the same bytes for the same numbers."""
    matplotlib = require("matplotlib", extra="pictures", purpose="drawing a plot")
    written = BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "longspan"}):
        literal(figure).savefig(
            written, format=kind, dpi=150, facecolor="white", metadata={"Date": None} if kind == "svg" else None
        )
    return written.getvalue()


def _quality(lines: Sequence[Line], task: str, chance: float | None) -> Figure | None:
    """Plot the scores as bars, pale if they are at chance, each seed as a dot, chance as a line."""
    shown = [line for line in lines if line.score is not None][::-1]
    if not shown:
        return None
    figure, axes = _new_figure(f"{_capital(PROBES[task].score)}, {task}", height=1.0 + 0.3 * len(shown))
    colours = [PALE if line.at_chance else COLOURS[0] for line in shown]
    axes.barh([line.label for line in shown], [line.score or 0.0 for line in shown], color=colours, height=0.66)
    for place, line in enumerate(shown):
        axes.plot(line.scores, [place] * len(line.scores), "o", color=INK, markersize=3)
        axes.annotate(
            f"{line.score:.3f}",
            (max(line.scores), place),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
        )
    if chance is not None:
        axes.axvline(chance, color="#e0a030", linewidth=1.4, linestyle="--")
        axes.set_xlabel(f"dashed: chance, {chance:.3f}", fontsize=9, color=QUIET)
    axes.set_xlim(0, 1.16 * max(max(line.scores) for line in shown) or 1.0)
    axes.tick_params(axis="y", labelcolor=INK, length=0)
    return figure


def _distances(lines: Sequence[Line], looks: dict[str, dict[str, Any]], chance: float | None) -> Figure | None:
    """Plot accuracy by distance to the answer, if there is more than one distance."""
    shown = [line for line in lines if len(line.by_distance) > 1]
    if not shown:
        return None
    figure, axes = _new_figure("Accuracy by distance", legend=len(shown) + 1)
    for line in shown:
        ends = sorted(end for end, (_, asked) in line.by_distance.items() if asked >= FEWEST_ANSWERS)
        shares = [line.by_distance[end][0] / line.by_distance[end][1] for end in ends]
        axes.plot(ends, shares, label=line.label, **looks[line.label])
    if chance is not None:
        axes.axhline(chance, color=QUIET, linewidth=1, linestyle=":", label="chance")
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("tokens back, up to", fontsize=9, color=QUIET)
    _powers(axes, sorted({end for line in shown for end in line.by_distance if end > 1}))
    _legend(figure, axes)
    return figure


def _price(lines: Sequence[Line], task: str, looks: dict[str, dict[str, Any]]) -> Figure | None:
    """Plot the score against the speed of training."""
    shown = [line for line in lines if line.score is not None and line.number("train_tokens_per_second")]
    if len(shown) < 2:
        return None
    figure, axes = _new_figure(f"{_capital(PROBES[task].score)} against speed", legend=len(shown))
    for line in shown:
        look = looks[line.label] | {"linestyle": "", "markersize": 7}
        speed, score = line.number("train_tokens_per_second") or 0.0, line.score or 0.0
        axes.plot([speed], [score], label=line.label, **look)
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xlabel("tokens per second in training", fontsize=9, color=QUIET)
    _plain(axes.xaxis)
    _legend(figure, axes)
    return figure


def _curve(
    lines: Sequence[Line], looks: dict[str, dict[str, Any]], number: str, title: str, unit: str, divisor: int
) -> Figure | None:
    """Plot a number against the length of a single row."""

    def points(line: Line) -> list[tuple[int, float]]:
        curve = ((length, result.numbers.get(number)) for length, result in sorted(line.curve.items()))
        return [(length, value / divisor) for length, value in curve if value]

    shown = [(line, points(line)) for line in lines]
    shown = [(line, curve) for line, curve in shown if curve]
    lengths = sorted({length for _, curve in shown for length, _ in curve})
    if len(lengths) < 2:
        return None
    figure, axes = _new_figure(f"{title}, {unit}", legend=len(shown))
    for line, curve in shown:
        axes.plot(*zip(*curve, strict=True), label=line.label, **looks[line.label])
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_xlabel("tokens in a row", fontsize=9, color=QUIET)
    _powers(axes, lengths)
    _plain(axes.yaxis)
    _legend(figure, axes)
    return figure


def _new_figure(title: str, *, height: float = 3.3, legend: int = 0) -> tuple[Figure, Axes]:
    """Returns a figure with one panel, and room for a legend of `legend` names below it."""
    figures = require("matplotlib.figure", extra="pictures", purpose="drawing a plot")
    below = 0.25 * -(-legend // 3) + (0.1 if legend else 0)
    figure = figures.Figure(figsize=(WIDTH, height + below), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=10.5, color=INK, loc="left")
    axes.set_facecolor(PAPER)
    axes.grid(color="white", linewidth=1)
    axes.set_axisbelow(True)
    axes.tick_params(colors=QUIET, labelsize=9, length=2, width=0.6)
    axes.spines[:].set_visible(False)
    return figure, axes


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _powers(axes: Axes, lengths: Sequence[int]) -> None:
    """Label lengths on a logarithmic axis, in thousands, at most seven of them."""
    axes.set_xscale("log", base=2)
    named = lengths[:: -(-len(lengths) // 7)]
    axes.set_xticks(
        named, [f"{length // 1024}k" if length >= 1024 and not length % 1024 else str(length) for length in named]
    )
    axes.xaxis.set_minor_locator(require("matplotlib.ticker", extra="pictures", purpose="drawing a plot").NullLocator())


def _plain(axis: Any) -> None:
    """Label a logarithmic axis with plain numbers."""
    ticker = require("matplotlib.ticker", extra="pictures", purpose="drawing a plot")
    axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0), numticks=8))
    named = ticker.FuncFormatter(lambda value, _: f"{value:,g}" if value < 10_000 else f"{value / 1000:,g}k")
    axis.set_major_formatter(named)


def _legend(figure: Figure, axes: Axes) -> None:
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=8.5, labelcolor=INK, frameon=False)


ALT = {
    "quality": "Bars of the score of each mechanism",
    "distance": "Accuracy of each mechanism by the distance of the answer",
    "price": "Score of each mechanism against its speed in training",
}


@dataclass(frozen=True, kw_only=True)
class Report:
    """The files of a report.

    Attributes:
        folder: of the comparison.
        text: the table, for a terminal.
        data: settings and all results, as plain data.
    """

    folder: Path
    text: str
    data: dict[str, Any]


def write_report(folder: str | Path) -> Report:
    """Write `report.html`, `table.md`, `cells.csv` and `plots/` from the results in a folder.

    Raises:
        InputError: there is no comparison in the folder, matplotlib is missing, or the report cannot be written.
    """
    folder = Path(folder)
    record = read_record(folder)
    # As it was requested: steps and a budget cannot be specified together.
    specified = {name: value for name, value in record["comparison"].items() if value is not None}
    comparison = from_plain(Comparison, specified)
    results = results_in(folder, comparison, record.get("steps"))
    chance = PROBES[comparison.task](comparison.tokens, folder).chance
    lines = lines_of(comparison, results, chance)
    header, rows = table_of(lines, PROBES[comparison.task].score)
    figures = draw_plots(lines, comparison.task, chance)
    settings = _settings(comparison, record, lines, chance)
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


def _settings(
    comparison: Comparison, record: dict[str, Any], lines: Sequence[Line], chance: float | None
) -> dict[str, str]:
    """Returns all settings and the machine, in words."""
    skeleton, kind = comparison.skeleton, PROBES[comparison.task]
    measured = [line.as_trained for line in lines if line.as_trained is not None and line.as_trained.words]
    clock = measured[0].words["clock"] if measured else "seconds"
    memory = "torch.cuda.max_memory_allocated" if comparison.device == "cuda" else "resident memory"
    settings = {
        "task": f"{kind.name}: {kind.about()}",
        "rows": f"{comparison.tokens:,} tokens each at most, {comparison.rows} in a batch",
        "training": f"{record.get('steps') or 0:,} steps, the same for all, of AdamW at {comparison.learning_rate:g} "
        "(a tenth of the steps to rise, then linearly to 0; β₂ = 0.98; gradients cut at 1)",
        "seeds": f"{comparison.seeds}, for weights and rows; row k of a seed is the same for every mechanism",
        "score": f"{kind.score} on {comparison.held_out:,} held-out rows, the same for all",
        "chance": "not known"
        if chance is None
        else f"{chance:.3f}; what is not above it, by an interval that holds "
        f"{CONFIDENCE:.0%} for all mechanisms together, is not ranked",
        "skeleton": f"{skeleton.layers} blocks, {skeleton.stack}, width {skeleton.width}, {skeleton.heads} heads, "
        f"feed-forward {skeleton.feed_forward} (adjusted to equal weights within {NEAR:.0%}), pre-norm, sinusoidal "
        f"positions, no dropout, {skeleton.memory_tokens or 'no'} memory tokens",
        "budget": "none" if comparison.budget is None else f"{comparison.budget:,.0f} s",
        "speed": f"median of repeated runs, in {clock}; inference is a forward pass, training a whole step with AdamW; "
        "the table's with the batches of training, the curves' with one row",
        "memory": f"peak above what the process held before, its weights not counted: {memory}",
        "machine": measured[0].words["machine"] if measured else "–",
        "version": f"longspan {__version__}",
    }
    settings |= record.get("documents", {})
    for line in lines:
        if line.as_trained is not None and line.as_trained.words:
            words = line.as_trained.words
            settings[line.label] = f"{words['mechanism']}; {words['form']}; global tokens: {words['global_tokens']}"
    return settings


# The page -------------------------------------------------------------------------------------------------------------


def _page(
    comparison: Comparison, header: list[str], rows: list[list[str]], plots: dict[str, bytes], settings: dict[str, str]
) -> str:
    title = f"{len(rows)} attention mechanisms on {comparison.task}"
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    # Notes on mechanisms, each on a line.
    notes = "".join(f"<li><b>{as_line(row[0])}</b>: {as_line(row[-1])}</li>\n" for row in rows if row[-1])
    figures = []
    for name, svg in plots.items():
        alt = ALT.get(name, f"{name.replace('-', ', ')} of each mechanism by length")
        data = base64.b64encode(svg).decode()
        figures.append(f'<figure><img alt="{as_text(alt)}" src="data:image/svg+xml;base64,{data}"></figure>\n')
    setting_rows = "".join(
        f'<tr><th scope="row">{as_line(key)}</th><td>{as_line(text)}</td></tr>\n' for key, text in settings.items()
    )
    setting_table = f'<table class="settings">\n<tbody>\n{setting_rows}</tbody>\n</table>\n'
    body = [
        f"<header>\n<h1>{as_line(title)}</h1>\n<p>{as_line(settings['task'].partition(': ')[2])}</p>\n",
        f'<p class="quiet">{as_line(settings["training"])} · {as_line(settings["machine"])}</p>\n</header>\n<main>\n',
        '<h2>Table</h2>\n<div class="wide" tabindex="0" role="region" aria-label="Table">\n',
        f"{_table(header[:-1], [row[:-1] for row in rows])}</div>\n",
        '<p class="quiet">Best first, then those at chance, which are not ranked. '
        "Speed and memory are those of the batches of training.</p>\n",
        f"<ul>\n{notes}</ul>\n" if notes else "",
        f'<h2>Plots</h2>\n<div class="plots">\n{"".join(figures)}</div>\n',
        f'<h2>Settings</h2>\n<div class="wide">\n{setting_table}</div>\n</main>\n',
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


def _best(name: str, cells: list[str]) -> str | None:
    """Returns the best cell of a column, if that is meaningful; scores at chance do not count."""
    shown = {cell for cell in cells if cell != "–"}
    numbers = {cell: float(cell.replace(",", "")) for cell in shown if not cell.endswith(CHANCE)}
    if len(shown) < 2 or not numbers or name.startswith("±"):
        return None
    higher = name == "accuracy" or name.startswith("tokens/s")
    return (max if higher else min)(numbers, key=numbers.__getitem__)
