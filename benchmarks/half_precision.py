"""Half precision against float32 on a processor: windows, global tokens, pools and linear attention in float32,
bfloat16 and float16, forward and with gradients.

    OMP_NUM_THREADS=1 python benchmarks/half_precision.py [--tokens 512 4096] [--rounds 5]

Attention alone, and whole layers with their projections. Outputs and gradients of each type are compared with float64
on the same inputs before anything is timed. Times are the processor's, the types by turns in one process. The page is
`results/half-precision.md`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

import longspan
from longspan.attention import MECHANISMS, Tokens
from longspan.ops.kernels.linear import attend_linear, elu_features
from longspan.ops.runtime import half_way
from longspan.ops.tiles.pooling import pool
from longspan.patterns import PooledWindow, Window
from measure import machine, paired_seconds, table, write_page

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
HEADS, WIDTH, SIDE = 12, 64, 128
POOLS = {"kernel": 5, "stride": 4}
MOST_STEPS = 32.0
"""The largest relative error of an output or a gradient, by root mean squares, in units of the type's rounding."""


def window(query: Tensor, key: Tensor, value: Tensor, _: Tensor) -> Tensor:
    return longspan.attend(query, key, value, pattern=Window(SIDE, SIDE))


def with_global(query: Tensor, key: Tensor, value: Tensor, _: Tensor) -> Tensor:
    first = torch.zeros(len(query), 1, dtype=torch.int64)
    return longspan.attend(query, key, value, pattern=Window(SIDE, SIDE), globals=first)


def pooled(query: Tensor, key: Tensor, value: Tensor, taps: Tensor) -> Tensor:
    keys, values = (pool(each, pooling="ldconv", weight=taps, **POOLS) for each in (key, value))
    return longspan.attend(query, keys, values, pattern=PooledWindow(4 * SIDE, 4 * SIDE, **POOLS))


def linear(query: Tensor, key: Tensor, value: Tensor, _: Tensor, *, causal: bool = False) -> Tensor:
    features = elu_features(query), elu_features(key)
    return attend_linear(*features, value, causal=causal)[0].to(value.dtype)


CORES: dict[str, Callable[..., Tensor]] = {
    f"window, {SIDE} to each side": window,
    "the same, one global token": with_global,
    f"pools of {POOLS['kernel']}, {4 * SIDE} to each side": pooled,
    "linear": linear,
    "linear, causal": partial(linear, causal=True),
}
LAYERS: dict[str, dict[str, Any]] = {
    "longformer": {"left_tokens": SIDE, "right_tokens": SIDE},
    "longformer, one global token": {"left_tokens": SIDE, "right_tokens": SIDE},
    "poolingformer": {},
    "linear": {},
}


def main() -> None:
    """Compare, time and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 4096])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    parts = [
        f"{HEADS} heads of {WIDTH}, batch 1. Milliseconds, in brackets as times those of float32. Errors were "
        "compared with float64 first: root mean squares relative to the result's own, the larger of output and "
        "gradients, in units of the type's rounding (2⁻²³, 2⁻⁷, 2⁻¹⁰). "
        + " ".join(f"{name} goes by the way `{half_way(TYPES[name])}` here." for name in list(TYPES)[1:])
        + f" Made by `python benchmarks/half_precision.py` on {machine()}."
    ]
    head = ["what", "tokens", "pass", *TYPES, "errors"]
    for title, kinds in (("Attention alone", cores()), ("Whole layers, with projections", layers())):
        rows = []
        for length in options.tokens:
            for name, prepare in kinds.items():
                rows += measured(name, length, {kind: prepare(length, dtype) for kind, dtype in TYPES.items()},
                                 prepare(length, torch.float64), options.rounds)  # fmt: skip
        parts += [f"## {title}", table(head, rows)]
    write_page("half-precision", "Half precision on a processor", parts)


Side = tuple[Callable[[], Tensor], Sequence[Tensor]]
"""What computes an output, and the tensors that learn."""


def cores() -> dict[str, Callable[[int, torch.dtype], Side]]:
    """Attention alone by name: of a length and a type, what computes it."""

    def prepare(function: Callable[..., Tensor], length: int, dtype: torch.dtype) -> Side:
        generator = torch.Generator().manual_seed(0)
        shapes = [(1, HEADS, length, WIDTH)] * 3 + [(HEADS, POOLS["kernel"], WIDTH)]
        # What bfloat16 can hold: all types begin with the same numbers.
        drawn = [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]
        inputs = [each.to(dtype).requires_grad_() for each in drawn]
        return partial(function, *inputs), inputs[: 4 if function is pooled else 3]

    return {name: partial(prepare, function) for name, function in CORES.items()}


def layers() -> dict[str, Callable[[int, torch.dtype], Side]]:
    """Whole layers."""

    def prepare(name: str, fields: dict[str, Any], length: int, dtype: torch.dtype) -> Side:
        torch.manual_seed(0)
        config = MECHANISMS[name.partition(",")[0]](**fields)
        layer = config.build(width=HEADS * WIDTH, heads=HEADS, causal=False)
        layer = layer.bfloat16().to(dtype)
        hidden = torch.randn(1, length, HEADS * WIDTH).bfloat16().to(dtype).requires_grad_()
        is_global = torch.arange(length)[None] == 0 if "global" in name else None
        used = [weight for weight in layer.parameters() if weight.requires_grad]
        return partial(layer, hidden, Tokens(is_global=is_global)), [hidden, *used]

    return {name: partial(prepare, name, fields) for name, fields in LAYERS.items()}


def forward(side: Side) -> Tensor:
    with torch.no_grad():
        return side[0]()


def learn(side: Side) -> list[Tensor | None]:
    output = side[0]()
    towards = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).bfloat16().to(output.dtype)
    return list(torch.autograd.grad(output, side[1], towards, allow_unused=True))


def measured(name: str, length: int, sides: dict[str, Side], exact: Side, rounds: int) -> list[list[str]]:
    """A row forward and one with gradients."""
    rows = []
    for what, run in (("forward", forward), ("forward + backward", learn)):
        errors = {kind: steps(run(side), run(exact), TYPES[kind]) for kind, side in sides.items()}
        if wrong := {kind: error for kind, error in errors.items() if not error <= MOST_STEPS}:
            raise SystemExit(f"{name} at {length}, {what}: errors of {wrong} roundings; nothing is timed")
        seconds = paired_seconds(
            {kind: partial(run, side) for kind, side in sides.items()}, rounds=rounds, clock=time.process_time
        )
        cells = [f"{seconds[kind] * 1e3:.1f} ({seconds[kind] / seconds['float32']:.2f})" for kind in sides]
        rows.append([name, f"{length:,}", what, *cells, ", ".join(f"{error:.1f}" for error in errors.values())])
        print(*rows[-1], sep=" | ", flush=True)
    return rows


def steps(found: Any, exact: Any, dtype: torch.dtype) -> float:
    """The largest relative error of results, in units of the rounding of a type; what is 0 but for rounding, as the
    gradient of the bias of keys is, is none."""
    pairs = zip(*([each] if isinstance(each, Tensor) else each for each in (found, exact)), strict=True)
    sizes = [(one, two, size(two)) for one, two in pairs if one is not None and two is not None]
    least = 1e-9 * max(whole for *_, whole in sizes)
    return max(size(one - two) / whole for one, two, whole in sizes if whole > least) / torch.finfo(dtype).eps


def size(tensor: Tensor) -> float:
    """The root of the mean of squares."""
    return float(tensor.double().square().mean().sqrt())


if __name__ == "__main__":
    main()
