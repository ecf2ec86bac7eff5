"""What DeBERTa's relative positions cost in a window: `python benchmarks/fusion.py [--quick]`.

One attention layer of DeBERTa-base shape (768 wide, 12 heads), one document, its first token global. The first level of
`fusion` (128 on each side, a table of 2 × 512 rows), the plain window of `longformer` with the same sizes and weights,
and, where it fits, transformers' own DeBERTa layer, which is full attention, take turns in this process once their
results agree. Writes `results/fusion.md` (with `--quick`: `results/fusion-quick.md`).
"""

from __future__ import annotations

import argparse
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import transformers
from torch import Tensor, nn
from transformers.models.deberta.modeling_deberta import DisentangledSelfAttention, build_relative_position

from layers import OurLayer, document, first_token, step
from longspan.attention import FusionConfig, LongformerConfig, RelativeTables, Tokens
from longspan.attention.fusion import FusionAttention
from longspan.attention.parts.windowed import WindowedAttention
from longspan.ops import attend
from longspan.ops.attend.terms import ContentToPosition, PositionToContent
from longspan.patterns import Window
from measure import check_close, machine, paired_seconds, peak_bytes, table, write_page

WIDTH, HEADS, SIDE, SPAN = 768, 12, 128, 512
LONGEST_FULL = 2048
"""Transformers' layer holds several tensors of T × T numbers per head; above this length it is left out."""
SIDES = {
    "longformer": "plain window",
    "fusion": "window with relative positions",
    "transformers": "DeBERTa of transformers, full attention",
}
DTYPES = (torch.float32, torch.bfloat16)


class TheirLayer(nn.Module):
    """The self-attention of transformers' DeBERTa with its table and output projection, called as its encoder does."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.DebertaConfig(
            hidden_size=WIDTH,
            num_attention_heads=HEADS,
            relative_attention=True,
            max_relative_positions=SPAN,
            pos_att_type=["c2p", "p2c"],
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        self.inner = DisentangledSelfAttention(config)
        self.table = nn.Parameter(0.02 * torch.randn(2 * SPAN, WIDTH))
        self.output = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        place = torch.zeros(1, 1, hidden.shape[1], 1)
        seen = torch.ones(hidden.shape[0], 1, hidden.shape[1], hidden.shape[1], dtype=torch.bool)
        relative = build_relative_position(place, place)
        return self.output(self.inner(hidden, seen, relative_pos=relative, rel_embeddings=self.table)[0])


def fusion(side: int = SIDE) -> FusionAttention:
    torch.manual_seed(0)
    config = FusionConfig(left_tokens=side, right_tokens=side, relative_span=SPAN, two_level=False)
    return config.build(width=WIDTH, heads=HEADS)


def longformer() -> WindowedAttention:
    torch.manual_seed(0)
    config = LongformerConfig(left_tokens=SIDE, right_tokens=SIDE, separate_global_projections=False)
    return config.build(width=WIDTH, heads=HEADS)


def layer(side: str, dtype: torch.dtype) -> nn.Module:
    """One of `SIDES`."""
    if side == "transformers":
        torch.manual_seed(0)
        return TheirLayer().to(dtype)
    return OurLayer(fusion() if side == "fusion" else longformer()).to(dtype)


def check_layers() -> None:
    """Fusion against transformers' layer, against its own dense weights, and without positions against the window."""
    with torch.no_grad():
        theirs, ours, hidden = TheirLayer(), fusion(SPAN), document(SPAN, WIDTH, torch.float32)
        _copy_weights(theirs, ours)
        tokens = Tokens(relative=RelativeTables(theirs.table, torch.zeros(128, WIDTH)))
        check_close("a window over everything", ours(hidden, tokens), theirs(hidden), 1e-4)
        ours, hidden = fusion(), document(2048, WIDTH, torch.float32)
        dense = ours.merge_heads(
            ours.weights(hidden, Tokens(global_slots=first_token(hidden))) @ ours.split_heads(ours.value(hidden))
        )
        check_close("dense weights", OurLayer(ours)(hidden), ours.output(dense), 1e-4)
        plain = longformer()
        plain.load_state_dict({name: ours.state_dict()[name] for name in plain.state_dict()})
        for parameter in plain.query.parameters():
            parameter /= math.sqrt(3)
        assert ours.positions is not None
        for parameter in (
            *ours.positions.parameters(),
            ours.position_query.bias,
            ours.global_position_query.bias,
        ):
            parameter.zero_()
        check_close("without positions", OurLayer(ours)(hidden), OurLayer(plain)(hidden), 1e-4)


