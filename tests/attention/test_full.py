"""Full attention against PyTorch's own, causal and step by step."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from longspan.attention import FullConfig, Tokens
from longspan.errors import InputError

WIDTH, HEADS = 6, 2


def build(causal: bool = False):
    return FullConfig().build(width=WIDTH, heads=HEADS, causal=causal).double()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [0, 1, 7, 31])
def test_equals_torch(causal, length):
    module, hidden = build(causal), torch.randn(2, length, WIDTH, dtype=torch.float64)
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[1, max(1, length // 2) :] = False
    seen = mask[:, None, None, :].expand(2, 1, length, length)
    if causal:
        seen = seen & torch.ones(length, length, dtype=torch.bool).tril()
    context = scaled_dot_product_attention(*module.project(hidden), attn_mask=seen)
    torch.testing.assert_close(module(hidden, Tokens(mask=mask)), module.output(module.merge_heads(context)))
    weights = module.weights(hidden, Tokens(mask=mask))
    torch.testing.assert_close(weights @ module.project(hidden)[2], context)


def test_global_tokens_change_nothing():
    module, hidden = build(), torch.randn(2, 7, WIDTH, dtype=torch.float64)
    is_global = torch.rand(2, 7) < 0.5
    assert torch.equal(module(hidden, Tokens(is_global=is_global)), module(hidden))


def test_a_fully_padded_row_stays_finite():
    module, hidden = build(), torch.randn(2, 7, WIDTH, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[0] = False
    module(hidden, Tokens(mask=mask)).sum().backward()
    assert hidden.grad.isfinite().all()


@pytest.mark.parametrize("steps", [[1] * 11, [4, 1, 1, 5], [0, 11]])
def test_step_by_step_equals_the_full_pass(steps):
    module, hidden = build(causal=True), torch.randn(2, 11, WIDTH, dtype=torch.float64)
    mask = torch.ones(2, 11, dtype=torch.bool)
    mask[1, :3] = False
    state, outputs, seen = module.new_state(), [], 0
    for step in steps:
        piece = hidden[:, seen : seen + step]
        seen += step
        outputs.append(module(piece, Tokens(mask=mask[:, :seen]), state))
    assert state.get_seq_length() == 11
    torch.testing.assert_close(torch.cat(outputs, dim=1), module(hidden, Tokens(mask=mask)))


def test_beams_can_be_reordered():
    module, hidden = build(causal=True), torch.randn(3, 5, WIDTH, dtype=torch.float64)
    state = module.new_state()
    state.reorder_cache(torch.tensor([0]))  # nothing seen yet, nothing to do
    module(hidden[:, :4], state=state)
    rows = torch.tensor([2, 2, 0])
    state.reorder_cache(rows)
    step = module(hidden[rows, 4:], state=state)
    torch.testing.assert_close(step, module(hidden[rows])[:, 4:])


def test_causal_means_causal():
    module, hidden = build(causal=True), torch.randn(1, 9, WIDTH, dtype=torch.float64)
    changed = hidden.clone()
    changed[:, 5:] = 7.0
    assert torch.equal(module(hidden)[:, :5], module(changed)[:, :5])
    with pytest.raises(InputError, match="no global tokens"):
        module(hidden, Tokens(is_global=torch.ones(1, 9, dtype=torch.bool)))
