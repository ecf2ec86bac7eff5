"""Spans with a soft end: tiles against the reference, the reference against a loop, and gradients that are numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.ops import attend
from longspan.ops.attend.terms import ContentToPosition, SoftSpan, pack, unpack
from longspan.patterns import Blocks, Causal, Full, PerHead, RandomBlocks, Window

PATTERNS = [
    Window(40, 0),
    Full(),
    Causal(),
    Window(20, 2, 3),
    RandomBlocks(3, 2, 1),
    Blocks(40),
    PerHead([Window(1, 1), Window(2, 2, 2), Window(1, 1)]),
]


def inputs(queries: int, keys: int) -> list[Tensor]:
    return [torch.randn(2, 3, length, 5, dtype=torch.float64, requires_grad=True) for length in (queries, keys, keys)]


def spans(*shape: int) -> Tensor:
    return (torch.rand(*shape, dtype=torch.float64) * 30 - 2).requires_grad_()


def run(backend: str, given: list[Tensor], terms: list, upstream: Tensor, **options) -> list[Tensor]:
    output = attend(*given, terms=terms, backend=backend, **options)
    return [
        output,
        *torch.autograd.grad(output, [*given, *(each for term in terms for each in term.tensors)], upstream),
    ]


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize(("queries", "keys", "offset"), [(0, 0, 0), (1, 1, 0), (149, 149, 0), (3, 89, 86)])
def test_blocked_equals_reference(pattern, queries, keys, offset):
    for shape in ((1, 3, 1), (2, 3, queries), (1, 3, queries), (2, 3, 1)):
        given, upstream = inputs(queries, keys), torch.randn(2, 3, queries, 5, dtype=torch.float64)
        mask = torch.rand(2, keys) < 0.5
        mask[:, : keys // 3] = False
        table = torch.randn(3, 11, 5, dtype=torch.float64, requires_grad=True)
        for terms in ([SoftSpan(spans(*shape), 7)], [ContentToPosition(table, first=-10), SoftSpan(spans(*shape), 7)]):
            options = {"pattern": pattern, "query_offset": offset, "key_mask": mask}
            ours = run("blocked", given, terms, upstream, **options)
            assert all(each.isfinite().all() for each in ours)
            theirs = run("reference", given, terms, upstream, **options)
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_the_reference_is_a_weight_that_is_normalised():
    query, key, value = inputs(9, 9)
    z = spans(1, 3, 9)
    ours = attend(query, key, value, pattern=Causal(), terms=[SoftSpan(z, 4)], scale=0.3, backend="reference")
    for h, i in torch.cartesian_prod(torch.arange(3), torch.arange(9)).tolist():
        soft = ((4 + z[0, h, i] - torch.arange(i, -1, -1)) / 4).clamp(0, 1)
        weights = soft * torch.exp(key[:, h, : i + 1] @ query[:, h, i, :, None] * 0.3)[..., 0]
        gathered = (weights[:, :, None] * value[:, h, : i + 1]).sum(1)
        expected = gathered / weights.sum(1, keepdim=True) if soft.any() else torch.zeros_like(gathered)
        torch.testing.assert_close(ours[:, h, i], expected)


def test_gradcheck_on_both_ways():
    given, z = inputs(11, 11), spans(1, 3, 1)
    for backend in ("reference", "blocked"):

        def function(query, key, value, span, backend=backend):
            return attend(query, key, value, pattern=Window(8, 0), terms=[SoftSpan(span, 3)], backend=backend)

        assert torch.autograd.gradcheck(function, [*given, z], fast_mode=True)


def test_pairs_with_a_global_token_have_no_span():
    given, slots = inputs(60, 60), torch.tensor([[40], [-1]])
    options = {"pattern": Full(), "globals": slots}
    terms, upstream = [SoftSpan(spans(1, 3, 1), 2)], torch.randn(2, 3, 60, 5, dtype=torch.float64)
    ours, theirs = (run(backend, given, terms, upstream, **options) for backend in ("blocked", "reference"))
    torch.testing.assert_close(ours, theirs)
    near = attend(*given, pattern=Full(), terms=terms)
    assert not torch.equal(ours[0][0], near[0])
    torch.testing.assert_close(ours[0][1], near[1])


def test_it_travels_through_an_operator():
    (again,) = unpack(*pack([SoftSpan(spans(1, 3, 1), 13)]))
    assert isinstance(again, SoftSpan)
    assert again.ramp == 13


@pytest.mark.parametrize(
    ("shape", "ramp", "words"),
    [
        ((3,), 4, r"span of SoftSpan has shape \(3,\)"),
        ((1, 2, 1), 4, r"give \(2, 3, 7\)"),
        ((1, 3, 5), 4, r"has shape \(1, 3, 5\)"),
        ((1, 3, 1), 0, "ramp=0 of SoftSpan"),
    ],
)
def test_what_does_not_fit_is_named(shape, ramp, words):
    with pytest.raises(InputError, match=words):
        attend(*inputs(7, 7), pattern=Full(), terms=[SoftSpan(spans(*shape), ramp)])


def test_where_the_ramp_begins_it_has_its_own_slope():
    """The derivative of a clamped number at its bound is a matter of choice, and another one in PyTorch 2.14."""
    span = torch.zeros(1, 1, 1, dtype=torch.float64, requires_grad=True)
    SoftSpan(span, 4).dense(span, span, torch.tensor([[[0, 1, -3]]])).sum().backward()
    assert span.grad is not None
    assert span.grad.item() == pytest.approx(1 / 4 + 1 / 3 + 1)  # 1 / (R m) of m = 1, 3/4 and 1/4
