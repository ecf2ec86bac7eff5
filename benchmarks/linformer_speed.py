"""Linformer's table of time and memory saved, by length and number of slots: `python benchmarks/linformer_speed.py`.

Wang et al. 2020, arXiv 2006.04768, table 3: how many times less time and memory a pass forward takes than with full
attention, for n tokens and k slots. Here: one block, attention and feed-forward layer, on one thread; against full
attention whose scores are all written down, as it was in the paper's time, and against PyTorch's fused kernel, as
ours do. Both are compared with their formula first. Rows stand in `results/linformer-speed.jsonl`, and what is
there is not measured again; with `--quick` up to 1,024 tokens are, and no page is written.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from layers import document
from longspan.attention import FullConfig, LinformerConfig
from measure import RESULTS, check_close, machine, paired_seconds, peak_allocated, table, write_page

WIDTH, HEADS = 256, 4
SLOTS = (128, 256, 512, 1024, 2048)
LENGTHS = tuple(1 << power for power in range(9, 17))
WRITTEN, FUSED, ALONE = "scores written", "fused", "no mixing"
LONGEST = {WRITTEN: 8192, FUSED: 16384}
"""Beyond, memory or patience is at an end: twice as many tokens count four times what mixing them took, and twice the
rest."""
TOKENS = 4096
"""Of a batch, at least."""
PUBLISHED_TIME = {
    512: (1.5, 1.3), 1024: (1.7, 1.6, 1.3), 2048: (2.6, 2.4, 2.1, 1.3), 4096: (3.4, 3.2, 2.8, 2.2, 1.3),
    8192: (5.5, 5.0, 4.4, 3.5, 2.1), 16384: (8.6, 7.8, 7.0, 5.6, 3.3), 32768: (13, 12, 11, 8.8, 5.0),
    65536: (20, 18, 16, 14, 7.9),
}  # fmt: skip
PUBLISHED_MEMORY = {
    512: (1.7, 1.5), 1024: (3.0, 2.9, 1.8), 2048: (6.1, 5.6, 3.6, 2.0), 4096: (14, 13, 8.3, 4.3, 2.3),
    8192: (28, 26, 17, 8.5, 4.5), 16384: (56, 48, 32, 16, 8), 32768: (56, 48, 36, 18, 16), 65536: (60, 52, 40, 20, 18),
}  # fmt: skip
"""Length → by `SLOTS`, as far as k ≤ n / 2."""


READING = """\
**What it shows.** Memory saved follows the published table up to 16,384 tokens, from where on theirs hardly grows. Time
saved has its shape, up to five times as large: a processor pays more for writing scores down than a V100 does. Against
full attention that does not write them, which was not there in 2020, time saved is about what was published, and no
memory is saved at all."""


class Written(nn.Module):
    """The formula of a layer of ours as it stands there, which makes the matrix of all scores: `softmax(Q Kᵀ/√D) V`, or
    `softmax(Q (E K)ᵀ/√D) (E V)`."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden: Tensor) -> Tensor:
        layer = self.layer
        query, key, value = (
            each(hidden).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (layer.query, layer.key, layer.value)
        )
        if hasattr(layer, "tables"):
            shorten = layer.tables.key[0]
            key, value = shorten @ key, shorten @ value
        weights = (query @ key.mT / (WIDTH // HEADS) ** 0.5).softmax(-1)
        return layer.output((weights @ value).transpose(1, 2).flatten(2))


class Alone(nn.Module):
    """The projections without what mixes tokens."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = self.layer.project(hidden)
        return self.layer.output(self.layer.merge_heads(query + key + value))


class Block(nn.Module):
    """Attention and a feed-forward layer of four times the width, each normalised before and added."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention, self.norm = attention, nn.LayerNorm(WIDTH)
        inner = 4 * WIDTH
        self.inner = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, inner), nn.GELU(), nn.Linear(inner, WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.norm(hidden))
        return hidden + self.inner(hidden)


def attention(side: str, length: int) -> nn.Module:
    """One side's attention; a number is that of slots, one projection for keys and values, as in the paper's table."""
    torch.manual_seed(0)
    slots, config = side.partition(" ")[0], FullConfig()
    if slots.isdigit():
        config = LinformerConfig(slots=int(slots), max_tokens=length, sharing="key_value")
    layer = config.build(width=WIDTH, heads=HEADS).eval()
    if side == ALONE:
        return Alone(layer)
    return Written(layer) if side.endswith(WRITTEN) else layer


def batch(length: int) -> Tensor:
    """Documents `(B, T, E)` of at least `TOKENS` tokens in all."""
    return document(max(length, TOKENS), WIDTH, torch.float32).reshape(-1, length, WIDTH)


@torch.no_grad()
def check(length: int = 1000, slots: int = 100) -> None:
    """Ours against the formulas."""
    hidden = document(length, WIDTH, torch.float32)
    for ours, formula in ((FUSED, WRITTEN), (f"{slots}", f"{slots} {WRITTEN}")):
        check_close(ours, attention(ours, length)(hidden), attention(formula, length)(hidden), 1e-5)


@torch.no_grad()
def measured(length: int, sides: Sequence[str], rounds: int) -> dict[str, tuple[float, int]]:
    """Processor time of a pass, the sides taking turns, and the bytes that its tensors take at most."""
    hidden = batch(length)
    runs = {side: partial(Block(attention(side, length)).eval(), hidden) for side in sides}
    taken = paired_seconds(runs, rounds=rounds, warm_ups=int(length <= LONGEST[WRITTEN]), clock=time.process_time)
    return {side: (taken[side], peak_allocated(run)) for side, run in runs.items()}


def sides_of(length: int) -> list[str]:
    """What is measured at a length."""
    full = [side for side in (WRITTEN, FUSED) if length <= LONGEST[side]]
    slots = [f"{slots}" for slots in SLOTS if slots <= length // 2]
    return [*full, ALONE, *slots, *(f"{each} {WRITTEN}" for each in slots)]


Found = dict[tuple[int, str], Mapping[str, Any]]
"""Length and side → what was measured, and whether it was."""


def measure(lengths: Sequence[int], file: Path | None, rounds: int) -> Found:
    """Every row; those that a file has are taken from there, and new ones are added to it."""
    lines = file.read_text(encoding="utf-8").splitlines() if file is not None and file.is_file() else []
    rows: Found = {(each["tokens"], each["side"]): each for each in map(json.loads, lines)}
    for length in lengths:
        sides = sides_of(length)
        if all((length, side) in rows for side in sides):
            continue
        found = measured(length, sides, rounds if length <= LONGEST[WRITTEN] else 1)
        for side, (taken, peak) in found.items():
            row = {"tokens": length, "side": side, "seconds": taken, "bytes": peak, "machine": machine()}
            rows[length, side] = row
            print(length, side, f"{taken:.3f} s", f"{peak / 2**20:.0f} MiB", sep="\t", flush=True)
        if file is not None:
            with file.open("a", encoding="utf-8") as out:
                out.writelines(json.dumps(rows[length, side]) + "\n" for side in sides)
    return rows


def value(rows: Found, length: int, side: str, what: str) -> tuple[float, bool]:
    """A number, and whether it was measured, not drawn out from half the length by squares."""
    if (length, side) in rows:
        return rows[length, side][what], True
    half, _ = value(rows, length // 2, side, what)
    rest = rows[length // 2, ALONE][what]
    return 2 * rest + 4 * (half - rest), False


def cells(
    rows: Found, lengths: Sequence[int], form: str, what: str, published: Mapping[int, tuple[float, ...]] | None = None
) -> str:
    """How many times less each number of slots takes than full attention in the same form, "scores written" or "fused";
    `~` before what was drawn out; in brackets what was published."""
    lines = []
    for length in lengths:
        full, was_run = value(rows, length, form, what)
        line = [f"{length:,}"]
        for place, slots in enumerate(SLOTS):
            row = rows.get((length, f"{slots}" if form == FUSED else f"{slots} {form}"))
            theirs = f" ({published[length][place]:g})" if published and row else ""
            line.append(f"{'' if was_run else '~'}{short(full / row[what])}{theirs}" if row else "–")
        lines.append(line)
    return table(["tokens", *(f"k = {slots:,}" for slots in SLOTS)], lines)


def short(ratio: float) -> str:
    """As many digits as the paper gives."""
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:,.0f}"


def report(rows: Found, lengths: Sequence[int]) -> list[str]:
    """The page's parts."""
    absolute = [
        [f"{length:,}", *(plain(rows, length, side) for side in (WRITTEN, FUSED, ALONE, *map(str, SLOTS)))]
        for length in lengths
    ]
    saved = [
        value(rows, length, FUSED, "bytes")[0] / rows[length, str(slots)]["bytes"]
        for length in lengths
        for slots in SLOTS
        if (length, str(slots)) in rows
    ]
    least, most = min(saved), max(saved)
    return [
        f"{rows[lengths[0], ALONE]['machine']}, which did other work as well.",
        f"One block, attention and a feed-forward layer of four times the width, {WIDTH} wide, {HEADS} heads, float32, "
        f"forward only, in batches of at least {TOKENS:,} tokens. Processor time of one thread, median of rounds in "
        f"which the sides take turns, one round beyond {LONGEST[WRITTEN]:,} tokens; memory is what the tensors of a "
        "pass take at most at once, weights and input left out, counted. Linformer has one projection for keys and "
        'values (`sharing="key_value"`).',
        "In the paper all twelve layers share that projection, on a V100 with the largest batch that fits, and memory "
        "saved is the ratio of these batches.",
        f"`~`: full attention was not run at this length ({WRITTEN} beyond {LONGEST[WRITTEN]:,} tokens, {FUSED} beyond "
        f"{LONGEST[FUSED]:,}). For twice the tokens, what it takes beside the projections and the feed-forward layer "
        "counts four times.",
        READING,
        "## Time saved, both with their scores written down (published)",
        cells(rows, lengths, WRITTEN, "seconds", PUBLISHED_TIME),
        "## Memory saved, both with their scores written down (published)",
        cells(rows, lengths, WRITTEN, "bytes", PUBLISHED_MEMORY),
        "## Time saved as we run them: `linformer` against `full`, both with PyTorch's fused kernel",
        cells(rows, lengths, FUSED, "seconds"),
        f"Memory saved as we run them: {least:.1f} to {most:.1f} times, since the fused kernel writes no scores for "
        "full attention either; most is taken by the feed-forward layer.",
        "## Milliseconds for 1,000 tokens, and MiB of a batch, as we run them",
        table(["tokens", f"full, {WRITTEN}", f"full, {FUSED}", ALONE, *(f"k = {k:,}" for k in SLOTS)], absolute),
    ]


def plain(rows: Found, length: int, side: str) -> str:
    """What was measured."""
    row = rows.get((length, side))
    return f"{row['seconds'] * 1e6 / max(length, TOKENS):.1f}, {row['bytes'] / 2**20:.0f}" if row else "–"


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of which the median counts; 1 beyond 8,192 tokens")
    parser.add_argument("--quick", action="store_true", help="up to 1,024 tokens, one round, and write no page")
    options = parser.parse_args()
    torch.set_num_threads(1)
    check()
    lengths = LENGTHS[:2] if options.quick else LENGTHS
    file = None if options.quick else RESULTS / "linformer-speed.jsonl"
    rows = measure(lengths, file, 1 if options.quick else options.rounds)
    parts = report(rows, lengths)
    if options.quick:
        print(*parts, sep="\n\n")
        return
    print(write_page("linformer-speed", "Time and memory that Linformer saves", parts))


if __name__ == "__main__":
    main()
