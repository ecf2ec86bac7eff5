"""Poolingformer's two levels against LED's window of 512 on each side: `python benchmarks/poolingformer.py [--quick]`.

Scores, time and peak memory are three separate numbers, because halving the first does not halve the others. One
attention layer of LED-base shape (768 wide, 12 heads), one document, its first token global. Poolingformer (128 and 512
on each side, kernel 5, stride 4), our Longformer with LED's window, and transformers' own LED layer take turns in this
process, once their results agree. Writes `results/poolingformer.md` (with `--quick`: `results/poolingformer-quick.md`).
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.led.modeling_led import LEDEncoderSelfAttention

from layers import OurLayer, document, first_token, step
from longspan.attention import LongformerConfig, PoolingformerConfig, Tokens
from longspan.attention.parts.windowed import WindowedAttention
from longspan.attention.poolingformer import PoolingformerAttention
from longspan.ops.attend import attend
from measure import check_close, machine, paired_seconds, peak_bytes, table, write_page

WIDTH, HEADS, SIDE = 768, 12, 512
SIDES = {
    "poolingformer": "Poolingformer 128 + 512",
    "longformer": "LED window 512, ours",
    "transformers": "LED window 512, transformers",
}
DTYPES = (torch.float32, torch.bfloat16)


class TheirLayer(nn.Module):
    """The self-attention of transformers' LED encoder and its output projection, called as its encoder does."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.LEDConfig(
            d_model=WIDTH, encoder_attention_heads=HEADS, attention_window=[2 * SIDE], attention_probs_dropout_prob=0.0
        )
        self.inner = LEDEncoderSelfAttention(config, layer_id=0)
        self.output = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        is_global = torch.zeros(hidden.shape[:2], dtype=torch.bool)
        is_global[:, 0] = True
        context = self.inner(
            hidden,
            attention_mask=is_global.to(hidden.dtype) * 10000,
            is_index_masked=torch.zeros_like(is_global),
            is_index_global_attn=is_global,
            is_global_attn=True,
        )[0]
        return self.output(context)


def poolingformer() -> PoolingformerAttention:
    torch.manual_seed(0)
    return PoolingformerConfig(init="normal").build(width=WIDTH, heads=HEADS)


def longformer() -> WindowedAttention:
    torch.manual_seed(0)
    return LongformerConfig(left_tokens=SIDE, right_tokens=SIDE).build(width=WIDTH, heads=HEADS)


def layer(side: str, dtype: torch.dtype) -> nn.Module:
    """One of `SIDES`."""
    if side == "transformers":
        return TheirLayer().to(dtype)
    return OurLayer(poolingformer() if side == "poolingformer" else longformer()).to(dtype)


def check_layers(length: int) -> None:
    """Our LED window against transformers' layer with the same weights, the second level against dense weights."""
    hidden, ours, theirs = document(length, WIDTH, torch.float32), longformer(), TheirLayer()
    state = theirs.inner.state_dict()
    for part in ("weight", "bias"):
        state[f"output.{part}"] = theirs.output.state_dict()[part]
        for name in ("query", "key", "value"):
            state[f"global_{name}.{part}"] = state.pop(f"{name}_global.{part}")
    ours.load_state_dict(state)
    with torch.no_grad():
        check_close("LED window", OurLayer(ours)(hidden), theirs(hidden), 1e-4)
        pooling = poolingformer()
        tokens = Tokens(global_slots=first_token(hidden))
        first = pooling.window_context(hidden, tokens)
        value = pooling.split_heads(pooling.projection("value")(first))
        dense = pooling.merge_heads(pooling.weights(hidden, tokens, level=2) @ value)
        check_close("second level", pooling.pooled_context(first, Tokens()), dense, 1e-4)


def scores(length: int) -> str:
    """Attention scores per token, counted."""
    first, second = PoolingformerConfig().level_scores(length, global_tokens=1)
    wide = longformer().config.scores_per_token(length, global_tokens=1)
    counts = {
        "LED, 512 on each side": wide,
        "Poolingformer, first level": first,
        "Poolingformer, second level": second,
        "Poolingformer, both levels": first + second,
    }
    rows = [(name, f"{count:.1f}", f"{count / wide:.0%}") for name, count in counts.items()]
    return table(("", "scores per token", "of LED"), rows)


