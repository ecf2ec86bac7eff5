"""Attention within a band by Triton, in its interpreter where there is no device, against the dense reference."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import longspan
from longspan.errors import InputError
from longspan.ops.attend import attend
from longspan.ops.attend.terms import Bias, ContentToPosition, GlobalKeyBias, PositionToContent, Term
from longspan.ops.kernels.banded import banded_attention
from longspan.patterns import Causal, Full, Pattern, PooledWindow, Strided, Window

pytest.importorskip("triton", reason="needs the extra 'triton'")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.bfloat16 if torch.cuda.is_available() else torch.float16
"""The interpreter multiplies the bits of bfloat16 numbers as if they were whole numbers."""


class Case(NamedTuple):
    """A call: `rows` of a table, 0 for none, the first for an offset of `first`."""

    pattern: Pattern
    queries: int
    keys: int
    width: int = 16
    value_width: int = 16
    masked: bool = False
    slots: list[list[int]] | None = None
    global_rows: bool = True
    rows: int = 0
    first: int = 0
    offset: int = 0


def leaves_of(case: Case, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Query, key and value of two documents, then both tables and the biases of global keys."""
    heads = 2
    shapes = [(2, case.queries, heads, case.width), (2, case.keys, heads, case.width)]
    leaves = [torch.randn(shape, dtype=dtype, device=DEVICE).transpose(1, 2) for shape in shapes]
    leaves.append(torch.randn(2, heads, case.keys, case.value_width, dtype=dtype, device=DEVICE))
    if case.rows:
        leaves += [torch.randn(heads, case.rows, case.width, dtype=dtype, device=DEVICE) for _ in range(2)]
        if case.slots is not None:
            leaves.append(torch.randn(2, heads, case.queries, len(case.slots[0]), dtype=dtype, device=DEVICE))
    return [leaf.requires_grad_() for leaf in leaves]


def results(case: Case, leaves: list[Tensor], mask: Tensor | None, backend: str, grad: Tensor) -> list[Tensor]:
    """What a backend gives, and the gradients of all leaves."""
    terms: list[Term] = []
    if case.rows:
        terms = [kind(table, first=case.first, globals=False) for kind, table in zip(
            (ContentToPosition, PositionToContent), leaves[3:5], strict=True
        )]  # fmt: skip
        terms += [GlobalKeyBias(values) for values in leaves[5:]]
    options: dict[str, Any] = {"pattern": case.pattern, "terms": terms, "key_mask": mask}
    options |= {"global_rows": case.global_rows, "query_offset": case.offset, "backend": backend}
    options["globals"] = None if case.slots is None else torch.tensor(case.slots, device=DEVICE)
    mixed = attend(*leaves[:3], **options)
    return [mixed, *torch.autograd.grad(mixed, leaves, grad.to(mixed.dtype))]


def compare(case: Case) -> None:
    leaves = leaves_of(case)
    mask = None
    if case.masked:
        mask = torch.rand(2, case.keys, device=DEVICE) > 0.3
        mask[1] = False
    grad = torch.randn(2, 2, case.queries, case.value_width, dtype=torch.float64, device=DEVICE)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    found = results(case, leaves, mask, "triton", grad)
    wanted = results(case, exact, mask, "reference", grad)
    for own, true in zip(found, wanted, strict=True):
        torch.testing.assert_close(own, true.float(), rtol=1e-5, atol=1e-5)


SLOTS = [[0, 7, -1], [3, 20, 36]]
CASES = {
    "pools": Case(PooledWindow(30, 20, 5, 4), 37, 10, masked=True),
    "no pool fits": Case(PooledWindow(3, 0, 5, 1), 5, 5),
    "window": Case(Window(5, 3), 37, 37, width=8, value_width=24, masked=True),
    "globals": Case(Window(5, 3), 37, 37, masked=True, slots=SLOTS),
    "continued": Case(Window(15, 3), 7, 37, offset=30),
    "one token": Case(Window(5, 3), 1, 1),
    "no token": Case(Window(5, 3), 0, 0),
    "terms": Case(Window(5, 3), 35, 35, masked=True, rows=9, first=-5),
}
LONG = [
    Case(PooledWindow(30, 0, 5, 4), 37, 10, width=20),
    Case(PooledWindow(60, 60, 5, 4), 150, 38, masked=True),
    Case(Causal(), 70, 70),
    Case(Full(), 70, 70, width=20, masked=True),
    Case(Window(20, 70), 150, 150, masked=True),
    Case(Window(5, 3), 90, 90, rows=4, first=-3),
    Case(Window(70, 66), 150, 150, rows=137, first=-70),
    Case(Window(5, 3), 90, 90, rows=9, first=-5, masked=True, slots=SLOTS, global_rows=False),
    Case(Window(5, 3), 90, 90, rows=9, first=-5, slots=SLOTS),
]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_outputs_and_gradients_are_those_of_the_reference(case: Case) -> None:
    compare(case)


@pytest.mark.slow
def test_longer_texts_and_tables_of_other_lengths() -> None:
    for case in LONG:
        compare(case)


def test_in_half_precision_it_errs_no_more_than_twice_the_reference() -> None:
    case = Case(Window(9, 4), 21, 21, rows=14, first=-9)
    leaves = leaves_of(case, HALF)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    grad = torch.randn(2, 2, 21, 16, dtype=torch.float64, device=DEVICE)
    wanted = results(case, exact, None, "reference", grad)
    usual = results(case, leaves, None, "reference", grad)
    found = results(case, leaves, None, "triton", grad)
    for own, plain, true in zip(found, usual, wanted, strict=True):
        assert (own - true).abs().max() <= 2 * (plain - true).abs().max()


def test_it_is_an_operator_that_pytorch_can_trace() -> None:
    query, key, value = leaves_of(Case(Window(2, 1), 3, 3))
    torch.library.opcheck(banded_attention, (query, key, value, None, [], 2, 1, 1, 0, 0, 0.25, True))


def test_what_it_cannot_serve_is_said() -> None:
    query = torch.randn(1, 1, 4, 8, device=DEVICE)
    window = Window(1, 1)

    def refused(match: str, **options: Any) -> None:
        with pytest.raises(InputError, match=match):
            attend(query, query, query, **{"pattern": window, "backend": "triton"} | options)

    refused("serves windows and pooled windows, and pattern is strided", pattern=Strided(2))
    refused("has no dropout, and dropout_prob=0.1; use backend='blocked'", dropout_prob=0.1)
    refused("serves ContentToPosition with PositionToContent and no other terms", terms=[Bias(torch.zeros(4, 4))])
    with pytest.raises(InputError, match=r"not in torch.float64; use backend='auto'"):
        longspan.attend(*[query.double()] * 3, pattern=window, backend="triton")
    with pytest.raises(InputError, match="serves up to 256 channels, not 300"):
        longspan.attend(*[torch.randn(1, 1, 2, 300, device=DEVICE)] * 3, pattern=window, backend="triton")
