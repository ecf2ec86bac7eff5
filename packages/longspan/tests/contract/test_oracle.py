"""Outputs and all gradients are those of a dense layer, for any length, padding and choice of globals."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from .forms import PADDINGS, WIDTH, in_case
from .oracles import oracle


def outputs_and_gradients(function, module, hidden, tokens, upstream):
    hidden = hidden.detach().requires_grad_()
    output, inputs = function(hidden, tokens), [hidden, *module.parameters()]
    gradients = torch.autograd.grad(output, inputs, upstream, allow_unused=True, materialize_grads=True)
    return output, *gradients


@pytest.mark.parametrize("length", [pytest.param(23, marks=pytest.mark.variant), 211])
def test_outputs_and_gradients_equal_the_dense_layer(form, length):
    """With 211 tokens there are tiles, 23 are computed whole."""
    module, hidden = form.build(), torch.randn(2, length, WIDTH, dtype=torch.float64)
    for padding, globals_ in itertools.product(PADDINGS, form.globals):
        tokens, upstream = form.tokens(length, padding, globals_), torch.randn_like(hidden)
        ours = outputs_and_gradients(module, module, hidden, tokens, upstream)
        theirs = outputs_and_gradients(lambda *x: oracle(module, *x), module, hidden, tokens, upstream)
        torch.testing.assert_close(ours, theirs, msg=in_case(padding=padding, globals=globals_))


@settings(max_examples=25)
@given(length=st.integers(1, 37), padding=st.sampled_from(PADDINGS), draw=st.data(), seed=st.integers(0, 99))
def test_outputs_equal_the_dense_layer_everywhere(form, length, padding, draw, seed):
    torch.manual_seed(seed)
    module, hidden = form.build(), torch.randn(2, length, WIDTH, dtype=torch.float64)
    tokens = form.tokens(length, padding, draw.draw(st.sampled_from(form.globals)))
    with torch.no_grad():
        torch.testing.assert_close(module(hidden, tokens), oracle(module, hidden, tokens))


def test_gradcheck(form):
    module, hidden = form.build(), torch.randn(2, 7, WIDTH, dtype=torch.float64)
    tokens = form.tokens(7, "holes", form.globals[min(2, len(form.globals) - 1)])
    names = [name for name, _ in module.named_parameters()]
    inputs = [each.detach().requires_grad_() for each in (hidden, *module.parameters())]

    def layer(hidden, *parameters):
        return torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), (hidden, tokens))

    assert torch.autograd.gradcheck(layer, inputs, fast_mode=True)


def test_dropout_acts_in_training_only(form):
    module, hidden = form.build(dropout=0.5), torch.randn(2, 31, WIDTH, dtype=torch.float64)
    tokens = form.tokens(31, "right", form.globals[-1])
    assert not torch.equal(module(hidden, tokens), module(hidden, tokens))
    torch.testing.assert_close(module.eval()(hidden, tokens), oracle(module, hidden, tokens))
