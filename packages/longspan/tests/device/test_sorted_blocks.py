"""Blocks that attend to themselves and to sorted ones by PyTorch's attention kernel, on a CUDA device that is not
there: the same as in plain steps, with all gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from counted import Work
from fake_cuda import FakeCuda
from longspan.ops.sorted import sinkhorn
from longspan.ops.sorted.block_attention import attend_blocks
from longspan.ops.sorted.sinkhorn import earlier, plain_blocks

ROWS, HEADS, BLOCKS, SIZE, WIDTH = 2, 3, 5, 7, 8


def blocks_of(count: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(ROWS, HEADS, count, SIZE, WIDTH, dtype=dtype)


def order_of(last: int, causal: bool, flags: Tensor | None) -> Tensor:
    logits = torch.randn(ROWS, HEADS, BLOCKS, BLOCKS, dtype=torch.float64)
    real = torch.ones(ROWS, BLOCKS, dtype=torch.bool) if flags is None else flags[:, :, 0]
    return earlier(logits, real)[:, :, -last:] if causal else logits.exp()[:, :, -last:] * real[:, None, None, :]


def padding() -> Tensor:
    """The second row has three blocks, the last of them with two tokens."""
    flags = torch.ones(ROWS, BLOCKS, SIZE, dtype=torch.bool)
    flags[1, 2, 2:] = flags[1, 3:] = False
    return flags


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("last", [BLOCKS, 2])
@pytest.mark.parametrize("padded", [False, True])
def test_outputs_and_gradients_are_those_of_plain_steps(causal, last, padded, monkeypatch) -> None:
    """In two calls of the kernel, too."""
    monkeypatch.setattr(sinkhorn, "MOST_ROWS", 6)
    flags = padding() if padded else None
    inputs = [blocks_of(count, torch.float64) for count in (last, BLOCKS, BLOCKS)]
    inputs += [order_of(last, causal, flags), blocks_of(last, torch.float64)]
    everything = torch.ones(ROWS, BLOCKS, SIZE, dtype=torch.bool) if flags is None else flags

    def learned(flags: Tensor | None, inputs: list[Tensor]) -> list[Tensor]:
        """The outputs, and the gradients of queries, keys, values and order."""
        query, key, value, order, upstream = (each.detach().requires_grad_() for each in inputs)
        if query.is_cuda:
            context = attend_blocks(query, key, value, flags, order, scale=0.3, causal=causal)
        else:
            context = plain_blocks(query, key, value, everything, order, 0.3, causal, 0.0)
        (context * upstream).sum().backward()
        return [each.detach().cpu() for each in (context, query.grad, key.grad, value.grad, order.grad)]

    plain = learned(flags, inputs)
    with FakeCuda() as device:
        found = learned(None if flags is None else flags.to(device), [each.to(device) for each in inputs])
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other)


def test_float16_hides_what_is_padded() -> None:
    """Numbers of padding do not matter, and its rows are 0."""
    flags, (query, key, value) = padding(), (blocks_of(BLOCKS, torch.float16) for _ in range(3))
    hidden = ~flags[:, None, :, :, None]
    with FakeCuda() as device:
        order = order_of(BLOCKS, False, flags).float().to(device)
        options = {"scale": 0.3, "causal": False}
        inputs = (each.to(device) for each in (query, key, value))
        one = attend_blocks(*inputs, flags.to(device), order, **options).cpu()
        inputs = (each.masked_fill(hidden, 9.0).to(device) for each in (query, key, value))
        other = attend_blocks(*inputs, flags.to(device), order, **options).cpu()
    assert torch.equal(one, other)
    assert not one.masked_select(hidden).any()


def test_all_blocks_are_one_call_of_the_kernel() -> None:
    """Whatever their number, and with nothing computed in another way."""
    for count in (8, 64):
        with FakeCuda(values=False) as device, Work("cuda") as work:
            inputs = (torch.empty(1, 2, count, 16, 8, dtype=torch.bfloat16, device=device) for _ in range(3))
            attend_blocks(*inputs, None, torch.empty(1, 2, count, count, device=device), scale=1.0, causal=False)
        kernels = [name for name in work.kernels if "attention" in name]
        assert kernels == ["aten::_scaled_dot_product_flash_attention"]
        assert work.operations <= 6
