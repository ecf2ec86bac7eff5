"""Any length, any batch: a document gives the same alone, padded and in company."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from longspan.attention import Tokens
from longspan.errors import InputError

from .forms import PADDINGS, WIDTH


def test_any_length_gives_finite_outputs_and_gradients(form):
    module = form.build(torch.float32)
    for length, padding, globals_ in itertools.product((0, 1, 2, 13, 101), PADDINGS, form.globals):
        tokens, hidden = form.tokens(length, padding, globals_), torch.randn(2, length, WIDTH, requires_grad=True)
        module.zero_grad()
        output = module(hidden, tokens)
        output.sum().backward()
        gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        assert output.shape == hidden.shape
        assert all(tensor.isfinite().all() for tensor in (output, hidden.grad, *gradients))
        assert module.weights(hidden, tokens).shape == (2, module.heads, length, length)


def test_an_empty_batch_is_fine(form):
    tokens = form.tokens(5, "right", form.globals[-1])
    none = {name: flags[:0] for name in ("mask", "is_global") if (flags := getattr(tokens, name)) is not None}
    assert form.build(torch.float32)(torch.zeros(0, 5, WIDTH), replace(tokens, **none)).shape == (0, 5, WIDTH)


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_document_alone_padded_or_batched_gives_the_same(form, side):
    """Four documents of different lengths, each alone and all in one batch: outputs and gradients."""
    lengths, longest = [1, 2, 47, 150], 157
    module, hidden = form.build(), torch.randn(4, longest, WIDTH, dtype=torch.float64, requires_grad=True)
    place = torch.arange(longest) if side == "right" else longest - 1 - torch.arange(longest)
    mask = place < torch.tensor(lengths)[:, None]
    is_global = (torch.rand(4, longest) < 0.1) & mask if len(form.globals) > 1 else None
    together, towards = module(hidden, Tokens(mask=mask, is_global=is_global)), torch.randn(4, longest, WIDTH).double()
    (gradient,) = torch.autograd.grad(together, hidden, towards * mask[:, :, None])
    for row, own in enumerate(mask):
        flags = None if is_global is None else is_global[row : row + 1, own]
        document = hidden[row : row + 1, own].detach().requires_grad_()
        alone = module(document, Tokens(is_global=flags))
        torch.testing.assert_close(together[row : row + 1, own], alone)
        (expected,) = torch.autograd.grad(alone, document, towards[row : row + 1, own])
        torch.testing.assert_close(gradient[row : row + 1, own], expected)


def test_what_stands_on_padding_is_never_read(form):
    module, tokens = form.build(), form.tokens(41, "holes", form.globals[-1])
    hidden = torch.randn(2, 41, WIDTH, dtype=torch.float64)
    other = torch.where(tokens.mask[:, :, None], hidden, torch.randn_like(hidden))
    assert torch.equal(module(hidden, tokens)[tokens.mask], module(other, tokens)[tokens.mask])


def test_masks_of_another_shape_are_named(form):
    module, hidden = form.build(torch.float32), torch.zeros(1, 5, WIDTH)
    for name in ("mask", "is_global") if len(form.globals) > 1 else ("mask",):
        with pytest.raises(InputError, match=rf"{name} has shape \(1, 4\), but the sequence needs \(1, 5\)"):
            module(hidden, Tokens(**{name: torch.ones(1, 4, dtype=torch.bool)}))


def test_a_slot_counts_once_and_names_a_token(global_form):
    module, hidden = global_form.build(), torch.randn(2, 9, WIDTH, dtype=torch.float64)
    mask = torch.arange(9) < torch.tensor([[9], [5]])
    is_global = torch.arange(9) == torch.tensor([[4], [-1]])
    few = module(hidden, Tokens(mask=mask, is_global=is_global))
    slots = torch.tensor([[-1, 4, 4, -1], [-1, -1, 7, -1]])  # twice, not at all, and on padding
    torch.testing.assert_close(module(hidden, Tokens(mask=mask, global_slots=slots)), few)
    for wrong in (9, -2):
        with pytest.raises(InputError, match=f"global_slots holds {wrong}"):
            module(hidden, Tokens(mask=mask, global_slots=torch.tensor([[2], [wrong]])))
    with pytest.raises(InputError, match="1 rows"):
        module(hidden, Tokens(global_slots=torch.tensor([[2]])))
