"""`x Wᵀ + b` in half precision: rounded once, and products in float32 where the processor has no others."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from longspan.attention.base import input_dtype, projected
from longspan.ops.half_linear import FEWEST_ROWS, linear
from longspan.ops.runtime import HALF_VARIABLE

HALF = [torch.bfloat16, torch.float16]
PRODUCTS = {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.mkldnn._linear_pointwise}


class Products(TorchDispatchMode):
    """The types that are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in PRODUCTS:
            self.types |= {each.dtype for each in args if isinstance(each, Tensor)}
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _without_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HALF_VARIABLE, "float32")


def drawn(dtype: torch.dtype, rows: int = 11, *, bias: bool = True) -> list[Tensor | None]:
    shapes = [(2, rows, 13), (7, 13), (7,)]
    tensors: list[Tensor | None] = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
    return tensors if bias else [*tensors[:2], None]


def exact(tensors: list[Tensor | None]) -> list[Tensor | None]:
    return [None if each is None else each.detach().double().requires_grad_() for each in tensors]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", HALF)
def test_outputs_and_gradients_are_the_exact_ones_rounded_once(dtype: torch.dtype, bias: bool) -> None:
    tensors = drawn(dtype, bias=bias)
    given = [each for each in tensors if each is not None]
    towards = torch.randn(2, 11, 7).to(dtype)
    with Products() as products:
        output = linear(*tensors)  # pyright: ignore[reportArgumentType]
        grads = torch.autograd.grad(output, given, towards)
    assert products.types == {torch.float32}
    wide = exact(tensors)
    expected = F.linear(*wide)  # pyright: ignore[reportArgumentType, reportCallIssue]
    wanted = torch.autograd.grad(expected, [each for each in wide if each is not None], towards.double())
    for found, true in zip([output, *grads], [expected, *wanted], strict=True):
        assert found.dtype == dtype
        # Half a step of the type, and what float32 adds up where terms cancel.
        torch.testing.assert_close(found.double(), true, rtol=torch.finfo(dtype).eps / 2, atol=1e-5)


@pytest.mark.parametrize("dtype", HALF)
def test_under_autocast_weights_stay_and_results_are_narrow(dtype: torch.dtype) -> None:
    """Inputs and weights are rounded first, as autocast does, and all else once."""
    tensors = drawn(torch.float32)
    with Products() as products, torch.autocast("cpu", dtype=dtype):
        output = linear(*tensors)  # pyright: ignore[reportArgumentType]
        grads = torch.autograd.grad(output, tensors, torch.ones_like(output))  # pyright: ignore[reportArgumentType]
    assert products.types == {torch.float32}
    assert output.dtype == dtype
    wide = exact([None if each is None else each.to(dtype) for each in tensors])
    expected = F.linear(*wide)  # pyright: ignore[reportArgumentType, reportCallIssue]
    torch.testing.assert_close(output.double(), expected, rtol=torch.finfo(dtype).eps / 2, atol=1e-5)
    wanted = torch.autograd.grad(expected, wide, torch.ones_like(expected))  # pyright: ignore[reportArgumentType]
    assert {grad.dtype for grad in grads} == {torch.float32}
    torch.testing.assert_close([grad.double() for grad in grads], list(wanted), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("autocast", [False, True])
def test_second_derivatives(autocast: bool) -> None:
    tensors = drawn(torch.float32 if autocast else torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        output = linear(*tensors)  # pyright: ignore[reportArgumentType]
    (first,) = torch.autograd.grad(output.float().square().sum(), tensors[:1], create_graph=True)  # pyright: ignore
    (second,) = torch.autograd.grad(first.float().sum(), tensors[1:2])  # pyright: ignore
    wide = exact(tensors)
    (wanted,) = torch.autograd.grad(F.linear(*wide).square().sum(), wide[:1], create_graph=True)  # pyright: ignore
    (wanted,) = torch.autograd.grad(wanted.sum(), wide[1:2])  # pyright: ignore
    error = (second.double() - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()
    assert error < 4 * torch.finfo(torch.bfloat16).eps


def test_transforms_and_other_types_go_by_pytorch() -> None:
    weight, inputs = torch.randn(7, 13).bfloat16(), torch.randn(8, 13).bfloat16()
    slope = torch.func.grad(lambda each: linear(each, weight).float().sum())(inputs)
    torch.testing.assert_close(slope.float(), weight.float().sum(0).expand(8, 13), rtol=2**-7, atol=0.02)
    for dtype in (torch.float32, torch.float64):
        with Products() as products:
            linear(inputs.to(dtype), weight.to(dtype))
        assert products.types == {dtype}
    with pytest.raises(RuntimeError, match="dtype"):
        linear(inputs, weight.float())


def test_a_few_vectors_and_processors_with_instructions_multiply_half_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer = nn.Linear(13, 7).bfloat16()
    with torch.no_grad(), Products() as few:
        projected(layer, torch.randn(1, FEWEST_ROWS - 1, 13).bfloat16())
    monkeypatch.setenv(HALF_VARIABLE, "bfloat16")
    with torch.no_grad(), Products() as many:
        projected(layer, torch.randn(1, 50, 13).bfloat16())
    assert torch.float32 not in few.types | many.types


class Adapter(nn.Module):
    """A layer in another's place, as adapters of a low rank are."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer, self.down, self.up = layer, nn.Linear(13, 2, bias=False), nn.Linear(2, 7, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.base_layer(inputs) + self.up(self.down(inputs))


@pytest.mark.parametrize("dtype", HALF)
def test_a_layer_is_called_with_its_hooks_and_what_stands_in_its_place(dtype: torch.dtype) -> None:
    layer, inputs = nn.Linear(13, 7).to(dtype), torch.randn(2, 11, 13).to(dtype)
    wide = copy.deepcopy(layer).double()
    torch.testing.assert_close(projected(layer, inputs), wide(inputs.double()).to(dtype), rtol=0, atol=0)
    with Products() as products:
        adapted = projected(Adapter(layer).to(dtype), inputs)
        handle = layer.register_forward_hook(lambda _, given, output: output + given[0].sum())
        hooked = projected(layer, inputs)
        handle.remove()
    assert products.types == {torch.float32}
    assert adapted.dtype == dtype
    assert torch.equal(hooked, projected(layer, inputs) + inputs.sum())


def test_full_precision_is_the_layer_as_it_is() -> None:
    layer, inputs = nn.Linear(13, 7), torch.randn(2, 11, 13)
    assert torch.equal(projected(layer, inputs), layer(inputs))
    assert torch.equal(projected(layer.double(), inputs.double()), layer(inputs.double()))


def test_a_quantised_layer_takes_float32() -> None:
    class Quantised(nn.Module):
        def weight(self) -> None: ...

    assert input_dtype(Quantised()) == torch.float32
    assert input_dtype(nn.Linear(2, 2).double()) == torch.float64
