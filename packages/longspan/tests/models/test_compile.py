"""The encoder compiles as one graph, with global tokens in static slots and with gradients."""

from __future__ import annotations

import pytest
import torch

from longspan.errors import InputError
from longspan.models import LongspanModel


def mark_lengths(*inputs: torch.Tensor) -> None:
    """Lengths change, and tracing fails where one is fixed. `dynamic=True` would not fail, and takes the numbers of
    the modules for symbols too: every size is then a formula, and with gradients all is traced twice."""
    for tensor in inputs:
        torch._dynamo.mark_dynamic(tensor, 1)


@pytest.mark.slow
def test_compiles_with_a_mask_of_globals_in_static_slots(make_config, make_batch):
    model = LongspanModel(make_config(num_hidden_layers=1, max_global_tokens=4)).eval()
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for lengths, stance in (((31, 17), "default"), ((40, 40), "fail_on_recompile"), ((89, 6), "fail_on_recompile")):
        ids, mask = make_batch(*lengths)
        chosen = torch.arange(ids.shape[1]) < torch.tensor([[3], [1]])
        mark_lengths(ids, mask, chosen)
        with torch.no_grad(), torch.compiler.set_stance(stance):
            torch.testing.assert_close(
                compiled(ids, mask, chosen)[0], model(ids, mask, chosen)[0], atol=1e-5, rtol=1e-5
            )


@pytest.mark.slow
def test_gradients_through_the_compiled_graph(make_config, make_batch):
    model = LongspanModel(make_config(num_hidden_layers=1, dropout=0.0, global_tokens="first")).train()
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for lengths, stance in (((31, 17), "default"), ((89, 6), "fail_on_recompile")):
        ids, mask = make_batch(*lengths)
        mark_lengths(ids, mask)
        gradients = []
        with torch.compiler.set_stance(stance):
            for run in (model, compiled):
                model.zero_grad()
                run(ids, mask)[0].square().mean().backward()
                gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        torch.testing.assert_close(gradients[1], gradients[0], atol=1e-6, rtol=1e-4)


@pytest.mark.variant
def test_a_mask_of_globals_without_a_number_of_slots_is_refused_when_compiling(make_config, make_batch):
    model = LongspanModel(make_config(num_hidden_layers=1)).eval()
    ids, mask = make_batch(31, 17)
    torch.compiler.reset()
    with pytest.raises((InputError, torch._dynamo.exc.TorchDynamoException), match="max_global_tokens"):
        torch.compile(model, fullgraph=True, backend="eager")(ids, mask, mask)
