"""Counts the launches of one layer of each mechanism on a simulated GPU, and writes them for `longspan plan --device`.

    python tools/count_launches.py                    # all rows of planning/launches.json, about half an hour
    python tools/count_launches.py longformer linear  # only the rows of these
    python tools/count_launches.py NAME               # of an installed package: `launches.json` beside its module
    python tools/count_launches.py --compare          # how far predictions are from the simulated GPU

A row is left out if the others predict it within `CLOSE`: lengths between two others, and options whose effect follows
from the mechanism's `costs`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "shared"))

from longspan.attention import MECHANISMS, Tokens
from longspan.hardware import DEVICES
from longspan.planning import launches
from longspan.planning.launches import BLOCK, HEADS, INNER, RUNS, TABLE, WIDTH, Run
from longspan.planning.prediction import Launches
from longspan.settings import entry, from_plain
from longspan.stacks.binary_partition import NodeAttentionConfig
from longspan.stacks.block import Block
from tracing import UnknownNumbers, module_launches

NAMES = (BLOCK, *MECHANISMS, NodeAttentionConfig.mechanism)
"""Of the rows of longspan's own table."""
LENGTHS = (256, 1024, 4096, 16_384, 65_536, 262_144)
LONGEST = {"explicit_sparse": 65_536, "synthesizer": 65_536, "adaptive_span": 65_536, "binary_partition": 16_384}
"""Mechanisms whose counting takes minutes at longer lengths."""
UNEVEN = (1000, 15_000)
"""Lengths at which mechanisms pad."""
FEW = (1024, 16_384)
"""Lengths at which options are counted."""
SHORTER = {"full": (512, 2048), "synthesizer": (512, 2048)}
"""The same, of mechanisms whose options take thousands of launches, or have T² weights."""
RELATIVE = {"positions": "relative"}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "full": [RELATIVE, RELATIVE | {"dropout": 0.1}],
    "longformer": [RELATIVE, RELATIVE | {"dropout": 0.1}],
    "poolingformer": [{"pooling": "mean"}, {"pooling": "max"}, {"windows": "per_query"}],
    "fusion": [{"two_level": False}],
    "bigbird": [{"random_blocks": 0}],
    "etc": [{"window": "blocks"}, {"clamp_tokens": None}],
    "sparse": [{"kind": "strided"}, {"heads": "per_head"}],
    "reformer": [{"local": True}],
    "routing": [{"selection": "balanced"}],
    "performer": [{"kernel": "relu"}],
    "linformer": [{"projection": "mean"}, {"sharing": "none"}, {"compress_input": True}],
    "compressed": [{"pooling": "mean"}],
    "synthesizer": [{"members": ["random"]}, {"members": ["vanilla", "dense"]}],
}
"""Options that change what is launched, beside dropout."""
CLOSE = 0.05
"""Greatest error of a cell that is left out."""
JUDGES = ("h100", "l4")
"""Devices whose predicted seconds decide about that."""
ALIKE = 8
"""Launches of a kind are one group if the bytes of the largest are at most so many times those of the smallest."""
SMALL = 100_000
"""Fewer bytes count as these: no GPU takes longer for them than for the launch."""
NOTATION: dict[Run, dict[str, Any]] = {
    "forward float32": {"dtype": torch.float32},
    "forward bfloat16": {"dtype": torch.bfloat16},
    "forward autocast": {"dtype": torch.float32, "autocast": True},
    "training float32": {"dtype": torch.float32, "training": True},
    "training autocast": {"dtype": torch.float32, "autocast": True, "training": True},
}


