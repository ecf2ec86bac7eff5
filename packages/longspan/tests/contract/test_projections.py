"""Projections of every mechanism, stack and head: plain `nn.Linear`, which PyTorch quantises, and which multiply half
precision in float32 where the processor has no instructions for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from longspan.models import LongspanConfig, LongspanForCausalLM
from longspan.models.adaptive import ReadWeights
from longspan.ops.half_linear import FEWEST_ROWS
from longspan.ops.runtime import HALF_VARIABLE

from . import test_heads, test_stacked_models
from .forms import WIDTH
from .test_heads import CASES

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning"),
]


class HalfProducts(TorchFunctionMode):
    """Collects the shapes of inputs that linear layers multiply in half precision, of more than a few vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        half = func is functional.linear and args[0].dtype != torch.float32
        if half and args[0].numel() >= FEWEST_ROWS * args[0].shape[-1]:
            self.shapes.append(tuple(args[0].shape))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def half_products(monkeypatch: pytest.MonkeyPatch) -> HalfProducts:
    monkeypatch.setenv(HALF_VARIABLE, "float32")
    return HalfProducts()


def quantised(model: nn.Module) -> nn.Module:
    """The model with 8-bit weights, none of whose projections was passed over."""
    found = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    assert any(isinstance(part, nn.Linear) for part in model.modules())
    assert [name for name, part in found.named_modules() if isinstance(part, nn.Linear)] == []
    return found


def error(found: Tensor, true: Tensor) -> float:
    return float((found - true).abs().mean() / true.abs().mean())


@torch.no_grad()
def test_a_mechanism_is_quantised(form):
    module, hidden = form.build(torch.float32).eval(), torch.randn(2, 31, WIDTH)
    tokens = form.tokens(31, "right", form.globals[min(1, len(form.globals) - 1)])
    # 8 bits for a range of weights, and of states: about 1 % of each. Choices between tokens change what is seen.
    assert error(quantised(module)(hidden, tokens), module(hidden, tokens)) < (0.3 if form.config.chooses else 0.1)


@torch.no_grad()
def test_a_mechanism_multiplies_no_half_precision(form, half_products):
    module = form.build(torch.bfloat16).eval()
    hidden, tokens = torch.randn(2, 31, WIDTH).bfloat16(), form.tokens(31, "right", form.globals[-1])
    with half_products:
        module(hidden, tokens)
        if form.supports("state"):
            module(hidden, tokens, state=module.new_state())
    assert half_products.shapes == []


@torch.no_grad()
@test_stacked_models.every_plain_stack
def test_a_stack(name, half_products):
    model, (ids, mask) = test_stacked_models.build(name), test_stacked_models.batch(31, 17)
    found, true = (each(ids, mask)[0][mask.bool()] for each in (quantised(model), model))
    assert error(found, true) < 0.3
    with half_products:
        model.bfloat16()(ids, mask)
    assert half_products.shapes == []


@torch.no_grad()
@pytest.mark.parametrize("spec", CASES, ids=lambda spec: "-".join(map(str, [spec["head"], *list(spec)[1:]])))
def test_a_head(spec, half_products):
    model, given = test_heads.make(spec), test_heads.of(test_heads.INPUTS, spec)
    true, found = (test_heads.tensors(each(*test_heads.texts(spec), **given)) for each in (model, quantised(model)))
    assert found.keys() == true.keys()
    assert {name: value.shape for name, value in found.items()} == {name: value.shape for name, value in true.items()}
    with half_products:
        model.bfloat16()(*test_heads.texts(spec), **given)
    assert half_products.shapes == []


@torch.no_grad()
def test_weights_that_tables_share_stay_as_they_are():
    """An adaptive table and the head that is tied to it read weights by rows."""
    sizes: dict[str, Any] = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 1, "intermediate_size": 40}
    sizes |= {"num_attention_heads": 2, "cutoffs": (10, 30), "embedding_size": 24, "embedding_divisor": 2}
    model = LongspanForCausalLM(LongspanConfig(**sizes)).eval()
    found = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    assert {type(part) for part in found.modules() if isinstance(part, nn.Linear)} == {ReadWeights}
    ids = torch.randint(3, 61, (2, 13))
    assert error(found(ids).logits, model(ids).logits) < 0.1
