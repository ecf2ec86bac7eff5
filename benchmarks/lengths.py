"""One attention layer at many lengths, projections included: `python benchmarks/lengths.py [--quick]`.

Full attention, LED's window of 512 on each side, a window of 256 and Poolingformer (128 and 512 on each side), all of
them ours, take turns in this process once each agrees with its own dense weights. One document, no global token, one
thread, whose processor time is counted: a busy machine disturbs that less than it disturbs a clock on the wall. Writes
`results/lengths.md` (with `--quick`: `results/lengths-quick.md`).
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import torch
from torch import nn

from layers import document, step
from longspan.attention import AttentionConfig, FullConfig, LongformerConfig, PoolingformerConfig
from longspan.attention.poolingformer import PoolingformerAttention
from measure import check_close, machine, paired_seconds, table, write_page

WIDTH, HEADS = 768, 12
SIDES: dict[str, AttentionConfig] = {
    "full": FullConfig(),
    "LED, window(512)": LongformerConfig(left_tokens=512, right_tokens=512),
    "window(256)": LongformerConfig(left_tokens=256, right_tokens=256),
    "Poolingformer 128 + 512": PoolingformerConfig(init="normal"),
}
LONGEST_FULL = 16384
"""Full attention is not run beyond: it would take most of the benchmark's time to show what is known."""


def layers(dtype: torch.dtype) -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {name: config.build(width=WIDTH, heads=HEADS).to(dtype).eval() for name, config in SIDES.items()}


def check(length: int) -> None:
    """Every side against the dense weights of the same module."""
    hidden = document(length, WIDTH, torch.float32)
    with torch.no_grad():
        for name, layer in layers(torch.float32).items():
            two = isinstance(layer, PoolingformerAttention)
            weights = layer.weights(hidden, level=1) if two else layer.weights(hidden)
            context = layer.merge_heads(weights @ layer.split_heads(layer.value(hidden)))
            if two:
                value = layer.split_heads(layer.projection("value")(context))
                context = context + layer.merge_heads(layer.weights(hidden, level=2) @ value)
            check_close(name, layer(hidden), layer.output(context), 1e-4)


def seconds(lengths: list[int], backward: bool, rounds: int) -> list[list[str]]:
    """A row for each length, a column for each side."""
    rows = []
    for length in lengths:
        hidden = document(length, WIDTH, torch.float32)
        modules = {
            name: layer
            for name, layer in layers(torch.float32).items()
            if name != "full" or length <= (LONGEST_FULL // 2 if backward else LONGEST_FULL)
        }
        runs = {name: partial(step, layer, hidden, backward=backward) for name, layer in modules.items()}
        measured = paired_seconds(runs, rounds=rounds, clock=time.process_time)
        rows.append([f"{length:,}", *(f"{measured[name]:.3f}" if name in measured else "not run" for name in SIDES)])
    return rows


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--longest", type=int, default=65536, help="tokens of the longest document")
    parser.add_argument("--note", default="", help="what else the reader should know of the machine")
    parser.add_argument("--quick", action="store_true", help="up to 2,048 tokens, one round")
    options = parser.parse_args()
    longest, rounds = (2048, 1) if options.quick else (options.longest, options.rounds)
    lengths = [1 << power for power in range(10, 17) if 1 << power <= longest]
    torch.set_num_threads(1)
    check(1061)
    parts = [
        f"One attention layer with its projections, {WIDTH} wide, {HEADS} heads; one document, float32. Seconds of "
        f"processor time on one thread, median of {rounds} rounds in which the sides take turns; each agreed with its "
        "dense weights first.",
        f"Machine: {machine()}{', ' + options.note if options.note else ''}.",
    ]
    for title, backward in (("forward", False), ("forward + backward", True)):
        rows = seconds(lengths, backward, rounds)
        parts += [f"## Seconds, {title}", table(("tokens", *SIDES), rows)]
    write_page(f"lengths{'-quick' if options.quick else ''}", "One layer at many lengths", parts)


if __name__ == "__main__":
    main()
