"""Curves over a length or updates, panels side by side; needs the extra `pictures`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from longspan.compare.report import picture
from longspan.pictures.patterns import COLOURS, INK, PAPER, QUIET

MARKS = "osD^vP"


@dataclass(frozen=True)
class Curve:
    """Points under a name; those that are 0, which have no logarithm, are left out where an axis is logarithmic."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """Curves under a title, whose lengths are those of `across`; the scales are those of x and y."""

    title: str
    across: str
    curves: Sequence[Curve]
    scales: tuple[str, str] = ("log", "log")


def draw_curves(panels: Sequence[Panel], path: Path) -> None:
    """Draw the panels into a PNG file; a name looks the same in all of them."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    names = list(dict.fromkeys(curve.name for panel in panels for curve in panel.curves))
    figure = Figure(figsize=(4.2 * len(panels), 3.9), layout="constrained")
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), number + 1, facecolor=PAPER)
        for curve in panel.curves:
            points = [point for point in curve.points if point[1] > 0 or "log" not in panel.scales]
            if points:
                look = names.index(curve.name)
                style = {"color": COLOURS[look], "marker": MARKS[look], "markersize": 4, "linewidth": 1.6}
                axes.plot(*zip(*points, strict=True), label=curve.name, **style)
        axes.set_title(panel.title, fontsize=10.5, color=INK, loc="left")
        axes.set_xlabel(panel.across, fontsize=9, color=QUIET)
        axes.grid(color="white", linewidth=1)
        axes.set_axisbelow(True)
        axes.tick_params(colors=QUIET, labelsize=9, length=2, width=0.6)
        axes.spines[:].set_visible(False)
        axes.set(xscale=panel.scales[0], yscale=panel.scales[1])
        for axis in [
            axis for axis, scale in zip((axes.xaxis, axes.yaxis), panel.scales, strict=True) if scale == "log"
        ]:
            axis.set_minor_locator(NullLocator())
            axis.set_major_locator(LogLocator(numticks=12))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}" if value < 1e6 else f"{value:g}"))
        if number == 0:
            figure.legend(loc="outside lower center", ncols=3, fontsize=8.5, labelcolor=INK, frameon=False)
    path.write_bytes(picture(figure, "png"))
