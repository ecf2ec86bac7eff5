"""The encoder compiles as one graph and exports with a dynamic length, with and without global tokens."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim

from longspan.errors import InputError
from longspan.models import LongspanModel

FUSION = {"mechanism": "fusion", "left_tokens": 3, "right_tokens": 2, "relative_span": 5, "global_buckets": 4}
FUSION |= {"pooled_left_tokens": 7, "pooled_right_tokens": 7}
LENGTHS = ((31, 17), (40, 40), (89, 6))


def assert_same(fast, model, make_batch, *, with_globals=False):
    for lengths in LENGTHS:
        ids, mask = make_batch(*lengths)
        chosen = (torch.arange(ids.shape[1]) < torch.tensor([[3], [1]]),) if with_globals else ()
        with torch.no_grad():
            torch.testing.assert_close(fast(ids, mask, *chosen)[0], model(ids, mask, *chosen)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_compiles_with_a_mask_of_globals_in_static_slots(make_config, make_batch):
    model = LongspanModel(make_config(num_hidden_layers=1, max_global_tokens=4)).eval()
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
    assert_same(compiled, model, make_batch, with_globals=True)


@pytest.mark.slow
def test_gradients_through_the_compiled_graph(make_config, make_batch):
    model = LongspanModel(make_config(num_hidden_layers=1, dropout=0.0, global_tokens="first")).train()
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    ids, mask = make_batch(31, 17)
    gradients = []
    for run in (model, compiled):
        model.zero_grad()
        run(ids, mask)[0].square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-6, rtol=1e-4)


def test_exports_with_a_dynamic_length(make_config, make_batch):
    model = LongspanModel(make_config(attention=FUSION, num_hidden_layers=1, global_tokens="first")).eval()
    tokens = Dim("tokens", min=5, max=97)
    exported = torch.export.export(
        model, make_batch(31, 17), dynamic_shapes={"input_ids": {1: tokens}, "attention_mask": {1: tokens}}
    )
    assert_same(exported.module(), model, make_batch)


def test_a_mask_of_globals_without_a_number_of_slots_is_refused_when_compiling(make_config, make_batch):
    model = LongspanModel(make_config(num_hidden_layers=1)).eval()
    ids, mask = make_batch(31, 17)
    torch.compiler.reset()
    with pytest.raises((InputError, torch._dynamo.exc.TorchDynamoException), match="max_global_tokens"):
        torch.compile(model, fullgraph=True, backend="eager")(ids, mask, mask)
