"""Pictures of Poolingformer's two levels: what is seen, what one token sees, and what a pool is made of.

Every cell and bracket is read from the configuration or from the pooling operator. Needs the 'pictures' extra.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from longspan.attention import PoolingformerConfig
from longspan.attention.layers import receptive_field
from longspan.attention.parts.levels import Pools
from longspan.errors import InputError
from longspan.imports import require
from longspan.ops.tiles.pooling import POOLINGS, pool_shares
from longspan.pictures.patterns import COLOURS, INK, PAPER, QUIET

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

NEAR, FAR, BEHIND = COLOURS[0], COLOURS[1], "#c9ced6"
WIDTH = 9.0
"""Inches: a figure as wide as the text of a page."""
MAX_TOKENS = 400
"""Above this a cell of these pictures would be smaller than a dot; `draw_pattern` draws long texts."""


def draw_levels(config: PoolingformerConfig, tokens: int) -> Figure:
    """Both levels as masks, queries downwards: level 1 over tokens, level 2 over the centres of pools in both readings.

    The last panel is what a layer depends on: the tokens behind both levels of each query.

    Raises:
        InputError: more tokens than can be told apart, or matplotlib is missing.
    """
    _check_tokens(tokens)
    shared, own = replace(config, windows="shared"), replace(config, windows="per_query")
    panels = [
        ("level 1: the window", _rows(tokens, lambda i: config.window_of(_one(i, tokens))), NEAR),
        ('level 2, "shared"', _rows(tokens, lambda i: shared.pools[0].centres_of(_one(i, tokens))), FAR),
        ('level 2, "per_query"', _rows(tokens, lambda i: own.pools[0].centres_of(_one(i, tokens))), FAR),
        ("the whole layer", _rows(tokens, lambda i: receptive_field([config], length=tokens, token=i)[1]), BEHIND),
    ]
    figure = _figure(WIDTH, 2.85)
    for number, (title, mask, colour) in enumerate(panels):
        axes = figure.add_axes((0.055 + 0.24 * number, 0.13, 0.215, 0.68))
        layers = [(mask, colour)]
        if number == 3:
            pools = _rows(tokens, lambda i: config.pools[0].tokens_of(config.pools[0].centres_of(_one(i, tokens))))
            layers += [(pools, FAR), (panels[0][1], NEAR)]
        _show_masks(axes, layers)
        axes.set_title(title, fontsize=9.5, color=INK, loc="left", pad=18)
        note = "tokens it depends on" if number == 3 else f"{int(mask.sum()) / tokens:.1f} scores per token"
        axes.text(0, 1.03, note, fontsize=8, color=QUIET, transform=axes.transAxes)
        axes.set_xlabel("centre of a pool" if number in (1, 2) else "token", fontsize=8, color=QUIET)
        if number == 0:
            axes.set_ylabel("token that looks", fontsize=8, color=QUIET)
    return figure


def draw_token(config: PoolingformerConfig, *, tokens: int, token: int) -> Figure:
    """What one token sees, level by level: a cell for each token, a bracket for each pool.

    Raises:
        InputError: a token outside the text, more tokens than can be told apart, or matplotlib is missing.
    """
    _check_tokens(tokens)
    field = receptive_field([config], length=tokens, token=token)[1]
    query = _one(token, tokens)
    near = config.window_of(query)
    rows: list[tuple[str, Tensor, str | Pools]] = [
        (f"token {token} looks", query, INK),
        (f"level 1: {int(near.sum())} tokens", near, NEAR),
    ]
    for windows in ("shared", "per_query"):
        pools = replace(config, windows=windows).pools[0]
        centres = pools.centres_of(query)
        rows.append((f'level 2, "{windows}":\n{int(centres.sum())} pools', centres, pools))
    rows.append((f"the layer's input:\n{int(field.sum())} tokens", field, BEHIND))
    return _draw_rows(rows, tokens)


def draw_more_levels(config: PoolingformerConfig, *, tokens: int, token: int) -> Figure:
    """What one token sees at each of any number of levels, both ways and then back only.

    Raises:
        InputError: more tokens than can be told apart, or matplotlib is missing.
    """
    _check_tokens(tokens)
    query = _one(token, tokens)
    rows: list[tuple[str, Tensor, str | Pools]] = [(f"token {token} looks", query, INK)]
    for causal in (False, True):
        form = ", back only" if causal else ""
        near = config.window_of(query, causal=causal)
        rows.append((f"level 1{form}:\n{int(near.sum())} tokens", near, NEAR))
        for level, pools in enumerate(config.pools_of(causal), 2):
            centres = pools.centres_of(query)
            rows.append((f"level {level}{form}:\n{int(centres.sum())} pools", centres, pools))
        field = config.depends_on(query, causal=causal)
        rows.append((f"the layer's input:\n{int(field.sum())} tokens", field, BEHIND))
    return _draw_rows(rows, tokens)


def _draw_rows(rows: list[tuple[str, Tensor, str | Pools]], tokens: int) -> Figure:
    """Rows with their labels: cells of a colour, or brackets over the pools of a level."""
    height = 0.35 + 0.55 * len(rows)
    figure = _figure(WIDTH, height)
    axes = figure.add_axes((0.22, 0.403 / height, 0.76, 1 - 0.496 / height))
    for number, (label, cells, colour) in enumerate(rows):
        y = -1.35 * number
        if isinstance(colour, str):
            _draw_cells(axes, cells, colour, y)
        else:
            _draw_pools(axes, colour, cells, y)
        axes.text(-1.6, y, label, ha="right", va="center", fontsize=8.5, color=INK, linespacing=1.3)
    axes.set_xlim(-1, tokens)
    axes.set_ylim(-1.35 * len(rows) + 0.6, 0.75)
    axes.set_yticks([])
    axes.set_xlabel("token", fontsize=8, color=QUIET)
    axes.tick_params(colors=QUIET, labelsize=8, length=3, width=0.6)
    axes.spines[:].set_visible(False)
    return figure


def draw_pools(config: PoolingformerConfig, *, tokens: int, seed: int = 0) -> Figure:
    """The share of each token in each pool for the three kinds of pooling, on random values of one head.

    `ldconv` gets random weights W_p here, since the zeros that it starts with would only repeat the mean; for `max` a
    share is the fraction of channels in which a token is the largest.

    Raises:
        InputError: more tokens than can be told apart, or matplotlib is missing.
    """
    _check_tokens(tokens)
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(1, 1, tokens, 8, generator=generator)
    weight = torch.randn(1, config.kernel, 8, generator=generator) * 0.5
    figure = _figure(WIDTH, 2.05)
    for number, pooling in enumerate(("mean", "ldconv", "max")):
        assert pooling in POOLINGS
        given = weight if pooling == "ldconv" else None
        shares = pool_shares(hidden, kernel=config.kernel, stride=config.stride, pooling=pooling, weight=given)[0, 0]
        axes = figure.add_axes((0.045 + 0.325 * number, 0.21, 0.295, 0.6))
        _show_shares(axes, shares.numpy(), config.stride)
        axes.set_title(pooling, fontsize=9, color=INK, loc="left", family="monospace", weight="bold")
        axes.set_xlabel("token", fontsize=8, color=QUIET)
        if number == 0:
            axes.set_ylabel("centre of the pool", fontsize=8, color=QUIET)
    return figure


def _check_tokens(tokens: int) -> None:
    if not 1 <= tokens <= MAX_TOKENS:
        raise InputError(f"tokens={tokens} cannot be told apart here; choose a number from 1 to {MAX_TOKENS}")


def _figure(width: float, height: float) -> Figure:
    figures = require("matplotlib.figure", extra="pictures", purpose="drawing a picture")
    return figures.Figure(figsize=(width, height))


def _one(token: int, tokens: int) -> Tensor:
    """`(T,)` bool, True at one token."""
    return torch.arange(tokens) == token


def _rows(tokens: int, row: Any) -> np.ndarray:
    """`(T, T)` bool: a row for each query."""
    return torch.stack([row(token) for token in range(tokens)]).numpy()


def _show_masks(axes: Axes, layers: list[tuple[np.ndarray, str]]) -> None:
    """Masks in their colours, later ones on top."""
    from matplotlib.colors import to_rgb

    tokens = len(layers[0][0])
    picture = np.tile(np.array(to_rgb(PAPER)), (tokens, tokens, 1))
    for mask, colour in layers:
        picture[mask] = to_rgb(colour)
    axes.imshow(picture, interpolation="nearest")
    axes.tick_params(colors=QUIET, labelsize=7, length=2, width=0.6)
    axes.spines[:].set_visible(False)


def _draw_cells(axes: Axes, cells: Tensor, colour: str, y: float) -> None:
    """A strip of squares, coloured where True."""
    for place, here in enumerate(cells.tolist()):
        axes.bar(place, 0.62, bottom=y - 0.31, width=0.82, color=colour if here else "#efece5", linewidth=0)


def _draw_pools(axes: Axes, pools: Pools, centres: Tensor, y: float) -> None:
    """A bracket over the tokens of each pool that is seen, on two heights since neighbours share tokens."""
    for number, centre in enumerate(centres.nonzero().flatten().tolist()):
        first, last = max(0, centre - pools.before), min(len(centres) - 1, centre + pools.after)
        height = y + (0.17 if number % 2 else -0.17)
        axes.plot([first - 0.35, last + 0.35], [height] * 2, color=FAR, linewidth=3.2, solid_capstyle="butt")
        axes.plot([centre], [height], marker="o", color=INK, markersize=2.6, linewidth=0)


def _show_shares(axes: Axes, shares: np.ndarray, stride: int) -> None:
    """Pools downwards, tokens to the right, each share written in its cell in per cent."""
    from matplotlib.colors import LinearSegmentedColormap

    shades = LinearSegmentedColormap.from_list("shares", [PAPER, FAR])
    axes.imshow(shares, cmap=shades, vmin=0, vmax=0.8, aspect="auto", interpolation="nearest")
    for (row, column), share in np.ndenumerate(shares):
        if share > 0:
            axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", fontsize=7, color=INK)
    centres = range(0, shares.shape[1], stride)
    axes.set_yticks(range(shares.shape[0]), [f"{centre}" for centre in centres])
    axes.set_xticks(range(0, shares.shape[1], 2))
    axes.tick_params(colors=QUIET, labelsize=7.5, length=2, width=0.6)
    axes.spines[:].set_visible(False)
