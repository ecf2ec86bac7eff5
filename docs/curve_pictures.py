"""Pictures of curves: how far stacks of layers reach, and what attention costs against the length of the text.

Needs the 'pictures' extra.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from longspan.attention import AttentionConfig, attention_config
from longspan.attention.config import AttentionCost
from longspan.attention.layers import Layer, reach
from longspan.errors import InputError
from longspan.imports import require
from longspan.pictures.patterns import COLOURS, INK, PAPER, QUIET

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 9.0
"""Inches: a figure as wide as the text of a page."""
STYLES = ("-", "--", "-.", ":")
LENGTHS = tuple(1 << power for power in range(10, 17))
"""1k to 64k tokens."""


def draw_reach(panels: Mapping[str, Mapping[str, Sequence[Layer]]], *, length: int) -> Figure:
    """How far a token's state reaches after each layer: a panel for each group of stacks, a curve for each stack.

    The token stands in the middle of a text of `length` tokens without global tokens; the curve is its farther side.

    Raises:
        InputError: a stack that spans the text, whose ends would then be what is drawn, or matplotlib is missing.
    """
    figure, axes = _panels(len(panels), 3.1)
    for place, (title, stacks) in zip(axes, panels.items(), strict=True):
        for number, (name, layers) in enumerate(stacks.items()):
            token = length // 2
            far = [max(sides) for sides in reach(layers, length=length, token=token)]
            if far[-1] >= token:
                raise InputError(f"length={length} is too short for the reach of {name!r}; give a longer text")
            place.plot(range(len(far)), far, label=f"{name}: {far[-1]:,}", linewidth=1.8, **_style(number))
        place.set_title(title, fontsize=9.5, color=INK, loc="left")
        place.set_xlabel("layers", fontsize=8.5, color=QUIET)
        place.set_xlim(left=0)
        place.set_ylim(0, 1.4 * place.get_ylim()[1])  # room for the legend
        deepest = max(map(len, stacks.values()))
        place.set_xticks(range(0, deepest + 1, -(-deepest // 8)))
        place.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        _legend(place)
    axes[0].set_ylabel("tokens on each side", fontsize=8.5, color=QUIET)
    return figure


def draw_costs(sides: Mapping[str, Layer], *, width: int, heads: int, lengths: Sequence[int] = LENGTHS) -> Figure:
    """Counted costs of one layer against the length: scores and multiply-adds per token, and scores in all.

    The right-hand scale of the last panel is the memory of an implementation that keeps every attention weight of all
    heads in float32.
    """
    costs: dict[str, list[AttentionCost]] = {}
    for name, side in sides.items():
        config: AttentionConfig = attention_config(side)
        costs[name] = [config.costs(length=length, width=width, heads=heads) for length in lengths]
    panels = {
        "scores per token": lambda cost: cost.scores / cost.tokens,
        "multiply-adds per token, millions": lambda cost: cost.multiply_adds / cost.tokens / 1e6,
        "scores in all, millions": lambda cost: cost.scores / 1e6,
    }
    figure, axes = _panels(3, 3.0, bottom=0.24, right=0.945)
    for place, (title, value) in zip(axes, panels.items(), strict=True):
        for number, (name, row) in enumerate(costs.items()):
            place.plot(lengths, [value(cost) for cost in row], label=name, linewidth=1.8, **_style(number))
        place.set_title(title, fontsize=9.5, color=INK, loc="left")
        _length_axis(place, lengths)
    stored = 1e6 * heads * 4 / 2**30
    both_ways: Any = (lambda value: value * stored, lambda value: value / stored)
    memory = axes[2].secondary_yaxis("right", functions=both_ways)
    memory.set_ylabel("GiB, if all weights are kept", fontsize=8, color=QUIET)
    memory.tick_params(colors=QUIET, labelsize=8, length=2, width=0.6)
    memory.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    memory.minorticks_off()
    memory.spines[:].set_visible(False)
    _common_legend(figure, axes[0])
    return figure


def draw_seconds(
    panels: Mapping[str, Mapping[str, Mapping[int, float]]], machine: str, unit: str = "seconds"
) -> Figure:
    """Measured seconds against the length: panel → side → length → seconds. `machine` is written below the panels."""
    figure, axes = _panels(len(panels), 3.3, bottom=0.27)
    for place, (title, sides) in zip(axes, panels.items(), strict=True):
        for number, (name, seconds) in enumerate(sides.items()):
            place.plot(list(seconds), list(seconds.values()), label=name, marker="o", markersize=3.5, **_style(number))
        place.set_title(title, fontsize=9.5, color=INK, loc="left")
        _length_axis(place, sorted({length for seconds in sides.values() for length in seconds}))
    axes[0].set_ylabel(unit, fontsize=8.5, color=QUIET)
    _common_legend(figure, axes[0], y=0.07)
    figure.text(0.5, 0.025, f"measured on {machine}", ha="center", fontsize=7.5, color=QUIET)
    return figure


def _panels(count: int, height: float, bottom: float = 0.15, right: float = 0.985) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side."""
    figures = require("matplotlib.figure", extra="pictures", purpose="drawing a picture")
    figure = figures.Figure(figsize=(WIDTH, height))
    first, gap = 0.085, 0.07
    each = (right - first - gap * (count - 1)) / count
    axes = []
    for number in range(count):
        place = figure.add_axes((first + number * (each + gap), bottom, each, 0.9 - bottom))
        place.set_facecolor(PAPER)
        place.grid(color="white", linewidth=1)
        place.tick_params(colors=QUIET, labelsize=8, length=2, width=0.6)
        place.spines[:].set_visible(False)
        axes.append(place)
    return figure, axes


def _length_axis(axes: Axes, lengths: Sequence[int]) -> None:
    """Both axes logarithmic, lengths in thousands."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{length // 1024}k" if length >= 1024 else str(length) for length in lengths])
    axes.minorticks_off()
    ticker = require("matplotlib.ticker", extra="pictures", purpose="drawing a picture")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 3.0)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.set_xlabel("tokens", fontsize=8.5, color=QUIET)


def _style(number: int) -> dict[str, Any]:
    """Colour and dashes of a curve: told apart in grey as well."""
    return {"color": COLOURS[number], "linestyle": STYLES[number % len(STYLES)]}


def _common_legend(figure: Figure, axes: Axes, y: float = 0.0) -> None:
    """One legend for panels with the same sides, below them."""
    handles, names = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        names,
        loc="lower center",
        bbox_to_anchor=(0.5, y),
        ncols=4,
        fontsize=8.5,
        labelcolor=INK,
        frameon=False,
    )


def _legend(axes: Axes) -> None:
    axes.legend(fontsize=8, loc="upper left", labelcolor=INK, frameon=True, facecolor="white", edgecolor="none")
