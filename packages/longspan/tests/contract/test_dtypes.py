"""Short floats lose no more than a dense layer of the same type, and autocast trains."""

from __future__ import annotations

import copy
import itertools

import torch
from torch import Tensor

from .forms import PADDINGS, WIDTH
from .oracles import oracle


def test_a_type_errs_no_more_than_twice_a_dense_layer(form):
    exact = form.build()
    hidden, tokens = (
        torch.randn(2, 211, WIDTH, dtype=torch.float64),
        form.tokens(211, "right", form.globals[min(1, len(form.globals) - 1)]),
    )
    truth = exact(hidden, tokens)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        short = copy.deepcopy(exact).to(dtype)
        output = short(hidden.to(dtype), tokens)
        assert output.dtype == dtype
        ours, theirs = (each.double() - truth for each in (output, oracle(short, hidden.to(dtype), tokens)))
        assert ours.abs().mean() <= 2 * theirs.abs().mean(), dtype


def test_autocast_trains(form):
    """What the Trainer does with `bf16=True`: float32 weights, short floats inside, dense or in tiles."""
    module = form.build(torch.float32)
    for parameter in module.parameters():
        parameter.data *= 0.4
    moved: dict[int, list[Tensor]] = {}  # whether a token came out otherwise
    for length, padding in [*itertools.product((1, 17), PADDINGS), (601, "none"), (601, "right")]:
        hidden = torch.randn(2, length, WIDTH, requires_grad=True)
        tokens = form.tokens(length, padding, form.globals[0 if length == 17 else -1])
        exact = module(hidden, tokens).detach()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = module(hidden, tokens)
        if form.config.chooses:
            far = ~torch.isclose(output.float(), exact, rtol=0.05, atol=0.02)
            moved.setdefault(length, []).append(far.any(2).flatten())
        else:
            torch.testing.assert_close(output.float(), exact, rtol=0.05, atol=0.02)
        output.float().sum().backward()
        assert hidden.grad.isfinite().all()
        assert {parameter.grad.dtype for parameter in module.parameters() if parameter.grad is not None} == {
            torch.float32
        }
    for flags in moved.values():  # rounding moves the few that stand between two choices
        assert torch.cat(flags).float().mean() <= 0.1
