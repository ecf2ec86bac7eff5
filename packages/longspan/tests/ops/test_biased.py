"""Biases of full and causal attention, read in slices, against the dense reference."""

from __future__ import annotations

import math

import pytest
import torch

from chosen_sizes import set_sizes
from longspan import attend
from longspan.ops.attend.door import checked
from longspan.ops.attend.terms import Bias
from longspan.ops.tiles.biased import Biased
from longspan.ops.tiles.split import split
from longspan.patterns import Causal, Full, Window

QUERIES, KEYS = 53, 67
SHAPES = [(2, 3, QUERIES, KEYS), (1, 3, QUERIES, KEYS), (3, 1, KEYS), (2, 1, QUERIES, 1), (QUERIES, KEYS), (1,)]
PATTERNS = [(Full(), 0), (Causal(), KEYS - QUERIES)]


@pytest.fixture(params=[64, 700, 1 << 19], autouse=True)
def block(request, monkeypatch):
    """Blocks of one query, of a few, and of all."""
    set_sizes(monkeypatch, biased_scores=request.param)


def made(width: int = 5, value_width: int = 5) -> list[torch.Tensor]:
    shapes = [(2, 3, QUERIES, width), (2, 3, KEYS, width), (2, 3, KEYS, value_width)]
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def both(heads, values, **options):
    """Output and all gradients of both ways."""
    found, tensors = [], [*heads, *(each for each in values if each.requires_grad)]
    upstream = torch.randn(2, 3, QUERIES, heads[2].shape[3], dtype=heads[0].dtype)
    for backend in ("reference", "auto"):
        output = attend(*heads, terms=[Bias(each) for each in values], backend=backend, **options)
        grads = torch.autograd.grad(output, tensors, upstream, allow_unused=True)
        found.append([output, *(torch.zeros(()) if each is None else each for each in grads)])
    return found


@pytest.mark.parametrize(("pattern", "offset"), PATTERNS, ids=["full", "causal"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("widths", [(5, 5), (4, 7)])
def test_biases_of_any_shape_are_the_reference(shape, pattern, offset, widths):
    values = [torch.randn(shape, dtype=torch.float64, requires_grad=True), torch.randn(KEYS, dtype=torch.float64)]
    mask = torch.rand(2, KEYS) < 0.7
    mask[1, :20] = False  # queries that see nothing
    for key_mask in (None, mask):
        for given in (values, values[:1]):
            options = {"pattern": pattern, "key_mask": key_mask, "query_offset": offset}
            torch.testing.assert_close(*both(made(*widths), given, **options))


@pytest.mark.parametrize(("pattern", "offset"), PATTERNS, ids=["full", "causal"])
def test_queries_without_columns_leave_the_bias_alone(pattern, offset):
    heads = made()
    bias = torch.randn(3, QUERIES, KEYS, dtype=torch.float64, requires_grad=True)
    nothing = [heads[0][..., :0].detach(), heads[1][..., :0].detach(), heads[2]]
    options = {"pattern": pattern, "scale": 1.0, "query_offset": offset}
    bare = attend(*nothing, terms=[Bias(bias)], **options)
    zeros = [torch.zeros_like(heads[0]), torch.zeros_like(heads[1]), heads[2]]
    same = attend(*zeros, terms=[Bias(bias)], backend="reference", **options)
    upstream = torch.randn_like(bare)
    torch.testing.assert_close(bare, same)
    grads = [torch.autograd.grad(each, (heads[2], bias), upstream) for each in (bare, same)]
    torch.testing.assert_close(*grads)


def test_keys_hidden_by_a_bias_give_zeros_where_all_are_and_no_number_stays_none():
    heads, bias = made(), torch.randn(QUERIES, KEYS, dtype=torch.float64)
    bias[:, 10:30], bias[7], bias[9, 3] = -math.inf, -math.inf, math.nan
    bias.requires_grad_()
    ours = attend(*heads, pattern=Full(), terms=[Bias(bias)])
    assert (ours[:, :, 7] == 0).all()
    assert ours[:, :, 9].isnan().all()
    assert not ours[:, :, 10:].isnan().any()
    bias = bias.detach().masked_fill(bias.isnan(), 0).requires_grad_()
    torch.testing.assert_close(*both(heads, [bias], pattern=Full()))


def test_half_precision_errs_less_than_twice_what_a_dense_reference_of_it_does():
    exact = [each.detach() for each in made()] + [torch.randn(3, QUERIES, KEYS, dtype=torch.float64)]
    upstream, results = torch.randn(2, 3, QUERIES, 5, dtype=torch.float64), []
    for dtype, backend in [(torch.float64, "reference"), (torch.bfloat16, "reference"), (torch.bfloat16, "auto")]:
        given = [each.to(torch.bfloat16).to(dtype).requires_grad_() for each in exact]
        output = attend(*given[:3], pattern=Full(), terms=[Bias(given[3])], backend=backend)
        grads = torch.autograd.grad(output, given, upstream.to(torch.bfloat16).to(dtype))
        results.append([each.double() for each in (output, *grads)])
    for truth, dense, ours in zip(*results, strict=True):
        assert (ours - truth).norm() <= 2 * (dense - truth).norm()


@pytest.mark.slow
def test_dropout_keeps_the_mean_and_has_its_own_gradient():
    heads, bias = made(), torch.randn(3, QUERIES, KEYS, dtype=torch.float64, requires_grad=True)

    def dropped(*tensors):
        torch.manual_seed(3)
        return attend(*tensors[:3], pattern=Full(), terms=[Bias(tensors[3])], dropout_prob=0.3)[:, :, ::9]

    assert torch.autograd.gradcheck(dropped, (*heads, bias), fast_mode=True)
    whole = attend(*heads, pattern=Full(), terms=[Bias(bias)])
    drawn = torch.stack(
        [attend(*heads, pattern=Full(), terms=[Bias(bias)], dropout_prob=0.3).detach() for _ in range(100)]
    )
    assert (drawn.mean(0) - whole).abs().mean() < 0.2 * (drawn[0] - whole).abs().mean()


def test_it_serves_full_and_causal_attention_with_biases_alone():
    zeros = torch.zeros(1, 2, 9, 3)
    options = {"key_mask": None, "globals": None, "global_rows": True, "scale": None}
    for pattern, terms, serves in [
        (Full(), 1, True),
        (Causal(), 2, True),
        (Full(), 0, False),
        (Window(2, 2), 1, False),
    ]:
        biases = [Bias(torch.zeros(9, 9))] * terms
        call = checked(zeros, zeros, zeros, pattern, biases, **options, dropout_prob=0.0, query_offset=0)
        assert isinstance(split(call)[0][1], Biased) == serves


@pytest.mark.parametrize("offset", [KEYS - 20, KEYS - 1, KEYS, KEYS + 9])
@pytest.mark.parametrize("width", [5, 7])
def test_queries_beyond_the_keys_see_them_all(offset, width):
    """Of values as wide as the queries, which PyTorch's kernel takes, and of others."""
    heads = made(value_width=width)
    values = [torch.randn(QUERIES, KEYS, dtype=torch.float64, requires_grad=True)]
    one, two = both(heads, values, pattern=Causal(), query_offset=offset)
    torch.testing.assert_close(one, two)
    free = attend(*heads, terms=[Bias(each) for each in values], pattern=Full())
    place = max(0, KEYS - 1 - offset)
    torch.testing.assert_close(two[0][:, :, place:], free[:, :, place:])
