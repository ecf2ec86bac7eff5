"""Short texts on a CUDA device that is not there: all pairs under a mask, where steps of a sparse form cost more."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from counted import Work
from fake_cuda import FakeCuda
from longspan.ops.attend import attend
from longspan.patterns import Blocks, Causal, DrawnBlocks, Full, Pattern, PerHead, Strided, Window

HEADS, LENGTH = 2, 67
DRAWN = PerHead([Blocks(8, 1, 1) | DrawnBlocks(8, 2, seed, 0, 1, ends=0, within=0) for seed in (3, 4)])
MASKED, FLEX = "aten::_scaled_dot_product_efficient_attention", "longspan_fake::flex_forward"


def inputs(length: int = LENGTH) -> list[Tensor]:
    return [torch.randn(2, HEADS, length, 16).bfloat16() for _ in range(3)]


def masks(pattern: Pattern) -> list[dict[str, Tensor]]:
    """Of padding and of global tokens, one of which is padding; the second row has neither."""
    real = torch.arange(LENGTH) < torch.tensor([[41], [LENGTH]])
    globals = {"globals": torch.tensor([[0, 33, 66], [7, -1, -1]])} if not pattern.is_causal else {}
    return [globals, {"key_mask": real}, {"key_mask": real & (torch.arange(LENGTH) > 4), **globals}]


def learned(given: list[Tensor], **options) -> list[Tensor]:
    output = attend(*given, **options)
    grads = torch.autograd.grad(output.float().square().sum(), given)
    return [each.detach().cpu().double() for each in (output, *grads)]


@pytest.mark.parametrize("pattern", [Window(9, 4), Strided(4) & Causal(), DRAWN, Strided(5)], ids=str)
def test_outputs_and_gradients_are_those_of_the_reference(pattern: Pattern) -> None:
    for tensors in masks(pattern):
        given, options = inputs(), {"pattern": pattern, "backend": "reference", **tensors}
        exact = learned([each.double().requires_grad_() for each in given], **options)
        dense = learned([each.detach().requires_grad_() for each in given], **options)
        with FakeCuda() as device, Work("cuda") as work:
            there = {name: each.to(device) for name, each in tensors.items()}
            found = learned([each.to(device).requires_grad_() for each in given], pattern=pattern, **there)
        if tensors.keys() != {"key_mask"} or not isinstance(pattern, Window):
            assert work.kernels[MASKED] == 1, tensors.keys()
        for one, other, truth in zip(found, dense, exact, strict=True):
            assert (one - truth).norm() <= 2 * (other - truth).norm() + 1e-2 * exact[0].norm()


def test_it_is_for_short_texts_in_half_precision_with_more_than_one_step() -> None:
    slots = torch.tensor([[0], [3]])
    for pattern, length, dtype, globals, kernel in (
        (Window(9, 4), 512, torch.bfloat16, slots, MASKED),
        (Strided(4) & Causal(), 512, torch.bfloat16, None, MASKED),
        (Window(9, 4), 3000, torch.bfloat16, slots, FLEX),
        (Strided(4) & Causal(), 3000, torch.bfloat16, None, FLEX),
        (Window(9, 4), 512, torch.float32, slots, FLEX),
        (Window(9, 4), 512, torch.bfloat16, None, FLEX),
        (Full(), 512, torch.bfloat16, None, "aten::_scaled_dot_product_flash_attention"),
    ):
        with FakeCuda(values=False) as device:
            given = [each.to(device).to(dtype) for each in inputs(length)]
            there = None if globals is None else globals.to(device)
            with Work("cuda") as work:
                attend(*given, pattern=pattern, globals=there)
        assert work.kernels[kernel] == 1, (pattern, length, dtype, work.kernels)


def test_layers_of_a_pass_share_their_mask() -> None:
    from longspan.ops.runtime import one_pass

    with FakeCuda(values=False) as device, one_pass():
        given, slots = [each.to(device) for each in inputs()], torch.tensor([[0], [3]], device=device)
        attend(*given, pattern=Window(9, 4), globals=slots)
        with Work("cuda") as work:
            attend(*given, pattern=Window(9, 4), globals=slots)
    assert work.operations == 1
    assert work.waits == 0
