"""Pictures of patterns: the visible pairs, drawn from the same predicate that attention uses.

Needs the 'pictures' extra (matplotlib).
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longspan.characters import counted, shown
from longspan.errors import InputError
from longspan.files import output_file, whole_file
from longspan.imports import require
from longspan.patterns import Pattern
from longspan.patterns.cells import Mask, read_mask

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_TOKENS = 32_768
MOST_PARTS = 64
DOTS = 150
"""Dots per inch of a saved picture."""
PAPER, INK, QUIET = "#f5f3ee", "#24292f", "#6e7681"
_NEED_MORE = frozenset({"pgf"})
"""Formats of matplotlib that require LaTeX."""
COLOURS = ("#1f5f99", "#e07b28", "#2e8b57", "#8a4fa8", "#c0392b", "#1a9ba1", "#9a7b1f", "#5b6270")
"""One colour for each operand of `|`, or for each head, in order."""


def draw_pattern(pattern: Pattern, tokens: int, *, heads: bool = False) -> Figure:
    """Draws the dense mask of a pattern: queries downwards, keys to the right, a colour for each operand of `|`.

    Args:
        pattern: the pattern. The heads of a per-head pattern share one picture, a colour for each.
        tokens: number of queries; if there are more tokens than dots, several share a cell, shaded by its share of
            visible pairs.
        heads: draw a panel for each head of a per-head pattern instead.

    Raises:
        InputError: `tokens` is not in 1…32 768, `heads` without a per-head pattern, or matplotlib is missing.
    """
    if not 1 <= tokens <= MAX_TOKENS:
        raise InputError(f"tokens={tokens} cannot be drawn; choose a number from 1 to {MAX_TOKENS}")
    count = pattern.heads if heads else len(_parts(pattern))
    if (count or 1) > MOST_PARTS:
        raise InputError(f"pattern has {count} parts with a colour or a panel each; draw at most {MOST_PARTS} at once")
    if heads and not pattern.heads:
        raise InputError(f"pattern '{pattern}' is the same for every head; draw it without a panel for each head")
    if heads:
        return _draw_panels(pattern, tokens)
    parts = _parts(pattern)
    return _draw_single(pattern, parts, read_mask([part for _, part in parts], tokens, cells=_cells(tokens, 1024)))


def save_picture(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Saves a figure in the format of the suffix (.png, .svg, .pdf, …), atomically; an existing file is replaced.

    Raises:
        InputError: an unknown format, or a location that is not writable.
    """
    literal(figure)
    place, drawn = check_picture(path), BytesIO()  # drawn in memory: matplotlib leaves a file open on a full disk
    figure.savefig(drawn, format=_kind(path), dpi=DOTS, facecolor="white")
    with whole_file(place) as part:
        part.write_bytes(drawn.getvalue())


def literal(figure: Figure) -> Figure:
    """Makes matplotlib draw titles and texts literally: `$` does not begin a formula, and control characters are
    replaced.

    Pictures contain file names, questions and sentences. Tick labels are not changed.
    """
    texts = [*figure.texts]
    for axes in figure.axes:
        legend = axes.get_legend()
        texts += [*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label, *(legend.get_texts() if legend else ())]
        texts += [axes._left_title, axes._right_title]  # pyright: ignore[reportAttributeAccessIssue]
    for text in texts:
        text.set_parse_math(False)
        text.set_text(shown(text.get_text()))
    return figure


def check_picture(path: str | os.PathLike[str], reads: Iterable[str | os.PathLike[str] | None] = ()) -> Path:
    """Returns the path if a picture can be saved there; call it before long work that ends in a picture.

    Args:
        path: path of the picture.
        reads: as in `output_file`.

    Raises:
        InputError: an unknown format, a folder that is missing or not writable, a file that is an input, or matplotlib
            is missing.
    """
    bases = require("matplotlib.backend_bases", extra="pictures", purpose="drawing a picture")
    kinds = sorted({*bases.FigureCanvasBase.get_supported_filetypes()} - _NEED_MORE)
    if _kind(path) not in kinds:
        raise InputError(f"picture {str(path)!r} has no known format; let its name end with .{', .'.join(kinds)}")
    return output_file(path, "picture", reads)


def _kind(path: str | os.PathLike[str]) -> str:
    return Path(path).suffix.lstrip(".").lower()


def _cells(tokens: int, dots: int) -> int:
    """Returns the cells along one side of a picture of about `dots`: one for each token, or coarse enough to be
    distinguishable."""
    return tokens if tokens <= dots else dots // 2


def _parts(pattern: Pattern) -> list[tuple[str, Pattern]]:
    """Returns the parts with separate colours, and their labels: each head, or each operand of the outermost `|`."""
    if pattern.heads:
        return [(f"head {number}: {pattern.head(number)}", pattern.head(number)) for number in range(pattern.heads)]
    return [(str(part), part) for part in pattern.alternatives()]


def _paint(mask: Mask, first_colour: int = 0) -> Any:
    """Returns the cells as a `(rows, columns, 3)` array of colours in 0…1.

    A cell with any visible pair keeps a clear tint, so that a global column remains visible when 32 tokens share a
    cell.
    """
    import numpy as np
    from matplotlib.colors import to_rgb

    paper = np.array(to_rgb(PAPER))
    inks = np.array([to_rgb(COLOURS[(first_colour + n) % len(COLOURS)]) for n in range(mask.shares.shape[0])])
    shares = mask.shares.numpy()
    total = shares.sum(0)
    weight = np.where(total > 0, 0.45 + 0.55 * total, 0.0)
    mixed = np.einsum("prc,pk->rck", shares, inks) / np.maximum(total, 1e-12)[..., None]
    return np.clip(paper + weight[..., None] * (mixed - paper), 0, 1)


