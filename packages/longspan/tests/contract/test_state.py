"""Step by step = at once = in uneven pieces, with beams reordered on the way, from a state that stays small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from longspan.attention import Tokens
from longspan.attention.parts.state import GrowingLayer
from longspan.attention.support import supports

from .forms import PADDINGS, WIDTH, in_case

LENGTH = 31


def continued(module, hidden: Tensor, mask: Tensor | None, steps: list[int], state) -> Tensor:
    """The outputs of pieces of these sizes, each continuing the state."""
    outputs, seen = [], 0
    for step in steps:
        seen += step
        tokens = Tokens(mask=None if mask is None else mask[:, :seen])
        outputs.append(module(hidden[:, seen - step : seen], tokens, state))
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("padding", PADDINGS)
def test_pieces_equal_the_whole(stateful_form, padding):
    module, hidden = stateful_form.build(), torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    tokens = stateful_form.tokens(LENGTH, padding)
    whole = module(hidden, tokens)
    for steps in ([1] * LENGTH, [0, 5, 1, 1, 17, 0, 7], [LENGTH], [LENGTH - 1, 1]):
        pieces = continued(module, hidden, tokens.mask, steps, module.new_state())
        torch.testing.assert_close(pieces, whole, msg=in_case(steps=steps))


def test_beams_may_be_reordered_and_multiplied(stateful_form):
    module, hidden = stateful_form.build(), torch.randn(3, LENGTH, WIDTH, dtype=torch.float64)
    state = module.new_state()
    state.reorder_cache(torch.tensor([0]))  # nothing seen yet, nothing to do
    continued(module, hidden[:, :19], None, [19], state)
    for rows in (torch.tensor([2, 2, 0]), torch.tensor([1, 2, 0, 0, 1])):
        state.reorder_cache(rows)
        hidden = hidden[rows]
    rest = continued(module, hidden[:, 19:], None, [4, 1, 1, 6], state)
    torch.testing.assert_close(rest, module(hidden)[:, 19:])


def held(thing: Any) -> Iterator[Tensor]:
    """Every tensor that a state holds; of a growing one without its room, which `attention/test_state.py` counts."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, GrowingLayer):
        yield from (thing.keys.clone(), thing.values.clone())
    elif isinstance(thing, (list, tuple, dict)) or hasattr(thing, "__dict__"):
        inside = thing if isinstance(thing, (list, tuple)) else thing if isinstance(thing, dict) else vars(thing)
        for inner in inside.values() if isinstance(inside, dict) else inside:
            yield from held(inner)


@pytest.mark.variant
def test_a_linear_mechanism_keeps_a_state_of_constant_size(stateful_form):
    module, hidden = stateful_form.build(torch.float32), torch.randn(1, 400, WIDTH)
    sizes = []
    for length in (200, 400):
        state = module.new_state()
        with torch.no_grad():
            continued(module, hidden[:, :length], None, [length // 2] + [1] * (length // 2), state)
        sizes.append(sum(tensor.untyped_storage().nbytes() for tensor in held(state)))
    if not supports(stateful_form.config, "linear", causal=True):
        assert sizes[1] == pytest.approx(2 * sizes[0], rel=0.05)  # an unfinished block counts besides
    else:
        assert sizes[1] == sizes[0]
