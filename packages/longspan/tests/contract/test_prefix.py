"""A source read both ways before a target: equal to dense weights, blind to what follows, and in steps from a state."""

from __future__ import annotations

import pytest
import torch

from longspan.attention import Tokens
from longspan.errors import InputError
from longspan.patterns import Prefix

from .forms import WIDTH
from .oracles import one_level

SOURCE, LENGTH = 13, 31


def inputs(form):
    return form.build(), torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("targets", [0, 9])
def test_it_equals_dense_weights(prefix_form, padding, targets):
    module, hidden = inputs(prefix_form)
    prefix = Prefix(SOURCE, targets)
    tokens = Tokens(mask=prefix_form.tokens(LENGTH, padding).mask, prefix=prefix)
    seen = module.weights(hidden, tokens)[0, 0] > 0
    real = torch.ones(LENGTH, dtype=torch.bool) if tokens.mask is None else tokens.mask[0]
    assert torch.equal(seen[real][:, real], prefix.dense(LENGTH)[real][:, real])
    torch.testing.assert_close(module(hidden, tokens)[:, real], one_level(module, hidden, tokens)[:, real])


def test_the_source_sees_all_of_itself_and_nothing_of_the_target(prefix_form):
    module, hidden = inputs(prefix_form)
    tokens, changed = Tokens(prefix=Prefix(SOURCE)), hidden.clone()
    changed[:, 20:] = 100 * torch.randn_like(changed[:, 20:])
    assert torch.equal(module(hidden, tokens)[:, :20], module(changed, tokens)[:, :20])
    changed = hidden.clone()
    changed[:, SOURCE - 1] += 1
    assert not torch.equal(module(hidden, tokens)[:, 0], module(changed, tokens)[:, 0])


def test_a_target_in_steps_behind_a_source_equals_the_whole(prefix_form):
    module, hidden = inputs(prefix_form)
    state = module.new_state()
    pieces = [module(hidden[:, :SOURCE], Tokens(prefix=Prefix(SOURCE)), state)]
    for first, last in ((SOURCE, 14), (14, 25), (25, LENGTH)):
        pieces.append(module(hidden[:, first:last], Tokens(), state))
    torch.testing.assert_close(torch.cat(pieces, 1), module(hidden, Tokens(prefix=Prefix(SOURCE))))


def test_all_others_refuse_it(no_prefix_form):
    with pytest.raises(InputError, match=r"supports no bidirectional prefix.*; pass prefix=None"):
        no_prefix_form.build()(torch.randn(2, 4, WIDTH, dtype=torch.float64), Tokens(prefix=Prefix(2)))
