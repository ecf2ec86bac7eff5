"""Structure between tokens, of mechanisms that read it: who sees whom, alone, padded and in company."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.attention import Tokens
from longspan.attention.parts.tokens import permuted

from .forms import WIDTH
from .oracles import oracle


def structured(length: int, mask: Tensor | None = None, every: int = 5) -> Tokens:
    """Two rows in which every so many tokens begin with a global one, to which the others belong; some are free."""
    is_global = (torch.arange(length) % every == 1).expand(2, length)
    owner = (is_global if mask is None else is_global & mask).cumsum(1) - 1
    return Tokens(mask=mask, is_global=is_global, belongs_to=torch.where(torch.rand(2, length) < 0.1, -1, owner))


def test_outputs_and_gradients_equal_the_dense_layer(structured_form):
    module = structured_form.build()
    for length, masked in ((23, False), (23, True), (301, True)):
        tokens = structured(length, torch.rand(2, length) < 0.8 if masked else None)
        hidden, upstream = torch.randn(2, 2, length, WIDTH, dtype=torch.float64)
        results = []
        for layer in (module, lambda *given: oracle(module, *given)):
            inputs = [hidden.clone().requires_grad_(), *module.parameters()]
            output = layer(inputs[0], tokens)
            gradients = torch.autograd.grad(output, inputs, upstream, allow_unused=True, materialize_grads=True)
            results.append((output, *gradients))
        torch.testing.assert_close(*results)


def test_alone_padded_and_in_company_is_the_same(structured_form):
    module = structured_form.build()
    hidden, tokens = torch.randn(1, 40, WIDTH, dtype=torch.float64), structured(40)
    assert tokens.is_global is not None
    assert tokens.belongs_to is not None
    alone = module(hidden, Tokens(is_global=tokens.is_global[:1], belongs_to=tokens.belongs_to[:1]))
    mask, belongs_to = torch.zeros(2, 57, dtype=torch.bool), torch.zeros(2, 57, dtype=torch.int64)
    mask[0, 11:51] = mask[1] = True
    is_global = torch.rand(2, 57) < 0.3
    is_global[:, 1] = True
    is_global[0, 11:51], belongs_to[0, 11:51] = tokens.is_global[0], tokens.belongs_to[0]
    belongs_to[0, :11] = 99  # what stands on padding is not read
    states = torch.randn(2, 57, WIDTH, dtype=torch.float64)
    states[0, 11:51] = hidden
    together = Tokens(mask=mask, is_global=is_global, belongs_to=belongs_to)
    output = module(states, together)
    torch.testing.assert_close(output[:1, 11:51], alone)
    padding_first = torch.cat([torch.arange(51, 57), torch.arange(51)]).expand(2, -1)
    moved, described, back = permuted(states[:1], row(together, 0), padding_first[:1])
    torch.testing.assert_close(module(moved, described).gather(1, back[..., None].expand_as(moved))[:, 11:51], alone)


def row(tokens: Tokens, index: int) -> Tokens:
    """What is known of one row."""
    flags = (tokens.mask, tokens.is_global, tokens.belongs_to)
    mask, is_global, belongs_to = (None if each is None else each[index : index + 1] for each in flags)
    return Tokens(mask=mask, is_global=is_global, belongs_to=belongs_to).with_slots()
