"""Calibration plots: accuracy of predictions by confidence.

Needs the 'pictures' extra (matplotlib).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from longspan.errors import InputError
from longspan.imports import require
from longspan.pictures.patterns import COLOURS, INK, PAPER, QUIET, literal
from longspan.tasks.metrics.classification import Bin

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_reliability(curves: Mapping[str, Sequence[Bin]]) -> Figure:
    """Draws a panel for each model: accuracy against confidence in bins, with dots sized by the number of predictions.

    On the dotted line confidence equals accuracy; below it, a model is overconfident.

    Args:
        curves: name → result of `reliability`.

    Raises:
        InputError: there is no curve, or matplotlib is missing.
    """
    if not curves:
        raise InputError("curves is empty; give at least one model with its bins")
    figure_module: Any = require("matplotlib.figure", extra="pictures", purpose="drawing a picture")
    figure = figure_module.Figure(figsize=(3.6 * len(curves), 3.6), facecolor=PAPER, layout="constrained")
    for number, (name, bins) in enumerate(curves.items()):
        axes = figure.add_subplot(1, len(curves), number + 1, facecolor=PAPER)
        axes.plot([0, 1], [0, 1], color=QUIET, linewidth=1, linestyle=":")
        largest = max((bin_.count for bin_ in bins), default=1)
        colour = COLOURS[number % len(COLOURS)]
        axes.plot([bin_.confidence for bin_ in bins], [bin_.accuracy for bin_ in bins], color=colour, linewidth=1.2)
        axes.scatter(
            [bin_.confidence for bin_ in bins],
            [bin_.accuracy for bin_ in bins],
            s=[20 + 120 * bin_.count / largest for bin_ in bins],
            color=colour,
            zorder=3,
        )
        axes.set(xlim=(0, 1.02), ylim=(0, 1.02))
        axes.set_title(name, fontsize=9.5, color=INK, loc="left")
        axes.set_xlabel("probability of the predicted label", fontsize=8.5, color=QUIET)
        axes.set_ylabel("share that is right", fontsize=8.5, color=QUIET)
        axes.tick_params(labelsize=8, colors=QUIET)
        axes.spines[["top", "right"]].set_visible(False)
    return literal(figure)
