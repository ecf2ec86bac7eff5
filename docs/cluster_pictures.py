"""Pictures of attention within clusters: who sees whom, in the order of the text and as it is sorted.

Every cell is read from the weights of a real module; only the states are drawn, from a few directions that take turns.
Needs the 'pictures' extra.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from level_pictures import WIDTH
from matplotlib.colors import to_rgb

from longspan.attention import ClusterConfig, RoutingConfig
from longspan.imports import require
from longspan.ops.sorted.clusters import sorted_by_cluster
from longspan.pictures.patterns import COLOURS, INK, PAPER, QUIET

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

CLUSTERS, WIDE = 3, 16


def draw_routing(tokens: int = 48) -> Figure:
    """A local head, routing heads looking back and both ways, and balanced ones, in the colours of clusters."""
    states, groups = _states(tokens)
    size = {"clusters": CLUSTERS, "left_tokens": 4, "right_tokens": 4, "cluster_tokens": 4}
    back, both = RoutingConfig(**size), RoutingConfig(**size, selection="balanced")
    heads = [(back, True, 0, "local head"), (back, True, 1, "routing, causal"), (back, False, 1, "routing, both ways")]
    figure = _figure(2.75)
    for number, (config, causal, head, title) in enumerate([*heads, (both, False, 1, '"balanced"')]):
        module = config.build(width=2 * WIDE, heads=2, causal=causal)
        for part in (module.query, module.key):
            _straight(part)
        module.centroids.centres.copy_(_directions()[None])
        seen = module.weights(states.repeat(1, 1, 2))[0, head] > 0
        axes = figure.add_axes((0.05 + 0.24 * number, 0.13, 0.215, 0.7))
        _show(axes, seen, groups if head else None, title)
        axes.tick_params(labelleft=number == 0)  # the letters of the panel before stand there
    return figure


def draw_sorted(tokens: int = 48) -> Figure:
    """The chunks of sorted tokens: squares on the diagonal as sorted, and where these are in the text."""
    states, groups = _states(tokens)
    module = ClusterConfig(clusters=CLUSTERS, chunk_tokens=8).build(width=WIDE, heads=2)
    module.centroids.centres.copy_(_directions()[None])
    seen, order = module.weights(states)[0, 0] > 0, sorted_by_cluster(groups, CLUSTERS)
    figure = _figure(3.3)
    panels = [
        (seen[order][:, order], groups[order], "tokens sorted by cluster"),
        (seen, groups, "the same in the order of the text"),
    ]
    for number, (mask, own, title) in enumerate(panels):
        _show(figure.add_axes((0.15 + 0.38 * number, 0.12, 0.32, 0.76)), mask, own, title)
    return figure


def _directions() -> Tensor:
    """Unit vectors `(C, D)` of mean 0, each the way of one cluster."""
    ways = torch.eye(CLUSTERS, WIDE)
    ways = ways - ways.mean(-1, keepdim=True)
    return ways / ways.norm(dim=-1, keepdim=True)


def _states(tokens: int) -> tuple[Tensor, Tensor]:
    """States `(1, T, D)` of a text whose subjects come and go, and the cluster of each token `(T,)`."""
    generator = torch.Generator().manual_seed(5)
    groups = torch.randint(CLUSTERS, (tokens // 3 + 1,), generator=generator).repeat_interleave(3)[:tokens]
    noise = 0.05 * torch.randn(tokens, WIDE, generator=generator)
    return (_directions()[groups] + noise)[None], groups


@torch.no_grad()
def _straight(part: torch.nn.Linear) -> None:
    """A projection that changes nothing."""
    torch.nn.init.eye_(part.weight)
    torch.nn.init.zeros_(part.bias)


def _figure(height: float) -> Figure:
    return require("matplotlib.figure", extra="pictures", purpose="drawing a picture").Figure(figsize=(WIDTH, height))


def _show(axes: Axes, seen: Tensor, groups: Tensor | None, title: str) -> None:
    """A mask `(T, T)`, queries downwards, each row in the colour of its cluster, whose letter stands at the right."""
    inks = np.array([to_rgb(colour) for colour in COLOURS])
    rows = np.zeros(len(seen), dtype=int) + CLUSTERS if groups is None else groups.numpy()
    image = np.where(seen.numpy()[..., None], inks[rows][:, None], np.array(to_rgb(PAPER)))
    axes.imshow(image, interpolation="nearest")
    axes.set_title(title, fontsize=9.5, color=INK, loc="left")
    axes.set_xlabel("token", fontsize=8, color=QUIET)
    axes.tick_params(colors=QUIET, labelsize=8, length=3, width=0.6)
    axes.spines[:].set(color=QUIET, linewidth=0.6)
    if groups is None:
        return
    starts = [0, *(np.flatnonzero(np.diff(rows)) + 1), len(rows)]
    for start, end in pairwise(starts):
        place = {"x": len(rows) + 0.2, "y": (start + end - 1) / 2, "ha": "left", "va": "center"}
        axes.text(s="ABC"[rows[start]], color=COLOURS[rows[start]], fontsize=5, **place)
