"""The kernels of Triton on a real device: every result and gradient is that of the dense reference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from longspan.ops.attend import attend
from longspan.ops.attend.terms import ContentToPosition, PositionToContent
from longspan.ops.kernels.linear import attend_linear, linear_weights
from longspan.ops.tiles.pooling import pool, pool_reference
from longspan.patterns import PooledWindow, Window

DEVICE, LENGTH = "cuda", 1000


def pools(backend: str, hidden: Tensor, weight: Tensor) -> Tensor:
    options = {"kernel": 5, "stride": 4, "pooling": "ldconv", "weight": weight}
    return pool(hidden, **options, backend=backend) if backend == "triton" else pool_reference(hidden, **options)


def pooled_window(backend: str, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return attend(query, key[:, :, ::4], value[:, :, ::4], pattern=PooledWindow(120, 60, 5, 4), backend=backend)


def disentangled(backend: str, query: Tensor, key: Tensor, value: Tensor, *tables: Tensor) -> Tensor:
    terms = [
        kind(table, globals=False) for kind, table in zip((ContentToPosition, PositionToContent), tables, strict=True)
    ]
    options = {"globals": torch.tensor([[0, 7]], device=query.device), "global_rows": False}
    return attend(query, key, value, pattern=Window(64, 64), terms=terms, backend=backend, **options)


def causal(backend: str, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, key = query.float().exp(), key.float().exp()
    if backend == "triton":
        return attend_linear(query, key, value, causal=True, backend=backend)[0]
    return (linear_weights(query, key, causal=True) @ value.float()).to(value.dtype)


CALLS: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "LDConv pooling": (pools, [(1, 2, LENGTH, 64), (2, 5, 64)]),
    "pooled window": (pooled_window, [(1, 2, LENGTH, 64)] * 3),
    "disentangled window": (disentangled, [(1, 2, LENGTH, 64)] * 3 + [(2, 129, 64)] * 2),
    "causal linear": (causal, [(1, 2, LENGTH, 64)] * 3),
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", CALLS)
def test_results_and_gradients_are_those_of_the_reference(name: str, dtype: torch.dtype) -> None:
    pytest.importorskip("triton", reason="needs the extra 'triton'")
    call, shapes = CALLS[name]
    leaves = [(torch.randn(shape, device=DEVICE) / 4).to(dtype).requires_grad_() for shape in shapes]

    def results(backend: str, of: list[Tensor]) -> list[Tensor]:
        result = call(backend, *of)
        return [result, *torch.autograd.grad(result.square().sum(), of)]

    exact = results("reference", [leaf.detach().double().requires_grad_() for leaf in leaves])
    usual, found = results("reference", leaves), results("triton", leaves)
    for own, plain, true in zip(found, usual, exact, strict=True):
        allowed = 2 * (plain - true).abs().max() + 1e-5 * true.abs().max()
        assert (own - true).abs().max() <= allowed
