"""`torch.compile(fullgraph=True)` and `torch.export` with a dynamic length, once the slots have a static count."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from longspan.attention import Tokens

from .forms import CONFIGS, FORMS, HEADS, WIDTH, in_case

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


def inputs(form, length: int, rows: int = 2) -> tuple[Tensor, ...]:
    mask, is_global = torch.ones(rows, length, dtype=torch.bool), torch.zeros(rows, length, dtype=torch.bool)
    mask[1, max(1, length - 5) :], is_global[:, 0], is_global[0, 3:4] = False, True, True
    hidden = torch.randn(rows, length, WIDTH)
    return (hidden, mask) if len(form.globals) == 1 else (hidden, mask, is_global)


def check_one_graph(form, *given: int, backend: str = "aot_eager") -> None:
    """One graph, equal at two lengths and numbers of rows, with gradients; of the inputs behind the states, those
    `given` are passed, and of global tokens no more than there are slots.

    AOTAutograd, which traces gradients with symbols too, takes two thirds of the time. The graph of `"eager"` learns by
    the gradients of its operators.

    Rows and tokens are marked as what changes, which fails where either is fixed. `dynamic=True` would fail for
    neither, and traces twice: first with the numbers of a module as symbols, for which AOTAutograd gives up.
    """
    layer = Layer(form)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    for rows, length, stance in ((2, 23, "default"), (3, 41, "fail_on_recompile")):
        passed = [tensor for place, tensor in enumerate(inputs(form, length, rows), -1) if place in (-1, *given)]
        for tensor in passed:
            torch._dynamo.mark_dynamic(tensor, (0, 1))
        sources = [passed[0].requires_grad_(), *layer.parameters()]
        results = []
        with torch.compiler.set_stance(stance):
            for run in (compiled, layer):
                output = run(*passed)
                results.append((output, torch.autograd.grad(output.sum(), sources, allow_unused=True)))
            torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
            if 1 in given:
                passed[2][0, 5] = True
                with pytest.raises(Exception, match="max_globals"):
                    compiled(*passed)


def test_one_graph_serves_every_length(plain_form):
    """Gradients of forms that take globals are traced with these, below."""
    check_one_graph(plain_form, 0, backend="aot_eager" if len(plain_form.globals) == 1 else "eager")


def test_one_graph_with_globals_serves_every_length_and_refuses_too_many(plain_global_form):
    check_one_graph(plain_global_form, 0, 1)


def test_an_exported_program_serves_every_length_and_number_of_rows(config):
    """Mechanisms in both directions, further options in one of these, by turns: that of routing's published form is
    back, where it differs."""
    forms = [form for form in FORMS if form.config is config]
    if forms[0].name.removesuffix("-causal") != config.mechanism:
        forms = [forms[(1 + list(CONFIGS.values()).index(config)) % len(forms)]]
        assert forms[0].causal or config is not CONFIGS["routing-published"]
    for form in forms:
        layer, example = Layer(form).eval(), inputs(form, 24)
        axes = {0: torch.export.Dim("rows", min=1, max=64), 1: torch.export.Dim("length", min=1, max=4096)}
        program = torch.export.export(layer, example, dynamic_shapes=(axes,) * len(example), strict=False).module()
        for tokens, rows in ((1, 2), (2, 3), (3, 2), (4, 5), (5, 2), (24, 2), (41, 3), (301, 2)):
            given = inputs(form, tokens, rows)
            torch.testing.assert_close(program(*given), layer(*given), msg=in_case(form=form.name, tokens=tokens))


@torch.no_grad()
def test_more_slots_than_globals_change_nothing(plain_global_form):
    """With `dynamic=True`, by which a module's numbers are symbols, too."""
    given, layer = inputs(plain_global_form, 23), Layer(plain_global_form, slots=HEADS * WIDTH)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="eager")
    torch.testing.assert_close(compiled(*given), layer(*given), rtol=1e-4, atol=1e-4)
