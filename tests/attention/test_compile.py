"""`torch.compile(fullgraph=True)` and `torch.export` with a dynamic length, once the slots have a static count."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from longspan.attention import FullConfig, FusionConfig, LongformerConfig, PoolingformerConfig, Tokens

WIDTH, HEADS = 12, 3
WINDOW = {"left_tokens": 4, "right_tokens": 3}
POOLED = {**WINDOW, "pooled_left_tokens": 9, "pooled_right_tokens": 9, "init": "normal"}
CASES = {
    "full": (FullConfig(), None),
    "longformer": (LongformerConfig(**WINDOW), None),
    "longformer with globals": (LongformerConfig(**WINDOW), 2),
    "longformer with many slots": (LongformerConfig(**WINDOW, separate_global_projections=False), 5),
    "poolingformer": (PoolingformerConfig(**POOLED), 2),
    "fusion": (FusionConfig(**POOLED, relative_span=8), 2),
    "fusion with buckets": (
        FusionConfig(
            **POOLED, relative_span=9, position_buckets=4, position_norm_eps=1e-5, tie_position_projections=True
        ),
        2,
    ),
    "fusion of one level": (FusionConfig(**WINDOW, two_level=False, separate_global_projections=True), 2),
    "poolingformer per query": (PoolingformerConfig(**POOLED, windows="per_query", pooling="max"), 2),
}
trained = {name: CASES[name] for name in ("longformer with globals", "poolingformer", "fusion")}
cases = pytest.mark.parametrize(("config", "slots"), CASES.values(), ids=CASES.keys())


@pytest.fixture(autouse=True)
def _forget_compiled_code() -> None:
    torch.compiler.reset()


class Layer(nn.Module):
    """An attention as a model calls it: masks in, slots of a static count derived inside."""

    def __init__(self, config, slots: int | None) -> None:
        super().__init__()
        self.attention, self.slots = config.build(width=WIDTH, heads=HEADS), slots

    def forward(self, hidden: Tensor, mask: Tensor, is_global: Tensor | None = None) -> Tensor:
        tokens = Tokens(mask=mask, is_global=is_global)
        return self.attention(hidden, tokens if self.slots is None else tokens.with_slots(self.slots))


def inputs(length: int, slots: int | None) -> tuple[Tensor, ...]:
    mask, is_global = torch.ones(2, length, dtype=torch.bool), torch.zeros(2, length, dtype=torch.bool)
    mask[1, length - 5 :], is_global[:, 0], is_global[0, 3] = False, True, True
    hidden = torch.randn(2, length, WIDTH)
    return (hidden, mask) if slots is None else (hidden, mask, is_global)


@pytest.mark.slow
@pytest.mark.parametrize(("config", "slots"), trained.values(), ids=trained.keys())
def test_one_graph_serves_every_length(config, slots):
    layer = Layer(config, slots)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (23, 41):
        hidden, *rest = inputs(length, slots)
        hidden.requires_grad_()
        ours, theirs = compiled(hidden, *rest), layer(hidden, *rest)
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(
            torch.autograd.grad(ours.sum(), hidden), torch.autograd.grad(theirs.sum(), hidden), rtol=1e-4, atol=1e-5
        )


@pytest.mark.slow
@cases
def test_an_exported_program_serves_every_length(config, slots):
    layer = Layer(config, slots).eval()
    length = torch.export.Dim("length", min=8, max=4096)
    example = inputs(24, slots)
    program = torch.export.export(layer, example, dynamic_shapes=tuple({1: length} for _ in example)).module()
    for tokens in (24, 41, 301):
        given = inputs(tokens, slots)
        torch.testing.assert_close(program(*given), layer(*given))


@pytest.mark.slow
def test_too_many_globals_for_a_compiled_graph_are_an_error():
    layer = Layer(LongformerConfig(left_tokens=4, right_tokens=3), 1)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="max_globals"):
        compiled(*inputs(23, 1))
