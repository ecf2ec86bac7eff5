"""The attention operator against its peers: `python benchmarks/attention.py [--device cuda] [--quick]`.

Peers: full attention by PyTorch (`scaled_dot_product_attention`) and the attention core of transformers' Longformer,
its projections replaced by the identity; on a GPU also FlashAttention's local window where it is installed. Both sides
run in this process, on the same inputs, and must agree before a speed is printed. Writes `results/attention-DEVICE.md`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LongformerConfig
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from longspan import attend
from longspan.patterns import Window
from measure import check_close, machine, paired_seconds, peak_bytes, synchronize, table, write_page

HEADS, WIDTH, SIDE = 12, 64, 128
PATTERN = Window(SIDE, SIDE)
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 6e-2}


def inputs(length: int, dtype: torch.dtype, device: str, *, gradient: bool) -> Tensor:
    """Hidden states `(1, T, E)`: with identity projections they are query, key and value at once."""
    generator = torch.Generator(device).manual_seed(0)
    hidden = torch.randn(1, length, HEADS * WIDTH, device=device, generator=generator).to(dtype)
    return hidden.requires_grad_(gradient)


def split(hidden: Tensor) -> Tensor:
    return hidden.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)


def ours(hidden: Tensor, backend: str = "auto") -> Tensor:
    heads = split(hidden)
    return attend(heads, heads, heads, pattern=PATTERN, backend=backend).transpose(1, 2).flatten(2)


def full(hidden: Tensor) -> Tensor:
    heads = split(hidden)
    return F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)


class Copy(torch.nn.Module):
    """The layer scales its queries in place, and they must not be the keys."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden.clone()


