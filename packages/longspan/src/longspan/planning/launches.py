"""Seconds of a layer on a GPU, from a table of counted launches.

`launches.json` holds the launches, bytes and FLOPs of one layer of each mechanism over one row of several lengths, at
one width, as `tools/count_launches.py` counted them on a simulated device. Other widths, batches, lengths and options
follow by the ratio of the mechanism's own `costs`. A mechanism of another package has its table in the `launches.json`
beside its module.

A table is a list of rows, each with `mechanism`, `options` and `counts`. A count is `[run, tokens, synchronisations,
groups]`, and a group of launches `[kind, launches, megabytes, GFLOP]`, in sums over the group.
"""

from __future__ import annotations

import json
import math
import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from longspan.attention.config import AttentionCost
from longspan.errors import InputError
from longspan.hardware import Device
from longspan.planning.prediction import Kernel, Kind, Launches
from longspan.settings import from_plain

Run = Literal["forward float32", "forward bfloat16", "forward autocast", "training float32", "training autocast"]
"""What was counted. Under autocast the weights are float32; in a forward pass, that is gradient checkpointing."""
RUNS: tuple[Run, ...] = get_args(Run)
TABLE = Path(__file__).with_name("launches.json")
WIDTH, HEADS, INNER = 768, 12, 3072
"""Sizes of the layers that were counted."""
BLOCK = "block"
"""Name of the rows with everything in a block but its attention."""
EVEN = 64
"""Mechanisms that pad have further rows for lengths that are no multiple of this."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Launches of one kind and about the same size.

    Attributes:
        kind: "elements", "weights" (as large for any number of tokens), "projection" (products with weights),
            "products" (other products of matrices), "attention", "window" or "flex".
        dtype: dtype of the products.
        count: number of launches.
        bytes, flops: their sums.
    """

    kind: str
    dtype: str
    count: int
    bytes: float
    flops: float

    def kernel(self, scale: Scale) -> Kernel:
        """Returns one of the launches for other sizes."""
        moved = scale.weights if self.kind == "weights" else scale.states
        work = scale.projections if self.kind == "projection" else scale.scores
        kind: Kind = self.kind if self.kind in ("attention", "window", "flex") else "plain"
        return Kernel(
            bytes=self.bytes * moved / self.count, flops=self.flops * work / self.count, dtype=self.dtype, kind=kind
        )


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes of a layer over those of the counted one.

    Attributes:
        states: numbers that the layer saves, of all rows.
        weights: weights of a projection.
        projections: FLOPs of projections, of all rows.
        scores: FLOPs of everything else, of all rows.
    """

    states: float
    weights: float
    projections: float
    scores: float


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Counts of a layer at one length.

    Attributes:
        tokens: tokens of the row.
        synchronisations: number of times the host waits.
        groups: its launches.
    """

    tokens: int
    synchronisations: int
    groups: tuple[Group, ...]

    def seconds(self, device: Device, scale: Scale) -> float:
        """Returns the predicted seconds for other sizes."""
        kernels = [kernel for group in self.groups for kernel in [group.kernel(scale)] * group.count]
        return Launches(kernels=tuple(kernels), synchronisations=self.synchronisations).seconds(device)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Counts of a mechanism with certain options, the others at their defaults.

    Attributes:
        options: the options, as plain data.
        cells: what was counted → cells in the order of their lengths.
    """

    options: Mapping[str, Any]
    cells: Mapping[str, tuple[Cell, ...]]

    def fits(self, options: Mapping[str, Any], run: Run) -> bool:
        """Whether the row counts this for a mechanism with these options; any dropout launches as much as another."""
        if run not in self.cells:
            return False
        return all(
            bool(options[name]) if name == "dropout" else json.dumps(options[name]) == json.dumps(value)
            for name, value in self.options.items()
        )


def attention_seconds(
    spec: Any,
    device: Device,
    run: Run,
    *,
    tokens: int,
    width: int,
    heads: int,
    batch: int = 1,
    rows: Sequence[Row] | None = None,
) -> float | None:
    """Returns the predicted seconds of one attention layer with its projections; None if no row counts it.

    Args:
        spec: the mechanism, an `AttentionConfig`.
        device: the GPU.
        run: what the layer does.
        tokens: tokens per row, T.
        width: E.
        heads: H.
        batch: number of rows, B.
        rows: counts of the mechanism; `None` reads its table.
    """
    options = spec.to_dict()
    rows = read_table(table_of(spec)).get(spec.mechanism, ()) if rows is None else rows
    fitting = [row for row in rows if row.fits(options, run)]
    if not fitting:
        return None
    row = max(fitting, key=lambda row: len(row.options))
    costs = _costs(spec, tokens, width, heads)

    def seconds(cell: Cell) -> float:
        kind = type(spec)
        of_row = _costs(from_plain(kind, kind.defaults_for(cell.tokens, {}) | row.options), cell.tokens, WIDTH, HEADS)
        scale = Scale(
            states=batch * costs.saved_activations / of_row.saved_activations,
            weights=(width / WIDTH) ** 2,
            projections=batch * costs.projections / max(of_row.projections, 1),
            scores=batch * (costs.mixing + costs.pooling) / max(of_row.mixing + of_row.pooling, 1),
        )
        return cell.seconds(device, scale)

    even = tokens % EVEN == 0
    cells = [cell for cell in row.cells[run] if (cell.tokens % EVEN == 0) == even] or row.cells[run]
    return between(cells, tokens, seconds)


def _costs(spec: Any, tokens: int, width: int, heads: int) -> AttentionCost:
    return spec.costs(length=tokens, width=width, heads=heads, causal=not spec.bidirectional)


def between(cells: Sequence[Cell], tokens: int, seconds: Callable[[Cell], float]) -> float:
    """Returns the seconds by the two cells whose lengths are nearest, in proportion to the logarithm of the length."""
    after = bisect_right([cell.tokens for cell in cells], tokens)
    if after in (0, len(cells)):
        return seconds(cells[min(after, len(cells) - 1)])
    low, high = cells[after - 1], cells[after]
    share = math.log(tokens / low.tokens) / math.log(high.tokens / low.tokens)
    return (1 - share) * seconds(low) + share * seconds(high)


def rest_of_block_seconds(
    device: Device, run: Run, *, tokens: int, width: int, inner: int, batch: int = 1, dropout: bool = False
) -> float:
    """Returns the predicted seconds of everything in a block but its attention: norms, sums, and the feed-forward layer
    with its `inner` numbers."""
    rows = [row for row in read_table(TABLE)[BLOCK] if row.fits({"dropout": dropout}, run)]
    (cell,) = max(rows, key=lambda row: len(row.options)).cells[run]
    times = batch * tokens / cell.tokens
    scale = Scale(
        states=times * (width + inner) / (WIDTH + INNER),
        weights=width * inner / (WIDTH * INNER),
        projections=times * width * inner / (WIDTH * INNER),
        scores=0.0,
    )
    return cell.seconds(device, scale)


def table_of(spec: Any) -> Path:
    """Returns the file with the counts of a mechanism: the one beside its module if another package brings it."""
    module = type(spec).__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    return TABLE if module.partition(".")[0] == "longspan" or file is None else Path(file).with_name(TABLE.name)


@cache
def read_table(file: Path) -> Mapping[str, tuple[Row, ...]]:
    """Returns the rows of a table by mechanism; none if there is no such file.

    Raises:
        InputError: the file is something else.
    """
    if not file.is_file():
        return {}
    try:
        return rows_of_plain(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{file} is no table of launches ({error}); write one with tools/count_launches.py, or move the file away"
        ) from error


def rows_of_plain(table: Sequence[Mapping[str, Any]]) -> Mapping[str, tuple[Row, ...]]:
    """Returns the rows of a table, as its file holds them, by mechanism."""
    rows: dict[str, tuple[Row, ...]] = {}
    for plain in table:
        cells: dict[str, list[Cell]] = {}
        for run, tokens, waits, groups in plain["counts"]:
            cell = Cell(tokens=tokens, synchronisations=waits, groups=tuple(_group(*group) for group in groups))
            cells.setdefault(run, []).append(cell)
        ordered = {run: tuple(sorted(cells[run], key=lambda cell: cell.tokens)) for run in cells}
        made = Row(options=plain["options"], cells=ordered)
        rows[plain["mechanism"]] = (*rows.get(plain["mechanism"], ()), made)
    return rows


def _group(kind: str, count: int, megabytes: float, gigaflops: float) -> Group:
    name, _, dtype = kind.partition(" ")
    return Group(kind=name, dtype=dtype or "float32", count=count, bytes=1e6 * megabytes, flops=1e9 * gigaflops)