def layer_times(length: int, dtype: torch.dtype, rounds: int) -> list[list[str]]:
    """Seconds of each whole layer, projections included."""
    hidden, layers = document(length, WIDTH, dtype), {side: layer(side, dtype) for side in SIDES}
    rows = {side: [str(dtype).removeprefix("torch."), title] for side, title in SIDES.items()}
    for backward in (False, True):
        runs = {side: partial(step, run, hidden, backward=backward) for side, run in layers.items()}
        seconds = paired_seconds(runs, rounds=rounds)
        for side in SIDES:
            rows[side] += [f"{seconds[side]:.3f}", f"{seconds[side] / seconds['longformer']:.2f}"]
    return list(rows.values())


def core_times(length: int, dtype: torch.dtype, rounds: int) -> list[list[str]]:
    """Seconds of attention alone, projections excluded: each level, and LED's window."""
    pooling, led, slots = poolingformer().to(dtype), longformer(), first_token(document(1, WIDTH, dtype))
    heads = [pooling.split_heads(document(length, WIDTH, dtype)) for _ in range(3)]
    parts: dict[str, Callable[..., Tensor]] = {
        "first level, window 128": lambda q, k, v: attend(
            q, k, v, pattern=pooling.pattern, globals=slots, global_rows=False
        ),
        "second level, pooling included": lambda q, k, v: pooling.attend_pools(q, k, v, None),
        "LED window 512, ours": lambda q, k, v: attend(q, k, v, pattern=led.pattern, globals=slots, global_rows=False),
    }
    rows = {name: [str(dtype).removeprefix("torch."), name] for name in parts}
    for backward in (False, True):
        runs = {name: partial(step, run, *heads, backward=backward) for name, run in parts.items()}
        for name, seconds in paired_seconds(runs, rounds=rounds).items():
            rows[name].append(f"{seconds:.3f}")
    return list(rows.values())


def memory_step(side: str, length: int, dtype: torch.dtype, backward: bool) -> Iterator[None]:
    """For `peak_bytes`: one step of one layer."""
    run, hidden = layer(side, dtype), document(length, WIDTH, dtype)
    step(run, hidden[:, :1024], backward=backward)
    gc.collect()
    yield
    step(run, hidden, backward=backward)


def memory(length: int) -> str:
    """Peak memory that a step of each layer adds to its weights and its input."""
    rows = []
    for dtype in DTYPES:
        for side, title in SIDES.items():
            peaks = [peak_bytes(memory_step, side, length, dtype, backward) / 2**20 for backward in (False, True)]
            rows.append([str(dtype).removeprefix("torch."), title, *(f"{peak:,.0f} MiB" for peak in peaks)])
    return table(("", "layer", "forward", "forward + backward"), rows)


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="2,048 tokens, one round")
    options = parser.parse_args()
    length, rounds = (2048, 1) if options.quick else (options.tokens, options.rounds)
    check_layers(2048)
    layer_rows: list[Any] = [row for dtype in DTYPES for row in layer_times(length, dtype, rounds)]
    core_rows: list[Any] = [row for dtype in DTYPES for row in core_times(length, dtype, rounds)]
    about = (
        f"One attention layer, {WIDTH} wide, {HEADS} heads; one document of {length:,} tokens, its first token global. "
        f"{machine()}. Median of {rounds} rounds in which the sides take turns."
    )
    claim = (
        "The published claim, half of LED, is about the scores. A two-level layer has three more projections, so the "
        "time of a whole layer falls by less; both are given."
    )
    parts = [
        about,
        *("## Scores", scores(length), claim),
        *("## Seconds, whole layer with its projections", _seconds_table(layer_rows)),
        *("## Seconds, attention alone", table(("", "part", "forward", "forward + backward"), core_rows)),
        *("## Peak memory beyond weights and input", memory(length)),
    ]
    write_page(f"poolingformer{'-quick' if options.quick else ''}", "Poolingformer against LED's window", parts)


def _seconds_table(rows: list[Any]) -> str:
    return table(("", "layer", "forward", "of LED, ours", "forward + backward", "of LED, ours"), rows)


if __name__ == "__main__":
    main()
