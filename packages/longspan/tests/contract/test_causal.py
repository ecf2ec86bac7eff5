"""Causal means causal: no output depends on a later token, bit for bit, in outputs and in gradients.

One named option is exempt, because it is what was published: Routing's balanced clusters with `causal_form="published"`
choose their members from the whole text. That they leak is tested too.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from longspan.attention.support import why_not

from .forms import FORMS, PADDINGS, WIDTH

LEAKY = [form for form in FORMS if form.causal and not form.supports("strict")]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_changed_future_leaves_earlier_outputs_bit_identical(strict_form, dtype):
    module = strict_form.build(dtype)
    for (length, cut), padding in itertools.product([(2, 1), (17, 9), (211, 100), (211, 210)], PADDINGS):
        hidden, tokens = torch.randn(2, length, WIDTH, dtype=dtype), strict_form.tokens(length, padding)
        changed = hidden.clone()
        changed[:, cut:] = 100 * torch.randn_like(changed[:, cut:])
        same = torch.equal(module(hidden, tokens)[:, :cut], module(changed, tokens)[:, :cut])
        assert same, f"{length} tokens, changed from {cut} on, padding {padding}"


def test_a_token_that_turns_out_to_be_padding_changes_nothing_before_it(strict_form):
    module, hidden = strict_form.build(), torch.randn(2, 31, WIDTH, dtype=torch.float64)
    cut = 31 - 31 // 3
    torch.testing.assert_close(
        module(hidden, strict_form.tokens(31, "right"))[:, :cut], module(hidden)[:, :cut], rtol=0, atol=1e-12
    )


def test_earlier_outputs_have_no_gradient_in_later_inputs(strict_form):
    module, hidden = strict_form.build(), torch.randn(2, 101, WIDTH, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(module(hidden)[:, :50].square().sum(), hidden)
    assert not gradient[:, 50:].any()
    assert gradient[:, :50].any()


def test_only_what_was_published_so_leaks_and_it_says_so():
    assert [form.name for form in LEAKY] == ["routing-published-causal"]
    (form,) = LEAKY
    assert "the future leaks" in str(why_not(form.config, "strict", causal=True))
    assert "the future leaks" in " ".join((type(form.config).__doc__ or "").split())
    module, hidden = form.build(), torch.randn(2, 211, WIDTH, dtype=torch.float64)
    changed = hidden.clone()
    changed[:, 100:] = 100 * torch.randn_like(changed[:, 100:])
    assert not torch.allclose(module(hidden)[:, :100], module(changed)[:, :100])
    # No score looks ahead: a token's gradient is the future's by the choice of members alone, which has none.
    hidden.requires_grad_()
    (gradient,) = torch.autograd.grad(module(hidden)[:, :100].square().sum(), hidden)
    assert not gradient[:, 100:].any()
