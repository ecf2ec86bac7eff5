"""What a mechanism says that training keeps, against what autograd saves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from longspan.attention import MECHANISMS

WIDTH, HEADS = 64, 2


@pytest.mark.variant
@pytest.mark.parametrize("name", MECHANISMS)
def test_what_is_kept_is_what_autograd_saves(name):
    kind = MECHANISMS[name]
    config = kind()
    # Longer than what one dense mask may have, pooled keys included, where tiles begin.
    length = min(4099, config.reach().longest or 4099)
    module = config.build(width=WIDTH, heads=HEADS, causal=not kind.bidirectional)
    given = torch.randn(1, length, WIDTH, requires_grad=True) * 1.0
    own = {part.untyped_storage().data_ptr() for part in (given, *module.parameters(), *module.buffers())}
    saved: dict[int, int] = {}

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        out = module(given)
    assert out.requires_grad
    cost = config.costs(length=length, width=WIDTH, heads=HEADS, causal=not kind.bidirectional)
    says = 4 * cost.saved_activations
    assert says == pytest.approx(sum(saved.values()), rel=0.25)
