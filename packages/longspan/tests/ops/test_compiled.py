"""Functions that are compiled into one kernel: where they are, and with equal results."""

from __future__ import annotations

import torch

from fake_cuda import FakeCuda
from longspan.ops.compiled import FEWEST, fused
from tracing import Trace


@fused
def scaled(tensor, factor, added):
    return tensor * factor + added, tensor.abs()


def test_large_tensors_of_a_gpu_take_one_launch():
    torch.manual_seed(0)
    tensor, factor = torch.randn(1024, FEWEST // 1024), torch.randn(1024, 1)
    with FakeCuda() as device:
        moved = tensor.to(device), factor.to(device)
        with torch.no_grad(), Trace() as trace:
            results = scaled(*moved, 3)
        kernel = (trace.launches[0].name, trace.launches[0].bytes)
        results = [result.cpu() for result in results]
    assert [kernel] == [("longspan_fake::fused", 4 * (3 * FEWEST + 1024))]
    assert len(trace.launches) == 1
    assert torch.equal(results[0], tensor * factor + 3)
    assert torch.equal(results[1], tensor.abs())


def test_small_tensors_and_recorded_gradients_take_the_steps():
    with FakeCuda() as device:
        small, large = torch.randn(8, 8).to(device), torch.randn(1024, FEWEST // 1024).to(device)
        learning = torch.randn(1024, 1).to(device).requires_grad_()
        for tensor, factor in [(small, small), (large, learning)]:
            with Trace() as trace:
                scaled(tensor, factor, 3)
            assert [kernel.name for kernel in trace.launches] == ["aten::mul", "aten::add", "aten::abs"]


def test_a_processor_takes_the_steps():
    tensor = torch.randn(1024, FEWEST // 1024)
    with Trace() as trace:
        result, _ = scaled(tensor, tensor, 1)
    assert not trace.launches
    assert torch.equal(result, tensor * tensor + 1)
