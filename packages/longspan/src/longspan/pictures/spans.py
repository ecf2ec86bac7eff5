"""Pictures of learned attention spans: a bar for each head, layer by layer (Sukhbaatar et al. 2019, as figure 3). Needs
the 'pictures' extra (matplotlib)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from longspan.errors import InputError
from longspan.imports import require
from longspan.pictures.patterns import COLOURS, DOTS, INK, QUIET

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def learned_spans(model: nn.Module) -> list[list[float]]:
    """Returns the span of each head in tokens, for each layer with learned spans, in the order of the layers.

    Raises:
        InputError: no layer has any.
    """
    learned: list[Any] = [getattr(module, "learned_spans", None) for module in model.modules()]
    layers = [spans() for spans in learned if spans is not None]
    spans = [spans.tolist() for spans in layers if spans is not None]
    if not spans:
        raise InputError(
            f"model {type(model).__name__} has no head that learns a span; give one whose attention "
            "learns spans that are the same for every token"
        )
    return spans


def draw_spans(model: nn.Module) -> Figure:
    """Draws the learned spans, the heads of a layer in ascending order, over a logarithmic axis of tokens.

    Raises:
        InputError: no layer has learned spans, or matplotlib is missing.
    """
    spans = learned_spans(model)
    figures = require("matplotlib.figure", extra="pictures", purpose="drawing a picture")
    count, most = sum(map(len, spans)), max(map(max, spans))
    width = max(900, 14 * count + 40 * len(spans) + 200)
    figure = figures.Figure(figsize=(width / DOTS, 600 / DOTS), dpi=DOTS)
    axes = figure.add_axes((110 / width, 0.15, 1 - 150 / width, 0.68))
    place, ticks = 0.0, []
    for layer, heads in enumerate(spans):
        places = [place + number for number in range(len(heads))]
        # A span of 0 tokens is drawn as 1, where the logarithmic axis begins.
        axes.bar(places, [max(span, 1.0) for span in sorted(heads)], 0.85, color=COLOURS[layer % 2])
        ticks.append((places[0] + places[-1]) / 2)
        place = places[-1] + 2.5
    axes.set_yscale("log", base=2)
    axes.set_ylim(1, max(2.0, 1.3 * most))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xticks(ticks, [str(layer) for layer in range(len(spans))])
    axes.tick_params(colors=QUIET, labelsize=8, length=3, width=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color=QUIET, linewidth=0.6)
    axes.set_xlabel("layer, a bar for each head", color=QUIET, fontsize=9)
    axes.set_ylabel("span in tokens", color=QUIET, fontsize=9)
    mean = sum(map(sum, spans)) / count
    layers = f"{len(spans)} layers, {count} heads"
    figure.text(110 / width, 0.92, f"{layers}: mean span {mean:,.0f} tokens, longest {most:,.0f}", size=11, color=INK)
    return figure
