"""Draw the figures of the documentation, and write what is made from the code: `python docs/figures.py`.

Run by `make docs`; no figure is drawn by hand.

The same code and the same results give the same bytes. Measured curves are read from `benchmarks/results/`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster_pictures import draw_routing, draw_sorted
from curve_pictures import draw_costs, draw_reach, draw_seconds
from data_sets import data_sets
from level_pictures import draw_levels, draw_more_levels, draw_pools, draw_token
from measured_mechanisms import measured_table, with_table
from recipe_keys import recipe_keys
from support_table import support_page

from longspan.attention import PoolingformerConfig
from longspan.attention.layers import Layer, layer_specs
from longspan.patterns import Pattern, PerHead, parse
from longspan.pictures.patterns import draw_pattern, save_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

FOLDER = Path(__file__).parent / "img"
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PATTERNS = {
    "window-first.png": ("window(128) | first(1)", 512, False),
    "heads.png": ("per_head(window(64), window(64, 64, 2), window(32, 0, 4), causal & strided(64))", 512, True),
    "longformer.png": ("window(128) | first(1)", 1024, False),
    "bigbird.png": ("window(64) | first(64) | drawn_blocks(64, 3, 0, 64, 1)", 1024, False),
    "sparse-heads.png": (
        "per_head(fixed(64, 16) & causal, fixed(64, 16, 1) & causal, window(63, 0), strided(64) & causal)",
        512,
        True,
    ),
    "adaptive-span.png": ("per_head(window(15, 0), window(40, 0), window(130, 0), window(400, 0))", 512, True),
    "sparse.png": ("causal & (window(64) | strided(64))", 512, False),
}
"""File → pattern, tokens, a panel for each head."""


def window(side: int) -> dict[str, Any]:
    """A window of `side` tokens on each side."""
    return {"mechanism": "longformer", "left_tokens": side, "right_tokens": side}


def pooling(left: int, pooled: int) -> PoolingformerConfig:
    """Poolingformer with equal sides, small enough to see single tokens."""
    return PoolingformerConfig(
        left_tokens=left, right_tokens=left, pooled_left_tokens=pooled, pooled_right_tokens=pooled
    )


def three_levels() -> PoolingformerConfig:
    """Windows and strides that grow by three."""
    pools = [{}, {"kernel": 3, "stride": 2, "pooling": "mean"}, {"kernel": 7, "stride": 6, "pooling": "mean"}]
    sides = ({"left_tokens": side, "right_tokens": side} for side in (5, 15, 45))
    return PoolingformerConfig(levels=[side | each for side, each in zip(sides, pools, strict=True)])


def layers(count: int, first_level: str, both: str) -> list[Layer]:
    """A published layout: which layers have the first level alone, and which both."""
    return [
        *layer_specs([{"layers": first_level, **window(128)}, {"layers": both, "mechanism": "poolingformer"}], count)
    ]


def reach() -> Figure:
    """Equal layers, and the layouts that were published."""
    equal = {
        "window(128)": [window(128)] * 12,
        "window(512)": [window(512)] * 12,
        "window(256)": [window(256)] * 12,
        "Poolingformer 128 + 512": ["poolingformer"] * 12,
    }
    published = {
        "window(128) alone": [window(128)] * 24,
        "layers 6–11 of 12": layers(12, "0-5", "6-"),
        "layers 3–5 of 6": layers(6, "0-2", "3-"),
        "layers 15–20 of 24": layers(24, "0-14,21-", "15-20"),
    }
    return draw_reach({"equal layers": equal, "published layouts, two levels in some layers": published}, length=20_001)


def costs() -> Figure:
    sides = {
        "full": "full",
        "LED, window(512)": window(512),
        "window(256)": window(256),
        "Poolingformer 128 + 512": "poolingformer",
    }
    return draw_costs(sides, width=768, heads=12)


def seconds() -> Figure:
    """What `benchmarks/lengths.py` measured."""
    page = (RESULTS / "lengths.md").read_text(encoding="utf-8")
    machine = re.findall(r"^Machine: (.+)\.$", page, re.MULTILINE)[0]
    sections = re.findall(r"^## Seconds, (.+?)\n\n(.+?)(?:\n\n|\Z)", page, re.MULTILINE | re.DOTALL)
    return draw_seconds({title: _columns(table) for title, table in sections}, machine, "seconds of processor time")


def _columns(table: str) -> dict[str, dict[int, float]]:
    """A Markdown table with lengths in its first column, as side → length → seconds."""
    header, _, *rows = ([cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines())
    columns: dict[str, dict[int, float]] = {name: {} for name in header[1:]}
    for first, *cells in rows:
        for name, cell in zip(header[1:], cells, strict=True):
            if cell != "not run":
                columns[name][int(first.replace(",", ""))] = float(cell)
    return columns


@dataclass(frozen=True)
class Shifted(Pattern):
    """A block of queries sees the block of keys so many further, of four."""

    size: int
    shift: int

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return (query_index // self.size + self.shift) % 4 == key_index // self.size


@dataclass(frozen=True)
class Sentences(Pattern):
    """Global tokens in front, each of which sees all of them and its sentence; the rest sees them and its window."""

    count: int
    size: int
    radius: int

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        is_global, own = query_index < self.count, (key_index - self.count) // self.size == query_index
        near = (key_index - query_index).abs() <= self.radius
        return (key_index < self.count) | (is_global & own) | (near & ~is_global)


FIGURES: dict[str, Callable[[], Figure]] = {
    "poolingformer-levels.png": lambda: draw_levels(pooling(6, 24), 96),
    "poolingformer-token.png": lambda: draw_token(pooling(4, 16), tokens=57, token=27),
    "poolingformer-more-levels.png": lambda: draw_more_levels(three_levels(), tokens=127, token=63),
    "poolingformer-pools.png": lambda: draw_pools(PoolingformerConfig(), tokens=13),
    "blockwise.png": lambda: draw_pattern(PerHead([Shifted(64, 0), Shifted(64, 1)]), 256, heads=True),
    "etc.png": lambda: draw_pattern(Sentences(8, 63, 84), 512),
    "poolingformer-reach.png": reach,
    "poolingformer-costs.png": costs,
    "routing.png": draw_routing,
    "cluster.png": draw_sorted,
}
if (RESULTS / "lengths.md").is_file():
    FIGURES["poolingformer-seconds.png"] = seconds


def texts() -> dict[Path, str]:
    """File → text, for what is made from the code and from results: the page of every recipe key, the page of data
    sets, and the front page of mechanisms with what was measured of them."""
    made = {
        ROOT / "docs/guides/recipe-keys.md": recipe_keys(),
        ROOT / "docs/guides/data-sets.md": data_sets(),
        ROOT / "packages/longspan/docs/mechanisms/support.md": support_page(),
    }
    front, cells = ROOT / "packages/longspan/docs/mechanisms/index.md", sorted(RESULTS.glob("mechanisms-*.csv"))
    return made | {front: with_table(front.read_text(encoding="utf-8"), measured_table(cells))}


def main() -> None:
    for path, text in texts().items():
        path.write_text(text, encoding="utf-8")
    FOLDER.mkdir(exist_ok=True)
    for name, (text, tokens, heads) in PATTERNS.items():
        save_picture(draw_pattern(parse(text), tokens, heads=heads), FOLDER / name)
    for name, draw in FIGURES.items():
        save_picture(draw(), FOLDER / name)


if __name__ == "__main__":
    main()
