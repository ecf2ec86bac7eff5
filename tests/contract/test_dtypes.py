"""Short floats lose no more than a dense layer of the same type, and autocast trains."""

from __future__ import annotations

import pytest
import torch

from .forms import PADDINGS, WIDTH
from .oracles import oracle


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_type_errs_no_more_than_twice_a_dense_layer(form, dtype):
    exact = form.build()
    hidden, tokens = (
        torch.randn(2, 211, WIDTH, dtype=torch.float64),
        form.tokens(211, "right", form.globals[min(1, len(form.globals) - 1)]),
    )
    truth = exact(hidden, tokens)
    short = exact.to(dtype)
    output = short(hidden.to(dtype), tokens)
    assert output.dtype == dtype
    ours, theirs = (each.double() - truth for each in (output, oracle(short, hidden.to(dtype), tokens)))
    assert ours.abs().mean() <= 2 * theirs.abs().mean()


@pytest.mark.parametrize("length", [1, 17, pytest.param(601, marks=pytest.mark.slow)])
def test_autocast_trains(form, length):
    """What the Trainer does with `bf16=True`: float32 weights, short floats inside, dense or in tiles."""
    module, hidden = form.build(torch.float32), torch.randn(2, length, WIDTH, requires_grad=True)
    for parameter in module.parameters():
        parameter.data *= 0.4
    for padding in PADDINGS:
        tokens = form.tokens(length, padding, form.globals[0 if length == 17 else -1])
        exact = module(hidden, tokens).detach()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = module(hidden, tokens)
        if form.config.chooses:  # rounding moves the few that stand between two choices
            far = ~torch.isclose(output.float(), exact, rtol=0.05, atol=0.02)
            assert far.any(2).float().mean() <= 0.1
        else:
            torch.testing.assert_close(output.float(), exact, rtol=0.05, atol=0.02)
        output.float().sum().backward()
        assert hidden.grad.isfinite().all()
        assert {parameter.grad.dtype for parameter in module.parameters() if parameter.grad is not None} == {
            torch.float32
        }
