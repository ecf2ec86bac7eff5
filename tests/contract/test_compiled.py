"""`torch.compile(fullgraph=True)` and `torch.export` with a dynamic length, once the slots have a static count."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from longspan.attention import Tokens

from .forms import FORMS, HEADS, WIDTH, in_case

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _forget_compiled_code() -> None:
    torch.compiler.reset()


class Layer(nn.Module):
    """An attention as a model calls it: masks in, slots of a static count derived inside."""

    def __init__(self, form, slots: int = 2) -> None:
        super().__init__()
        self.attention, self.slots = form.build(torch.float32), slots

    def forward(self, hidden: Tensor, mask: Tensor, is_global: Tensor | None = None) -> Tensor:
        return self.attention(hidden, Tokens(mask=mask, is_global=is_global).with_slots(self.slots))


def inputs(form, length: int) -> tuple[Tensor, ...]:
    mask, is_global = torch.ones(2, length, dtype=torch.bool), torch.zeros(2, length, dtype=torch.bool)
    mask[1, max(1, length - 5) :], is_global[:, 0], is_global[0, 3:4] = False, True, True
    hidden = torch.randn(2, length, WIDTH)
    return (hidden, mask) if len(form.globals) == 1 else (hidden, mask, is_global)


def check_one_graph(form, *given: int) -> None:
    """One graph, equal at two lengths, with gradients; of the inputs behind the states, those `given` are passed."""
    layer = Layer(form)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (23, 41):
        hidden, *flags = inputs(form, length)
        hidden.requires_grad_()
        sources = [hidden, *layer.parameters()]
        results = []
        for run in (compiled, layer):
            output = run(hidden, *(flags[place] for place in given))
            results.append((output, torch.autograd.grad(output.sum(), sources, allow_unused=True)))
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


def test_one_graph_serves_every_length(plain_form):
    check_one_graph(plain_form, 0)


def test_one_graph_with_globals_serves_every_length(plain_global_form):
    check_one_graph(plain_global_form, 0, 1)


def test_an_exported_program_serves_every_length(config):
    for form in [form for form in FORMS if form.config is config]:
        layer, length = Layer(form).eval(), torch.export.Dim("length", min=1, max=4096)
        example = inputs(form, 24)
        program = torch.export.export(layer, example, dynamic_shapes=tuple({1: length} for _ in example)).module()
        for tokens in (1, 2, 3, 4, 5, 24, 41, 301):
            given = inputs(form, tokens)
            torch.testing.assert_close(program(*given), layer(*given), msg=in_case(form=form.name, tokens=tokens))


def test_too_few_slots_of_a_compiled_graph_are_an_error_and_many_are_none(plain_global_form):
    given = inputs(plain_global_form, 23)
    for slots in (1, HEADS * WIDTH):
        layer = Layer(plain_global_form, slots)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        if slots == 1:
            with pytest.raises(Exception, match="max_globals"):
                compiled(*given)
        else:
            torch.testing.assert_close(compiled(*given), layer(*given), rtol=1e-4, atol=1e-4)
        torch.compiler.reset()