def _count_text(visible: int, pairs: int, whom: str = "") -> str:
    return f"{visible:,} of {pairs:,} pairs visible{whom} · {visible / pairs:.2%} of full attention"


def _figure(width: float, height: float) -> Figure:
    figures = require("matplotlib.figure", extra="pictures", purpose="drawing a picture")
    return figures.Figure(figsize=(width / DOTS, height / DOTS), dpi=DOTS)


def _show(axes: Axes, mask: Mask, first_colour: int = 0) -> None:
    """Draws the cells into axes; every cell covers the same whole number of dots."""
    import numpy as np

    picture = _paint(mask, first_colour)
    scale = max(1, round(axes.get_window_extent().height / picture.shape[0]))
    picture = np.repeat(np.repeat(picture, scale, 0), max(1, round(scale * mask.queries / mask.keys)), 1)
    edges = (-0.5, mask.keys - 0.5, mask.queries - 0.5, -0.5)
    axes.imshow(picture, extent=edges, aspect="auto", interpolation="nearest")
    axes.tick_params(colors=QUIET, labelsize=8, length=3, width=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    # A frame on the edge would hide the first row and column, which are often global tokens.
    for side in ("left", "bottom"):
        axes.spines[side].set(color=QUIET, linewidth=0.6, position=("outward", 3))


def _ticks(count: int, wanted: int = 8) -> list[int]:
    """Returns round tick positions: multiples of a power of two, and the last token if there is room."""
    step = 1
    while step * wanted < count:
        step *= 2
    ticks = list(range(0, count, step))
    return ticks if count - 1 - ticks[-1] < step / 2 else [*ticks, count - 1]


def _draw_single(pattern: Pattern, parts: list[tuple[str, Pattern]], mask: Mask) -> Figure:
    scale = max(1, round(1000 / mask.shares.shape[1]))
    side = mask.shares.shape[1] * scale
    title = textwrap.wrap(str(pattern), 66)
    legend = parts if len(parts) > 1 else []
    left, right, bottom = 120, 50, 90
    top = 90 + 34 * len(title) + 30 * len(legend)
    width, height = left + side + right, top + side + bottom
    figure = _figure(width, height)
    axes = figure.add_axes((left / width, bottom / height, side / width, side / height))
    _show(axes, mask)
    axes.set_xticks(_ticks(mask.keys))
    axes.set_yticks(_ticks(mask.queries))
    style: dict[str, Any] = {"size": 9, "color": QUIET}
    pooled = mask.keys != mask.queries
    axes.set_xlabel("pool that is seen" if pooled else "token that is seen (key)", color=QUIET, fontsize=9)
    axes.set_ylabel("token that looks (query)", color=QUIET, fontsize=9)

    def write(line: str, y: float, x: float = left, **style: Any) -> None:
        figure.text(x / width, 1 - y / height, line, va="center", **style)

    for number, line in enumerate(title):
        write(line, 36 + 34 * number, family="monospace", weight="bold", size=12, color=INK)
    y = 36 + 34 * len(title)
    note = f" · a cell is {mask.cell} × {mask.cell} tokens" if mask.cell > 1 else ""
    some = " by some head" if pattern.heads else ""
    pairs = _count_text(mask.visible, mask.queries * mask.keys, some)
    write(f"{counted(mask.queries, 'token')}: {pairs}{note}", y, **style)
    for number, (label, _) in enumerate(legend):
        row = y + 32 + 30 * number
        write("■", row, size=11, color=COLOURS[number % len(COLOURS)])
        write(label, row, left + 28, family="monospace", size=9, color=INK)
    return figure


def _draw_panels(pattern: Pattern, tokens: int) -> Figure:
    count = pattern.heads or 1
    masks = [read_mask([pattern.head(number)], tokens, cells=_cells(tokens, 512)) for number in range(count)]
    columns = min(count, 4)
    rows = -(-count // columns)
    side = masks[0].shares.shape[1] * max(1, round(512 / masks[0].shares.shape[1]))
    left, gap, over, under, top = 90, 75, 66, 56, 92
    width = left + columns * (side + gap)
    height = top + rows * (over + side + under)
    figure = _figure(width, height)
    counts = _count_text(sum(mask.visible for mask in masks), sum(mask.queries * mask.keys for mask in masks))
    title = f"{count} heads, {counted(tokens, 'token')}"
    figure.text(left / width, 1 - 36 / height, title, va="center", weight="bold", size=12, color=INK)
    figure.text(left / width, 1 - 70 / height, counts, va="center", size=9, color=QUIET)
    for number, mask in enumerate(masks):
        row, column = divmod(number, columns)
        x, y = left + column * (side + gap), top + row * (over + side + under) + over
        axes = figure.add_axes((x / width, 1 - (y + side) / height, side / width, side / height))
        _show(axes, mask, number)
        axes.set_xticks(_ticks(mask.keys, 4))
        axes.set_yticks(_ticks(mask.queries, 4))
        label = textwrap.shorten(f"{number}: {pattern.head(number)}", side // 11, placeholder="…")
        axes.set_title(
            f"{label}\n{mask.share:.2%} of full attention", loc="left", size=8, color=INK, family="monospace"
        )
    return figure
