"""Causal means causal: no output depends on a later token, bit for bit, in outputs and in gradients."""

from __future__ import annotations

import pytest
import torch

from .forms import PADDINGS, WIDTH


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("length", "cut"), [(2, 1), (17, 9), (211, 100), (211, 210)])
def test_a_changed_future_leaves_earlier_outputs_bit_identical(causal_form, length, cut, dtype):
    module, hidden = causal_form.build(dtype), torch.randn(2, length, WIDTH, dtype=dtype)
    changed = hidden.clone()
    changed[:, cut:] = 100 * torch.randn_like(changed[:, cut:])
    for padding in PADDINGS:
        tokens = causal_form.tokens(length, padding)
        assert torch.equal(module(hidden, tokens)[:, :cut], module(changed, tokens)[:, :cut])


def test_a_token_that_turns_out_to_be_padding_changes_nothing_before_it(causal_form):
    module, hidden = causal_form.build(), torch.randn(2, 31, WIDTH, dtype=torch.float64)
    cut = 31 - 31 // 3
    torch.testing.assert_close(
        module(hidden, causal_form.tokens(31, "right"))[:, :cut], module(hidden)[:, :cut], rtol=0, atol=1e-12
    )


def test_earlier_outputs_have_no_gradient_in_later_inputs(causal_form):
    module, hidden = causal_form.build(), torch.randn(2, 101, WIDTH, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(module(hidden)[:, :50].square().sum(), hidden)
    assert not gradient[:, 50:].any()
    assert gradient[:, :50].any()
