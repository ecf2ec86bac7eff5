"""PyTorch's FlashAttention with a window, on a CUDA device that is not there: one launch, and the dense reference."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from counted import Work
from fake_cuda import FakeCuda
from longspan.ops.attend import attend
from longspan.ops.attend.backends import window_serves
from longspan.ops.attend.door import checked
from longspan.patterns import Causal, Pattern, PerHead, Strided, Window

PLAIN = Window(9, 4)
AMPERE, HOPPER = (8, 0), (9, 0)
KERNEL, FLEX = "torch_attn::_varlen_attn", "longspan_fake::flex_forward"


def inputs(length: int, width: int = 16) -> list[Tensor]:
    """Token before head in memory, as projections lay them out."""
    return [torch.randn(2, length, 3, width).bfloat16().transpose(1, 2) for _ in range(3)]


def learned(given: list[Tensor], **options) -> list[Tensor]:
    output = attend(*given, **options)
    grads = torch.autograd.grad(output.float().square().sum(), given)
    return [each.detach().cpu().double() for each in (output, *grads)]


def test_windows_are_those_of_the_reference_with_all_gradients() -> None:
    for pattern, length in ((Window(9, 4), 67), (Window(9, 0), 131), (Window(200, 200), 131), (Window(5, 3), 2)):
        given = inputs(length)
        exact = learned([each.double().requires_grad_() for each in given], pattern=pattern, backend="reference")
        dense = learned([each.detach().requires_grad_() for each in given], pattern=pattern, backend="reference")
        with FakeCuda(capability=AMPERE) as device, Work("cuda") as work:
            there = [each.to(device).requires_grad_() for each in given]
            found = learned(there, pattern=pattern)
        assert work.kernels[KERNEL] == 1
        assert work.kernels[KERNEL + "_backward"] == 1
        for one, other, truth in zip(found, dense, exact, strict=True):
            assert (one - truth).norm() <= 2 * (other - truth).norm() + 1e-2 * exact[0].norm()


def test_projections_go_in_and_come_out_without_a_copy() -> None:
    with FakeCuda(values=False, capability=AMPERE) as device, Work("cuda") as work:
        given = [each.to(device) for each in inputs(4096)]
        attend(*given, pattern=Window(100, 100))  # which makes the table of rows
        before = work.operations
        output = attend(*given, pattern=Window(100, 100))
        output.transpose(1, 2).flatten(2)
        assert work.operations == before + 1


def test_it_serves_plain_windows_in_half_precision_only() -> None:
    options: dict[str, Any] = {"key_mask": None, "globals": None, "global_rows": True, "scale": None, "query_offset": 0}

    def serves(given: list[Tensor], pattern: Pattern = PLAIN, dropout_prob: float = 0.0, **changes) -> bool:
        call = checked(given[0], given[1], given[2], pattern, (), dropout_prob=dropout_prob, **options)
        return window_serves(replace(call, **changes))

    assert not serves(inputs(67))  # on the processor
    with FakeCuda(capability=AMPERE) as device:
        given = [each.to(device) for each in inputs(67)]
        assert serves(given)
        assert serves([each.to(torch.float16) for each in given])
        assert not serves([each.float() for each in given])
        assert not serves(given, dropout_prob=0.1)
        assert not serves(given, key_mask=torch.ones(2, 67, dtype=torch.bool, device=device))
        for pattern in (Window(9, 4, 2), Strided(4) & Causal(), PerHead([Window(9, 4), Window(3, 3), Window(1, 1)])):
            assert not serves(given, pattern)
        assert not serves([each.to(device) for each in inputs(67, width=20)])
        assert not serves([given[0][:, :, :9], *given[1:]])
        torch.use_deterministic_algorithms(True)
        try:
            assert not serves(given)
        finally:
            torch.use_deterministic_algorithms(False)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            assert not serves(given)


@pytest.mark.parametrize(
    ("capability", "width", "kernel"),
    [(AMPERE, 64, KERNEL), (HOPPER, 64, FLEX), ((10, 0), 64, FLEX), ((12, 0), 64, KERNEL), (HOPPER, 80, KERNEL)],
)
def test_the_faster_program_of_a_device_computes_windows(capability: tuple[int, int], width: int, kernel: str) -> None:
    """FlexAttention takes no heads of 80 numbers."""
    with FakeCuda(values=False, capability=capability) as device, Work("cuda") as work:
        attend(*(each.to(device) for each in inputs(1024, width)), pattern=PLAIN)
    assert {name: work.kernels[name] for name in (KERNEL, FLEX) if work.kernels[name]} == {kernel: 1}


def test_a_compiled_graph_has_the_kernel_for_every_length() -> None:
    graphs = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    there = [
        mock.patch.object(torch.cuda, "get_device_capability", return_value=AMPERE),
        mock.patch.object(torch.backends.cuda, "is_flash_attention_available", return_value=True),
        mock.patch.object(torch.cuda, "_lazy_init"),
    ]
    compiled = torch.compile(partial(attend, pattern=PLAIN), backend=keep, fullgraph=True)
    with ExitStack() as stack, torch.no_grad():
        for each in (*there, FakeTensorMode()):
            stack.enter_context(each)
        shapes = [
            compiled(*(torch.empty(2, 3, length, 64, dtype=torch.bfloat16, device="cuda") for _ in range(3))).shape
            for length in (200, 300, 5000, 7)
        ]
    assert shapes == [(2, 3, length, 64) for length in (200, 300, 5000, 7)]
    assert len(graphs) == 2  # one for the first length, and one for all others
    assert all("torch.ops.torch_attn._varlen_attn(" in graph.code for graph in graphs)
