"""The plots of a comparison: one thing each, readable at the width of a phone. Needs the 'pictures' extra."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from longspan.compare.probes import PROBES
from longspan.compare.summary import MEBI, Line
from longspan.imports import require
from longspan.pictures.patterns import COLOURS, INK, PAPER, QUIET, literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 5.0
"""Inches; shown at the width of a phone, letters of 9 points are still read."""
FEWEST_ANSWERS = 20
"""Distances at which fewer were asked are left out: their share is chance."""
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
    """Name → plot; those for which there are no numbers are left out. A mechanism looks the same in all of them.

    `chance` is the score of whoever has read nothing.
    """
    looks = {name: _look(number) for number, name in enumerate(sorted(line.mechanism for line in lines))}
    plots: dict[str, Figure | None] = {
        "quality": _quality(lines, task, chance),
        "distance": _distances(lines, looks, chance),
    }
    plots["price"] = _price(lines, task, looks)
    for name, (number, title, unit, divisor) in CURVES.items():
        plots[name] = _curve(lines, looks, number, title, unit, divisor)
    return {name: figure for name, figure in plots.items() if figure is not None}


def picture(figure: Figure, kind: str) -> bytes:
    """A figure as "svg" or "png", the same bytes for the same numbers."""
    matplotlib = require("matplotlib", extra="pictures", purpose="drawing a plot")
    written = BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "longspan"}):
        literal(figure).savefig(
            written, format=kind, dpi=150, facecolor="white", metadata={"Date": None} if kind == "svg" else None
        )
    return written.getvalue()


def _quality(lines: Sequence[Line], task: str, chance: float | None) -> Figure | None:
    """The scores as bars, each seed as a dot, chance as a line."""
    shown = [line for line in lines if line.score is not None][::-1]
    if not shown:
        return None
    figure, axes = _figure(f"{_capital(PROBES[task].score)}, {task}", height=1.0 + 0.3 * len(shown))
    axes.barh([line.mechanism for line in shown], [line.score or 0.0 for line in shown], color=COLOURS[0], height=0.66)
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
    """Accuracy by how far back the answer lies, where there is more than one distance."""
    shown = [line for line in lines if len(line.by_distance) > 1]
    if not shown:
        return None
    figure, axes = _figure("Accuracy by distance", legend=len(shown) + 1)
    for line in shown:
        ends = sorted(end for end, (_, asked) in line.by_distance.items() if asked >= FEWEST_ANSWERS)
        shares = [line.by_distance[end][0] / line.by_distance[end][1] for end in ends]
        axes.plot(ends, shares, label=line.mechanism, **looks[line.mechanism])
    if chance is not None:
        axes.axhline(chance, color=QUIET, linewidth=1, linestyle=":", label="chance")
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("tokens back, up to", fontsize=9, color=QUIET)
    _powers(axes, sorted({end for line in shown for end in line.by_distance if end > 1}))
    _legend(figure, axes)
    return figure


def _price(lines: Sequence[Line], task: str, looks: dict[str, dict[str, Any]]) -> Figure | None:
    """The score against the speed of training."""
    shown = [line for line in lines if line.score is not None and line.number("train_tokens_per_second")]
    if len(shown) < 2:
        return None
    figure, axes = _figure(f"{_capital(PROBES[task].score)} against speed", legend=len(shown))
    for line in shown:
        look = looks[line.mechanism] | {"linestyle": "", "markersize": 7}
        speed, score = line.number("train_tokens_per_second") or 0.0, line.score or 0.0
        axes.plot([speed], [score], label=line.mechanism, **look)
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xlabel("tokens per second in training", fontsize=9, color=QUIET)
    _plain(axes.xaxis)
    _legend(figure, axes)
    return figure


def _curve(
    lines: Sequence[Line], looks: dict[str, dict[str, Any]], number: str, title: str, unit: str, divisor: int
) -> Figure | None:
    """A number against the length of a single row."""

    def points(line: Line) -> list[tuple[int, float]]:
        found = ((length, result.numbers.get(number)) for length, result in sorted(line.curve.items()))
        return [(length, value / divisor) for length, value in found if value]

    shown = [(line, points(line)) for line in lines]
    shown = [(line, found) for line, found in shown if found]
    lengths = sorted({length for _, found in shown for length, _ in found})
    if len(lengths) < 2:
        return None
    figure, axes = _figure(f"{title}, {unit}", legend=len(shown))
    for line, found in shown:
        axes.plot(*zip(*found, strict=True), label=line.mechanism, **looks[line.mechanism])
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_xlabel("tokens in a row", fontsize=9, color=QUIET)
    _powers(axes, lengths)
    _plain(axes.yaxis)
    _legend(figure, axes)
    return figure


def _figure(title: str, *, height: float = 3.3, legend: int = 0) -> tuple[Figure, Axes]:
    """A figure with one panel, and room for a legend of so many names below it."""
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
    """Lengths on a logarithmic scale, in thousands, at most seven of them named."""
    axes.set_xscale("log", base=2)
    named = lengths[:: -(-len(lengths) // 7)]
    axes.set_xticks(
        named, [f"{length // 1024}k" if length >= 1024 and not length % 1024 else str(length) for length in named]
    )
    axes.xaxis.set_minor_locator(require("matplotlib.ticker", extra="pictures", purpose="drawing a plot").NullLocator())


def _plain(axis: Any) -> None:
    """Numbers as people write them on a logarithmic scale."""
    ticker = require("matplotlib.ticker", extra="pictures", purpose="drawing a plot")
    axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0), numticks=8))
    axis.set_major_formatter(ticker.FuncFormatter(_named))


def _named(value: float, _: Any = None) -> str:
    return f"{value:,g}" if value < 10_000 else f"{value / 1000:,g}k"


def _look(number: int) -> dict[str, Any]:
    """Colour, dashes and mark of a mechanism: told apart in grey as well."""
    turn = number // len(COLOURS)
    style = {"color": COLOURS[number % len(COLOURS)], "linestyle": STYLES[turn % len(STYLES)]}
    return {**style, "marker": MARKS[(number + turn) % len(MARKS)], "markersize": 4, "linewidth": 1.6}


def _legend(figure: Figure, axes: Axes) -> None:
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=8.5, labelcolor=INK, frameon=False)