def longformer_core(device: str) -> Callable[[Tensor], Tensor]:
    """The attention of transformers' Longformer without its projections."""
    config = LongformerConfig(
        hidden_size=HEADS * WIDTH,
        num_attention_heads=HEADS,
        attention_window=[2 * SIDE],
        attention_probs_dropout_prob=0.0,
    )
    layer = LongformerSelfAttention(config, layer_id=0).to(device)
    for name in ("query", "key", "value", "query_global", "key_global", "value_global"):
        setattr(layer, name, torch.nn.Identity())
    layer.query = Copy()  # type: ignore[assignment]

    def run(hidden: Tensor) -> Tensor:
        mask = torch.zeros(hidden.shape[:2], dtype=hidden.dtype, device=hidden.device)
        none = torch.zeros(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
        return layer(hidden, mask, none, none, False)[0]

    return run


def flash_window(hidden: Tensor) -> Tensor:
    """FlashAttention's local window (only where the package is installed)."""
    from flash_attn import flash_attn_func  # type: ignore[import-not-found]

    heads = hidden.unflatten(-1, (HEADS, WIDTH))
    return flash_attn_func(heads, heads, heads, window_size=(SIDE, SIDE)).flatten(2)


def step(function: Callable[[Tensor], Tensor], hidden: Tensor, *, gradient: bool) -> Tensor:
    """One forward, or one forward and backward; returns the output or the gradient."""
    if not gradient:
        with torch.no_grad():
            return function(hidden)
    return torch.autograd.grad(function(hidden).square().sum(), hidden)[0]


def compare(
    length: int, dtype: torch.dtype, device: str, *, gradient: bool, rounds: int, peers: list[str]
) -> list[str]:
    """One row of the table: seconds of every side, and what the others cost in ours."""
    available: dict[str, Callable[[Tensor], Tensor]] = {"ours": ours, "full": full}
    available |= {"longformer": longformer_core(device), "flash": flash_window}
    hidden = inputs(length, dtype, device, gradient=gradient)
    result = step(ours, hidden, gradient=gradient)
    for name in peers:
        if name != "full":
            other = step(available[name], hidden, gradient=gradient)
            scale = max(1.0, float(other.abs().max()))
            check_close(f"{name} at {length}, {dtype}", result, other, TOLERANCE[dtype] * scale)
            del other
    sides: dict[str, Callable[[], Any]] = {
        name: lambda name=name: step(available[name], hidden, gradient=gradient) for name in ["ours", *peers]
    }
    seconds = paired_seconds(sides, rounds=rounds)
    kind = "forward + backward" if gradient else "forward"
    ratios = [f"{seconds[name] * 1e3:.1f} ms ({seconds[name] / seconds['ours']:.2f}×)" for name in peers]
    row = [f"{length:,}", str(dtype).removeprefix("torch."), kind, f"{seconds['ours'] * 1e3:.1f} ms", *ratios]
    print(" | ".join(row), flush=True)
    if device == "cuda":
        row.append(_useful(length, seconds["ours"], gradient, dtype))
    return row


def _useful(length: int, seconds: float, gradient: bool, dtype: torch.dtype) -> str:
    """TFLOP/s spent on visible pairs, and their share of the measured matrix-product peak."""
    pairs = length * (2 * SIDE + 1)
    useful = 4 * pairs * HEADS * WIDTH * (3.5 if gradient else 1) / seconds / 1e12
    return f"{useful:.1f} ({useful / _matmul_peak(dtype):.0%})"


def _matmul_peak(dtype: torch.dtype) -> float:
    square = torch.randn(8192, 8192, device="cuda", dtype=dtype)
    seconds = paired_seconds({"matmul": lambda: square @ square}, rounds=10, warm_ups=3)["matmul"]
    return 2 * 8192**3 / seconds / 1e12


def memory(length: int) -> Iterator[None]:
    """For `peak_bytes`: one forward and backward at this length, after a small one."""
    step(ours, inputs(512, torch.float32, "cpu", gradient=True), gradient=True)
    query, key, value = (split(inputs(length, torch.float32, "cpu", gradient=False)) for _ in range(3))
    yield
    with torch.no_grad():
        attend(query, key, value, pattern=PATTERN)
    yield


def memory_of_training(length: int) -> Iterator[None]:
    """For `peak_bytes`: the same with the gradients of query, key and value."""
    step(ours, inputs(512, torch.float32, "cpu", gradient=True), gradient=True)
    heads = [split(inputs(length, torch.float32, "cpu", gradient=False)).requires_grad_() for _ in range(3)]
    upstream = torch.ones_like(heads[0])
    yield
    torch.autograd.grad(attend(heads[0], heads[1], heads[2], pattern=PATTERN), heads, upstream)
    yield


def growth(short: int = 4096, long: int = 65536) -> str:
    """The exponents with which time and memory of forward and backward grow between two lengths."""
    sides = {}
    for length in (short, long):
        hidden = inputs(length, torch.float32, "cpu", gradient=True)
        sides[str(length)] = lambda hidden=hidden: step(ours, hidden, gradient=True)
    seconds = paired_seconds(sides, rounds=3)
    memories = [peak_bytes(memory_of_training, length) for length in (short, long)]
    factor = math.log(long / short)
    time_exponent = math.log(seconds[str(long)] / seconds[str(short)]) / factor
    memory_exponent = math.log(memories[1] / memories[0]) / factor
    return (
        f"Forward and backward from {short:,} to {long:,} tokens in float32: time grows with exponent "
        f"{time_exponent:.2f}, peak memory with exponent {memory_exponent:.2f} (1 is linear, 2 quadratic)."
    )


def cpu_rows(quick: bool) -> list[list[str]]:
    rows = []
    for length in (256, 512, 1024) if quick else (256, 512, 1024, 4096, 16384):
        rounds = 31 if length <= 1024 else 5
        for dtype in (torch.float32, torch.bfloat16):
            for gradient in (False, True):
                if length == 16384 and gradient:
                    rows.append(compare(length, dtype, "cpu", gradient=True, rounds=3, peers=["longformer"]))
                    rows[-1].insert(4, "not run")
                    continue
                peers = ["full", "longformer"]
                rows.append(compare(length, dtype, "cpu", gradient=gradient, rounds=rounds, peers=peers))
    return rows


def cuda_rows() -> list[list[str]]:
    peers = ["longformer"]
    try:
        flash_window(inputs(512, torch.bfloat16, "cuda", gradient=False))
        peers.append("flash")
    except (ImportError, RuntimeError) as reason:
        print(f"FlashAttention's window is left out: {reason}")
    rows = []
    for length in (16384, 65536, 262144):
        for gradient in (False, True):
            sides = (["full"] if length <= 65536 else []) + [p for p in peers if p != "longformer" or length <= 65536]
            row = compare(length, torch.bfloat16, "cuda", gradient=gradient, rounds=10, peers=sides)
            for position, name in enumerate(["full", *peers]):
                if name not in sides:
                    row.insert(4 + position, "not run")
            rows.append(row)
            synchronize()
            torch.cuda.empty_cache()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="short lengths only, nothing written")
    options = parser.parse_args()
    setting = f"H = {HEADS}, D = {WIDTH}, window {SIDE} + 1 + {SIDE}, batch 1. {machine(options.device)}."
    if options.device == "cuda":
        header = ["tokens", "type", "pass", "ours", "full (ratio)", "Longformer core (ratio)"]
        rows = cuda_rows()
        header += ["FlashAttention window (ratio)"] * (len(rows[0]) == 8) + ["useful TFLOP/s (share of peak)"]
        print(write_page("attention-cuda", "Sliding-window attention on a GPU", [setting, table(header, rows)]))
        return
    header = ["tokens", "type", "pass", "ours", "full attention (ratio)", "transformers' Longformer core (ratio)"]
    rows = cpu_rows(options.quick)
    if options.quick:
        return
    length = 65536
    data = 4 * length * HEADS * WIDTH * 4
    forward = peak_bytes(memory, length) / data
    training = peak_bytes(memory_of_training, length) / data
    note = (
        f"Peak extra memory at {length:,} tokens in float32, in units of query + key + value + output "
        f"({data / 2**20:.0f} MiB): {forward:.2f} for a forward pass, {training:.2f} for forward and backward."
    )
    notes = "A ratio above 1 means that ours is that much faster. Results agreed before each timing."
    parts = [setting, notes, table(header, rows), note, growth()]
    print(*parts[-2:], sep="\n")
    print(write_page("attention-cpu", "Sliding-window attention on a CPU", parts))


if __name__ == "__main__":
    main()