class NoAttention(nn.Module):
    """Attention that returns its input: what remains is the rest of a block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, hidden: Tensor, tokens: Tokens, state: Any = None) -> Tensor:
        return hidden


def spec_of(name: str, tokens: int, options: Mapping[str, Any]) -> Any:
    """Returns the configuration with these options, as plain data, for texts of T tokens."""
    kind = kind_of(name)
    return from_plain(kind, kind.defaults_for(tokens, {}) | options)


def kind_of(name: str) -> Any:
    """Returns the class of a mechanism, also of one that belongs to a stack."""
    return NodeAttentionConfig if name == NodeAttentionConfig.mechanism else entry(MECHANISMS, name, "NAME")


def counted(name: str, tokens: int, options: Mapping[str, Any], run: Run) -> Launches | None:
    """Returns the launches of a layer over one row, or of the rest of a block; None if they depend on the content of a
    text."""
    if name == BLOCK:
        dropout = float(options.get("dropout", 0.0))
        sizes: dict[str, Any] = {"inner": INNER, "activation_function": "gelu", "eps": 1e-5, "activation_dropout": 0.0}
        module: Any = Block(NoAttention(WIDTH), dropout=dropout, pre=True, **sizes)  # type: ignore[arg-type]
    else:
        module = attention_of(name, tokens, options, WIDTH, HEADS)
    return launched(module, run, tokens=tokens, width=WIDTH)


def attention_of(name: str, tokens: int, options: Mapping[str, Any], width: int, heads: int) -> Any:
    """Returns the attention layer."""
    spec = spec_of(name, tokens, options)
    return spec.build(width=width, heads=heads, causal=not spec.bidirectional)


def launched(module: nn.Module, run: Run, **sizes: Any) -> Launches | None:
    """Returns the launches of a module; None if they depend on the content of a text."""
    try:
        return module_launches(module, **sizes, **NOTATION[run])
    except UnknownNumbers:
        return None


def groups(counts: Launches, other: Launches | None) -> list[list[Any]]:
    """Returns the launches as groups `[kind, count, megabytes, GFLOP]`.

    Args:
        counts: the launches.
        other: those at another length, which tell what does not grow with the text; None if there are none.
    """
    if other is None or [each.name for each in other.kernels] != [each.name for each in counts.kernels]:
        other = None
    by_kind: dict[str, list[tuple[float, float]]] = {}
    for number, kernel in enumerate(counts.kernels):
        kind = "elements"
        if kernel.kind != "plain":
            kind = f"{kernel.kind} {kernel.dtype}"
        elif kernel.flops:
            kind = f"{'projection' if kernel.name in ('aten::mm', 'aten::addmm') else 'products'} {kernel.dtype}"
        elif other is not None and other.kernels[number].bytes == kernel.bytes:
            kind = "weights"
        by_kind.setdefault(kind, []).append((kernel.bytes, kernel.flops))
    made: list[list[Any]] = []
    for kind, sizes in by_kind.items():
        largest = 0.0
        for moved, flops in sorted(sizes, reverse=True):
            if made and made[-1][0] == kind and max(moved, SMALL) * ALIKE >= largest:
                made[-1] = [kind, made[-1][1] + 1, made[-1][2] + moved, made[-1][3] + flops]
            else:
                made.append([kind, 1, moved, flops])
                largest = moved
    return [[kind, count, short(moved / 1e6), short(flops / 1e9)] for kind, count, moved, flops in made]


def short(number: float) -> float:
    """Returns a number with four digits, an integer if it is one."""
    number = float(f"{number:.3e}")
    return int(number) if number == int(number) else number


def lengths_of(name: str, options: Mapping[str, Any]) -> list[int]:
    """Returns the lengths at which a mechanism is counted."""
    if name == BLOCK:
        return [4096, 16_384]
    chosen = SHORTER.get(name, FEW) if options else (*LENGTHS, *UNEVEN)
    lengths = sorted(tokens for tokens in chosen if tokens <= LONGEST.get(name, max(LENGTHS)))
    if name == NodeAttentionConfig.mechanism:  # nodes of a whole tree
        return [tokens - 1 for tokens in lengths if tokens in LENGTHS]
    return lengths


def cells_of(name: str, options: Mapping[str, Any], run: Run) -> dict[int, list[Any]]:
    """Counts at every length: tokens → `[run, tokens, waits, groups]`."""
    found = {tokens: counted(name, tokens, options, run) for tokens in lengths_of(name, options)}
    known = {tokens: counts for tokens, counts in found.items() if counts is not None}
    cells = {}
    for tokens, counts in known.items():
        others = sorted((abs(other - tokens), other) for other in known if other != tokens)
        other = next((known[other] for _, other in others if len(known[other].kernels) == len(counts.kernels)), None)
        cells[tokens] = [run, tokens, counts.synchronisations, groups(counts, other)]
    return {16_384: cells[16_384]} if name == BLOCK else cells


def rows_of(name: str) -> Iterator[dict[str, Any]]:
    """Counts the rows of a mechanism, the one of its default options first."""
    before: list[dict[str, Any]] = []
    for options in ({}, {"dropout": 0.1}, *OPTIONS.get(name, [])):
        row: dict[str, Any] = {"mechanism": name, "options": options, "counts": []}
        for run in RUNS:
            if "dropout" in options and run.startswith("forward"):
                continue
            cells = cells_of(name, options, run)
            if not before:
                cells = needed(name, cells)
            elif name != BLOCK and all(error(name, options, before, cell) < CLOSE for cell in cells.values()):
                continue
            row["counts"] += cells.values()
        if row["counts"]:
            before.append(row)
            yield row


def needed(name: str, cells: dict[int, list[Any]]) -> dict[int, list[Any]]:
    """Returns the cells that the others do not predict."""
    kept = {tokens: cell for tokens, cell in cells.items() if tokens not in UNEVEN}
    even = {"mechanism": name, "options": {}, "counts": list(kept.values())}
    if any(error(name, {}, [even], cell) >= CLOSE for tokens, cell in cells.items() if tokens in UNEVEN):
        kept = dict(cells)
    while len(kept) > 1:
        errors = {}
        for tokens, cell in kept.items():
            rest = [other for other in kept.values() if other is not cell]
            row = {"mechanism": name, "options": {}, "counts": rest}
            gone = [other for other in cells.values() if other[1] not in kept or other is cell]
            errors[tokens] = max(error(name, {}, [row], other) for other in gone)
        least = min(errors, key=lambda tokens: errors[tokens])
        if errors[least] >= CLOSE:
            break
        del kept[least]
    return kept


def error(name: str, options: Mapping[str, Any], rows: list[dict[str, Any]], cell: list[Any]) -> float:
    """Returns by how much rows miss the seconds of a cell, at most, on the devices that decide."""
    if name == BLOCK:
        return 1.0
    run, tokens, _, _ = cell
    made = launches.rows_of_plain([{"mechanism": name, "options": dict(options), "counts": [cell]}])[name]
    spec, worst = spec_of(name, tokens, options), 0.0
    for device in JUDGES:
        true = predicted(made, spec, device, run, tokens)
        worst = max(worst, abs(predicted(launches.rows_of_plain(rows)[name], spec, device, run, tokens) / true - 1))
    return worst


def predicted(rows: Any, spec: Any, device: str, run: Run, tokens: int) -> float:
    """Returns the seconds of a layer that rows predict."""
    sizes = {"tokens": tokens, "width": WIDTH, "heads": HEADS}
    seconds = launches.attention_seconds(spec, DEVICES[device], run, **sizes, rows=rows)
    assert seconds is not None
    return seconds


# How far the table is from the simulated GPU.

SIZES: dict[str, list[dict[str, Any]]] = {
    "longformer": [{"left_tokens": 64, "right_tokens": 64}, {"left_tokens": 512, "right_tokens": 0}],
    "adaptive_span": [{"span_tokens": 4096}],
    "poolingformer": [
        {"left_tokens": 64, "right_tokens": 64, "pooled_left_tokens": 256, "pooled_right_tokens": 256},
        {"kernel": 9, "stride": 8},
    ],
    "fusion": [{"relative_span": 128}, {"left_tokens": 64, "right_tokens": 64}],
    "bigbird": [{"block_tokens": 32}, {"block_tokens": 128}, {"side_blocks": 2}],
    "etc": [{"radius_tokens": 42}, {"radius_tokens": 168}],
    "sparse": [{"stride": 64, "summary_tokens": 16}, {"stride": 256}],
    "blockwise": [{"block_tokens": 128}, {"block_tokens": 512}],
    "explicit_sparse": [{"top_k": 32}],
    "reformer": [{"chunk_tokens": 128}, {"rounds": 4}],
    "sinkhorn": [{"block_tokens": 128}],
    "routing": [{"left_tokens": 128, "right_tokens": 128}, {"clusters": 64, "cluster_tokens": 64}],
    "cluster": [{"chunk_tokens": 128}, {"side_chunks": 1}],
    "performer": [{"features": 128}],
    "linformer": [{"slots": 128}, {"slots": 512}],
    "compressed": [{"stride": 4}],
}
"""Options of other sizes, for which the table has no rows."""
Case = tuple[str, dict[str, Any], int, int, int, Run]
"""Mechanism, options, tokens, rows, heads of 64, and what is run."""


def cases(count: int, seed: int = 1) -> Iterator[Case]:
    """Draws `count` cases of each mechanism: default options, those of rows, and other sizes; every second length a
    multiple of 512."""
    chance = random.Random(seed)
    for name in MECHANISMS:
        for number in range(count):
            others = [{"dropout": 0.1}, *OPTIONS.get(name, []), *SIZES.get(name, [])]
            options = {} if number % 2 else chance.choice(others)
            most = 11 if options and name in SHORTER else 15 if name in LONGEST else 17
            tokens = int(2 ** chance.uniform(9, most))
            tokens = tokens if number % 4 < 2 else tokens // 512 * 512
            rows = min(chance.choice([1, 1, 2, 4]), max(1, 2**17 // tokens))
            yield name, options, tokens, rows, chance.choice([4, 8, 12, 16]), chance.choice(RUNS)


def compared(case: Case, device: str) -> tuple[float, float] | None:
    """Returns the seconds of a block by the table and by the simulated GPU; None if the work depends on the content."""
    name, options, tokens, batch, heads, run = case
    width, dropout = 64 * heads, 0.1 if run.startswith("training") else 0.0
    spec = spec_of(name, tokens, options)
    block = Block(
        attention_of(name, tokens, options, width, heads),
        inner=4 * width,
        activation_function="gelu",
        eps=1e-5,
        dropout=dropout,
        activation_dropout=0.0,
        pre=True,
    )
    counts = launched(block, run, tokens=tokens, width=width, batch=batch)
    sizes: dict[str, Any] = {"tokens": tokens, "width": width, "batch": batch}
    seconds = launches.attention_seconds(spec, DEVICES[device], run, heads=heads, **sizes)
    if counts is None or seconds is None:
        return None
    seconds += launches.rest_of_block_seconds(DEVICES[device], run, inner=4 * width, dropout=dropout > 0, **sizes)
    return seconds, counts.seconds(DEVICES[device])


def compare(count: int) -> None:
    """Prints how far predictions for an H100 are from the simulated GPU."""
    errors: dict[str, list[tuple[float, Case]]] = {"default options": [], "options of rows": [], "other sizes": []}
    for case in cases(count):
        both = compared(case, "h100")
        if both is None:
            continue
        kind = "default options" if not case[1] else "other sizes" if case[1] in SIZES.get(case[0], []) else ""
        errors[kind or "options of rows"].append((both[0] / both[1] - 1, case))
        print(f"{100 * errors[kind or 'options of rows'][-1][0]:+6.1f} %  {case}", flush=True)
    for kind, found in (*errors.items(), ("all", [each for some in errors.values() for each in some])):
        sizes = sorted(abs(each) for each, _ in found)
        middle, most = sizes[len(sizes) // 2], sizes[int(0.9 * len(sizes))]
        print(f"{kind}: {len(sizes)} blocks, median {middle:.1%}, nine of ten within {most:.1%}, worst {sizes[-1]:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mechanisms, or 'block'; all without")
    parser.add_argument("--compare", type=int, nargs="?", const=8, metavar="N", help="draw N blocks of each mechanism")
    given = parser.parse_args()
    if given.compare:
        compare(given.compare)
        return
    for name in given.names or NAMES:
        file = TABLE if name == BLOCK else launches.table_of(kind_of(name)())
        rows = list(rows_of(name))
        before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
        file.write_text(text_of([row for row in before if row["mechanism"] != name] + rows), encoding="utf-8")
        print(f"{name}: {len(rows)} rows, {sum(len(row['counts']) for row in rows)} counts", flush=True)


def text_of(rows: list[dict[str, Any]]) -> str:
    """Returns a table as JSON, one line for each count."""
    order = {name: place for place, name in enumerate(NAMES)}
    parts = []
    for row in sorted(rows, key=lambda row: order.get(row["mechanism"], len(order))):
        head = f'"mechanism": {json.dumps(row["mechanism"])}, "options": {json.dumps(row["options"])}'
        counts = ",\n".join(f"  {json.dumps(count)}" for count in row["counts"])
        parts.append(f'{{{head}, "counts": [\n{counts}\n]}}')
    return "[\n" + ",\n".join(parts) + "\n]\n"


if __name__ == "__main__":
    main()