def _copy_weights(theirs: TheirLayer, ours: FusionAttention) -> None:
    fused = theirs.inner.in_proj.weight.view(HEADS, 3, WIDTH // HEADS, WIDTH)
    for which, name in enumerate(("query", "key", "value")):
        getattr(ours, name).weight.copy_(fused[:, which].flatten(0, 1))
        getattr(ours, name).bias.zero_()
    ours.query.bias.copy_(theirs.inner.q_bias)
    ours.value.bias.copy_(theirs.inner.v_bias)
    ours.position_key.load_state_dict(theirs.inner.pos_proj.state_dict())
    ours.position_query.load_state_dict(theirs.inner.pos_q_proj.state_dict())
    ours.output.load_state_dict(theirs.output.state_dict())


def sides_at(length: int) -> list[str]:
    return [side for side in SIDES if side != "transformers" or length <= LONGEST_FULL]


def layer_times(length: int, dtype: torch.dtype, rounds: int) -> list[list[str]]:
    """Seconds of each whole layer, projections included."""
    hidden, layers = document(length, WIDTH, dtype), {side: layer(side, dtype) for side in sides_at(length)}
    rows = {side: [f"{length:,}", _name(dtype), SIDES[side]] for side in layers}
    for backward in (False, True):
        runs = {side: partial(step, run, hidden, backward=backward) for side, run in layers.items()}
        seconds = paired_seconds(runs, rounds=rounds)
        for side in layers:
            rows[side] += [f"{seconds[side]:.3f}", f"{seconds[side] / seconds['longformer']:.2f}"]
    return list(rows.values())


def disentangled(query: Tensor, key: Tensor, value: Tensor, keys: Tensor, queries: Tensor, scale: float) -> Tensor:
    """Attention in the window with DeBERTa's scores, from projected tables of offsets."""
    terms = [ContentToPosition(keys), PositionToContent(queries)]
    return attend(query, key, value, pattern=Window(SIDE, SIDE), terms=terms, scale=scale)


def core_times(length: int, dtype: torch.dtype, rounds: int) -> list[list[str]]:
    """Seconds of attention alone, projections and globals excluded."""
    generator, shape = torch.Generator().manual_seed(0), (1, HEADS, length, WIDTH // HEADS)
    heads = [torch.randn(shape, generator=generator).to(dtype) for _ in range(3)]
    tables = [torch.randn(HEADS, 2 * SIDE + 1, shape[3], generator=generator).to(dtype) for _ in range(2)]
    scale = (3 * shape[3]) ** -0.5
    parts: dict[str, Callable[[], None]] = {}
    rows: dict[str, list[str]] = {}
    for backward in (False, True):
        plain = partial(attend, pattern=Window(SIDE, SIDE), scale=scale)
        relative = partial(disentangled, scale=scale)
        parts["plain window"] = partial(step, plain, *heads, backward=backward)
        parts["window with relative positions"] = partial(step, relative, *heads, *tables, backward=backward)
        seconds = paired_seconds(parts, rounds=rounds)
        for name in parts:
            row = rows.setdefault(name, [f"{length:,}", _name(dtype), name])
            row += [f"{seconds[name]:.3f}", f"{seconds[name] / seconds['plain window']:.2f}"]
    return list(rows.values())


def memory_step(side: str, length: int, dtype: torch.dtype, backward: bool) -> Iterator[None]:
    """For `peak_bytes`: one step of one layer."""
    run, hidden = layer(side, dtype), document(length, WIDTH, dtype)
    step(run, hidden[:, :512], backward=backward)
    gc.collect()
    yield
    step(run, hidden, backward=backward)


def memory(length: int, dtype: torch.dtype) -> list[list[str]]:
    """Peak memory that a step of each layer adds to its weights and its input."""
    rows = []
    for side in sides_at(length):
        peaks = [peak_bytes(memory_step, side, length, dtype, backward) / 2**20 for backward in (False, True)]
        rows.append([f"{length:,}", _name(dtype), SIDES[side], *(f"{peak:,.0f} MiB" for peak in peaks)])
    return rows


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096, 16384, 65536])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="1,024 and 2,048 tokens, one round")
    options = parser.parse_args(arguments)
    lengths, rounds = ([1024, 2048], 1) if options.quick else (options.tokens, options.rounds)
    check_layers()
    cases = [(length, dtype) for dtype in DTYPES for length in lengths]
    layer_rows = [row for case in cases for row in layer_times(*case, rounds)]
    core_rows = [row for case in cases for row in core_times(*case, rounds)]
    memory_rows = [row for case in cases for row in memory(*case)]
    about = (
        f"One attention layer, {WIDTH} wide, {HEADS} heads, {SIDE} tokens seen on each side; one document, its first "
        f"token global. {machine()}. Median of {rounds} rounds in which the sides take turns. “Of plain” is the time "
        "divided by that of the plain window."
    )
    header = ("tokens", "", "layer", "forward", "of plain", "forward + backward", "of plain")
    parts = [
        about,
        *("## Seconds, whole layer with its projections", table(header, layer_rows)),
        *("## Seconds, attention alone, no global token", table(header, core_rows)),
        "## Peak memory beyond weights and input",
        table(("tokens", "", "layer", "forward", "forward + backward"), memory_rows),
    ]
    write_page(f"fusion{'-quick' if options.quick else ''}", "Relative positions in a window", parts)


if __name__ == "__main__":
    main()
