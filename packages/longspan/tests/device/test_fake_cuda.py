"""The fake device by itself: it computes what the processor does, refuses what CUDA refuses, and is counted."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from counted import Work
from fake_cuda import FakeCuda
from longspan.ops.attend import attend
from longspan.patterns import Window


def test_tensors_are_on_cuda_and_hold_the_numbers_of_the_processor() -> None:
    weight, hidden = torch.randn(3, 5), torch.randn(2, 5)
    with FakeCuda() as device:
        made = hidden.to(device)
        assert made.is_cuda
        assert made.device == torch.device("cuda:0")
        assert (made.new_zeros(3).device, torch.arange(4, device=device).device) == (device, device)
        assert torch.tensor([1.5], device="cuda").is_cuda
        assert torch.zeros(2, device="cuda").is_cuda
        assert hidden.cuda().is_cuda
        layer = nn.Linear(5, 3).to(device)
        assert isinstance(layer.weight, nn.Parameter)
        assert layer.weight.is_cuda
        torch.testing.assert_close((made @ weight.to(device).T).cpu(), hidden @ weight.T)
        assert made[0].tolist() == hidden[0].tolist()
        assert made[1, 2].item() == hidden[1, 2].item()
    assert torch.zeros(2).device.type == "cpu"


def test_devices_do_not_mix() -> None:
    host = torch.ones(3)
    with FakeCuda() as device:
        there = torch.ones(3, device=device)
        with pytest.raises(RuntimeError, match=r"cuda:0 and on cpu \(\(3,\)\); all must be on one device"):
            _ = host + there
        with pytest.raises(TypeError, match=r"Use Tensor\.cpu\(\) first"):
            there.numpy()
        assert (there * torch.tensor(2.0)).tolist() == [2, 2, 2]  # one number may come along


def test_gradients_and_changes_in_place_are_those_of_the_processor() -> None:
    def slopes(hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden.detach().requires_grad_()
        filled = hidden.exp().clone()
        filled[:, 1:2].mul_(3.0)
        (filled.softmax(-1) * filled).sum().backward()
        assert hidden.grad is not None
        return hidden.grad

    hidden = torch.randn(4, 3)
    with FakeCuda() as device:
        torch.testing.assert_close(slopes(hidden.to(device)).cpu(), slopes(hidden))


def test_autocast_narrows_products() -> None:
    with FakeCuda() as device, torch.autocast("cuda", dtype=torch.bfloat16):
        hidden = torch.randn(2, 3, 5, 16, device=device)
        assert (hidden @ hidden.mT).dtype == torch.bfloat16
        assert F.scaled_dot_product_attention(hidden, hidden, hidden).dtype == torch.bfloat16


@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_one_launch_and_has_the_gradients_of_the_processor(masked) -> None:
    inputs = [torch.randn(2, 3, 7, 16) for _ in range(3)]
    mask = torch.rand(2, 1, 7, 7) < 0.7 if masked else None
    if mask is not None:
        mask[..., 0] = True

    def slopes(*inputs: torch.Tensor, mask: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        leaves = [each.detach().requires_grad_() for each in inputs]
        context = F.scaled_dot_product_attention(*leaves, attn_mask=mask, is_causal=mask is None)
        return context, *torch.autograd.grad(context.square().sum(), leaves)

    expected = slopes(*inputs, mask=mask)
    with FakeCuda() as device:
        there = [each.to(device) for each in inputs]
        mask = None if mask is None else mask.to(device)
        with Work("cuda") as work:
            given = slopes(*there, mask=mask)
        for one, other in zip(given, expected, strict=True):
            torch.testing.assert_close(one.cpu(), other)
    kernels = [name for name in work.kernels if "attention" in name]
    assert len(kernels) == 2
    assert all(work.kernels[name] == 1 for name in kernels)


def test_flex_attention_is_one_launch_and_computes_the_pairs_of_its_blocks() -> None:
    inputs = [torch.randn(1, 2, 300, 16) for _ in range(3)]
    expected = attend(*inputs, pattern=Window(5, 5), backend="reference")
    with FakeCuda() as device:
        there = [each.to(device) for each in inputs]
        with Work("cuda") as work:
            given = attend(*there, pattern=Window(5, 5), backend="flex")
        torch.testing.assert_close(given.cpu(), expected)
    assert work.kernels["longspan_fake::flex_forward"] == 1
    assert work.flops == 2 * 2 * 16 * 2 * 7 * 128**2  # two heads, and a band of three blocks of each kind


def test_what_the_host_must_know_is_a_wait() -> None:
    with FakeCuda() as device:
        there, flags = torch.arange(6.0, device=device), torch.arange(6, device=device) > 3
        for work, act in (
            (1, lambda: there.sum().item()),
            (1, lambda: bool(flags.any())),
            (1, lambda: flags.nonzero()),
            (1, lambda: there[flags]),
            (1, lambda: there.cpu()),
            (1, lambda: torch.tensor([1, 2], device=device)),
            (1, lambda: there.repeat_interleave(flags.long())),
            (0, lambda: there.repeat_interleave(2)),
            (0, lambda: there.masked_fill(flags, 0.0)),
            (0, lambda: there[flags.long()]),
            (0, lambda: torch.where(flags, there, 0.0)),
        ):
            with Work("cuda") as counted:
                act()
            assert counted.waits == work


def test_what_the_host_computes_for_itself_is_not_counted() -> None:
    with FakeCuda() as device, Work("cuda") as work:
        torch.ones(3).cumsum(0).tolist()
        assert (work.operations, work.waits, work.bytes) == (0, 0, 0)
        there = torch.zeros(5, 2, device=device)
        assert (work.operations, work.waits, work.bytes) == (1, 0, 40)
        there.view(10)[3:].add_(1)
        assert (work.operations, work.waits, work.bytes) == (2, 0, 40 + 2 * 28)


def test_bytes_are_those_that_a_kernel_moves() -> None:
    """Of 30 numbers of 4 bytes: read, or written, or both; what is repeated is there once."""
    with FakeCuda() as device:
        one, row = torch.ones(5, 6, device=device), torch.ones(6, device=device)
        for step, launches, moved in (
            (lambda: one + row.expand(5, 6), 1, 30 + 6 + 30),
            (lambda: torch.add(one, one, out=torch.empty_like(one)), 1, 30 + 30 + 30),
            (lambda: one.new_zeros(2, 3), 1, 6),
            (lambda: torch.zeros_like(one).copy_(row), 2, 30 + 6 + 30),
            (lambda: one.fill_(3.0), 1, 30),
            (lambda: one.mul_(3.0), 1, 30 + 30),
            (lambda: one.T.reshape(30), 1, 30 + 30),
        ):
            with Work("cuda") as work:
                step()
            assert (work.operations, work.bytes) == (launches, 4 * moved)


def test_peak_memory_is_that_of_tensors_that_are_there_at_once() -> None:
    for values in (True, False):
        with FakeCuda(values=values) as device, Work("cuda") as work:
            first = torch.zeros(1000, device=device)
            second = first + 1
            view = second[3:]
            del first, second
            third = view.exp()
            assert (work.peak, work.largest) == (8000, 1000)
            _ = third + third
        assert work.peak == 4000 + 2 * 3988


def test_without_numbers_sizes_are_known_and_so_are_flags_that_depend_on_none() -> None:
    with FakeCuda(values=False) as device:
        hidden, flags = torch.randn(2, 1 << 40, device=device), torch.arange(5, device=device) > 2
        assert (hidden @ hidden.T).shape == (2, 2)  # nobody holds four terabytes
        assert flags.tolist() == [False, False, False, True, True]
        places = torch.zeros(3, dtype=torch.int64, device=device)
        assert places.tolist() == [0, 0, 0]
        places[:2] = hidden.argmax(1)
        for ask in (lambda: hidden.sum().item(), lambda: bool((hidden > 0).any()), lambda: places.tolist()):
            with pytest.raises(RuntimeError, match="asks for numbers, which FakeCuda"):
                ask()
