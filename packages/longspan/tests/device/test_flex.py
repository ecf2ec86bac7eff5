"""FlexAttention on a CUDA device that is not there: its predicate, its scores, and how sets and dropout are put
together, forward and backward; the kernel itself is PyTorch's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from counted import Work
from fake_cuda import FakeCuda
from longspan.errors import InputError
from longspan.ops import attend
from longspan.ops.attend import flex, flex_scores
from longspan.ops.attend.terms import (
    Bias,
    ContentToPosition,
    GlobalKeyBias,
    PositionBias,
    PositionToContent,
    SoftSpan,
    Term,
)
from longspan.patterns import Blocks, Causal, Fixed, Full, Pattern, PerHead, Strided, Window

BATCH, HEADS, LENGTH, WIDTH = 2, 3, 67, 16
PATTERNS = [
    Window(9, 4),
    Window(3, 2, 5),
    Window(8, 8) | Strided(8),
    Fixed(8, 2) & Causal(),
    PerHead([Window(5, 5), Window(4, 4, 3), Window(8, 8) | Strided(8)]),
]


def terms() -> list[Term]:
    """One of each kind, those of offsets with fewer rows than there are offsets."""
    return [
        Bias(torch.randn(BATCH, 1, LENGTH, LENGTH)),
        Bias(torch.randn(HEADS, 1, 1), globals=False),
        GlobalKeyBias(torch.randn(BATCH, HEADS, LENGTH, 3)),
        PositionBias(torch.randn(HEADS, 11)),
        PositionBias(torch.randn(HEADS, 8), first=-3, globals=False),
        ContentToPosition(torch.randn(HEADS, 7, WIDTH), query_bias=torch.randn(HEADS, WIDTH)),
        PositionToContent(torch.randn(HEADS, 9, WIDTH), globals=False),
        SoftSpan(4 * torch.rand(BATCH, HEADS, LENGTH), 6),
    ]


def inputs() -> list[Tensor]:
    return [torch.randn(BATCH, HEADS, LENGTH, WIDTH, requires_grad=True) for _ in range(3)]


def masks() -> dict[str, Tensor]:
    key_mask = torch.arange(LENGTH)[None] < torch.tensor([[LENGTH], [41]])
    return {"key_mask": key_mask, "globals": torch.tensor([[0, 33, 66], [7, -1, -1]])}


def placed(term: Term, device: torch.device) -> Term:
    return replace(
        term, **{name: None if (each := getattr(term, name)) is None else each.to(device) for name in term.tensor_names}
    )


def on_fake_gpu(given: list[Tensor], own: list[Term], tensors: dict[str, Tensor], **options) -> list[Tensor]:
    """The result there, and the gradients of query, key and value."""
    with FakeCuda() as device:
        there = [each.detach().to(device).requires_grad_() for each in given]
        tensors = {name: each.to(device) for name, each in tensors.items()}
        output = attend(*there, terms=[placed(term, device) for term in own], **tensors, **options)
        return [each.cpu() for each in (output.detach(), *torch.autograd.grad(output.square().sum(), there))]


def on_processor(given: list[Tensor], own: list[Term], tensors: dict[str, Tensor], **options) -> list[Tensor]:
    output = attend(*given, terms=own, **tensors, **options, backend="reference")
    return [output.detach(), *torch.autograd.grad(output.square().sum(), given)]


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_patterns_and_masks(pattern: Pattern) -> None:
    given = inputs()
    for tensors in ({}, masks()):
        expected = on_processor(given, [], tensors, pattern=pattern)
        found = on_fake_gpu(given, [], tensors, pattern=pattern, backend="flex")
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_each_term_and_all_of_them() -> None:
    given, tensors = inputs(), masks()
    for pattern in (Window(9, 4), Window(3, 2, 5), Causal()):
        for own in [*([term] for term in terms()), terms()]:
            expected = on_processor(given, own, tensors, pattern=pattern)
            found = on_fake_gpu(given, own, tensors, pattern=pattern, backend="flex")
            compared = (
                1 if any(isinstance(term, ContentToPosition | PositionToContent) for term in own) else 4
            )  # captured products have gradients on CUDA only
            for one, other in list(zip(found, expected, strict=True))[:compared]:
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_products_of_content_are_made_of_some_heads_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """In half precision too, whose products are added up, and stored, in float32."""
    given, tensors = inputs(), masks()
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 3e-2)):
        tables = [torch.randn(HEADS, rows, WIDTH).to(dtype) for rows in (7, 9)]
        own: list[Term] = [ContentToPosition(tables[0]), PositionToContent(tables[1], globals=False)]
        narrow = [each.detach().to(dtype).requires_grad_() for each in given]
        wide = [each.detach().float().requires_grad_() for each in narrow]
        for pattern in (Window(9, 4), PATTERNS[4]):
            expected = on_processor(wide, own, tensors, pattern=pattern)[0]
            for most in (1 << 29, 2 * BATCH * LENGTH * 16, 1):
                monkeypatch.setattr(flex, "PRODUCTS_AT_ONCE", most)
                found = on_fake_gpu(narrow, own, tensors, pattern=pattern, backend="flex")[0]
                torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)


def test_what_a_kernel_captures_is_read_by_it() -> None:
    moved, bias = [], Bias(torch.randn(BATCH, HEADS, LENGTH, LENGTH))
    for own in (list[Term](), [bias]):
        with FakeCuda() as device:
            there, terms = [each.detach().to(device) for each in inputs()], [placed(each, device) for each in own]
            with Work("cuda") as work:
                attend(*there, terms=terms, pattern=Window(9, 4), backend="flex")
        moved.append(work.bytes)
    assert moved[1] - moved[0] >= 4 * BATCH * HEADS * LENGTH**2


def test_queries_that_continue_a_sequence() -> None:
    query, key, value = (each.detach() for each in inputs())
    own = [PositionBias(torch.randn(HEADS, 11)), SoftSpan(4 * torch.rand(BATCH, HEADS, 5), 6)]
    options = {"pattern": Window(9, 0), "query_offset": LENGTH - 5, "key_mask": masks()["key_mask"]}
    expected = attend(query[:, :, :5], key, value, terms=own, backend="reference", **options)
    with FakeCuda() as device:
        there = [each.to(device) for each in (query[:, :, :5], key, value)]
        options["key_mask"] = options["key_mask"].to(device)
        found = attend(*there, terms=[placed(term, device) for term in own], backend="flex", **options)
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pattern", [PATTERNS[0], PATTERNS[2], PATTERNS[4]], ids=str)
def test_dropout_leaves_out_weights_and_their_gradients(pattern: Pattern) -> None:
    """Values that name their places show the weights: some are 0, the others those of the reference by 1/(1 − p)."""
    (query, key, _), prob = inputs(), 0.3
    value = torch.eye(LENGTH, 128).expand(BATCH, HEADS, -1, -1).clone().requires_grad_()
    options = {"pattern": pattern, "global_rows": False}
    found = on_fake_gpu([query, key, value], [], masks(), **options, backend="flex", dropout_prob=prob)
    whole = attend(query, key, value, **masks(), **options, backend="reference")
    factors = torch.where(whole > 0, found[0] / whole, 0.0).detach()
    left = factors[whole > 0]
    assert ((left < 1e-6) | ((left - 1 / (1 - prob)).abs() < 1e-3)).all()
    assert abs((left < 1e-6).float().mean() - prob) < 0.05
    rounded = torch.where(factors > 0.5, 1 / (1 - prob), 0.0)[..., :LENGTH]
    output = (whole[..., :LENGTH] * rounded) @ value  # of which the gradient of the values is that of the weights
    expected = torch.autograd.grad(found[0].detach().mul(2).mul(output).sum(), [query, key])
    for one, other in zip(found[1:3], expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    again = on_fake_gpu([query, key, value], [], masks(), **options, backend="flex", dropout_prob=prob)
    assert not torch.equal(again[0] > 0, found[0] > 0)


def test_the_hash_of_dropout_draws_evenly() -> None:
    """Shares of rows, columns and neighbours are those of independent draws."""
    place = torch.arange(512)
    kept = flex_scores.stays(torch.tensor([7]), 0.2, torch.arange(8)[:, None, None], place[:, None], place).float()
    assert abs(kept.mean() - 0.8) < 0.002
    spread = (0.8 * 0.2 / 512) ** 0.5
    for dim in (1, 2):
        assert kept.mean(dim).std() < 1.1 * spread
        neighbours = kept.narrow(dim, 1, 511) * kept.narrow(dim, 0, 511)
        assert abs(neighbours.mean() - 0.64) < 0.002
    assert abs((kept[1:] * kept[:-1]).mean() - 0.64) < 0.002
    other = flex_scores.stays(torch.tensor([8]), 0.2, torch.arange(8)[:, None, None], place[:, None], place).float()
    assert abs((kept * other).mean() - 0.64) < 0.002


def test_auto_takes_it_for_dropout_or_for_terms_that_learn_in_windows() -> None:
    long = [torch.randn(1, 2, 1500, WIDTH) for _ in range(3)]
    bias = PositionBias(torch.randn(2, 9))
    window, blocks = Window(9, 9), Blocks(16, 1, 1)
    for own, prob, learns, pattern, taken in (
        (bias, 0.0, False, window, 1),
        (bias, 0.0, True, window, 1),
        (bias, 0.1, True, window, 0),
        (bias, 0.0, False, blocks, 1),
        (bias, 0.0, True, blocks, 0),
        (None, 0.1, True, window, 2),
    ):
        with FakeCuda(values=False) as device:
            there = [each.to(device).requires_grad_(learns) for each in long]
            given = [] if own is None else [replace(own, table=own.table.to(device).requires_grad_(learns))]
            with Work("cuda") as work:
                attend(*there, pattern=pattern, terms=given, dropout_prob=prob)
        assert work.kernels["longspan_fake::flex_forward"] == taken


def test_what_a_processor_lacks_is_an_error() -> None:
    given = [each.detach() for each in inputs()]
    with pytest.raises(InputError, match="no dropout on a processor"):
        attend(*given, pattern=Full(), dropout_prob=0.1, backend="flex")
    many = [torch.zeros(1, 1, 1, 1).expand(1, 2, 1 << 22, 16) for _ in range(3)]
    own = ContentToPosition(torch.zeros(2, 512, 16))
    with pytest.raises(InputError, match="all products of tokens and positions before"):
        attend(*many, pattern=Window(9, 9), terms=[own], backend="flex")


def test_a_backend_that_is_forced_on_a_gpu_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = [torch.randn(1, 2, 20, 8) for _ in range(3)]
    with FakeCuda() as device:
        there = [each.to(device) for each in narrow]
        with pytest.raises(InputError, match="'flex' takes heads of 16 numbers or more, not 8; use 'blocked'"):
            attend(*there, pattern=Window(3, 3), backend="flex")
        with pytest.raises(
            InputError, match=r"backend='flex' serves no torch.float64; use backend='blocked', or float32"
        ):
            attend(*(each.double() for each in there), pattern=Window(3, 3), backend="flex")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
        half = [each.bfloat16() for each in there]
        assert attend(*half, pattern=Window(3, 3)).isfinite().all()  # in another way


def test_a_single_query_is_a_few_launches() -> None:
    """Of the keys within reach, or of all that a padded row has."""
    for pattern, most in ((Window(50, 0), 1), (Causal(), 1), (Strided(7) & Causal(), 20)):
        with FakeCuda(values=False) as device:
            query, key = (torch.empty(1, 2, length, WIDTH, device=device) for length in (1, 4000))
            with Work("cuda") as work, torch.no_grad():
                attend(query, key, key, pattern=pattern, query_offset=3999)
        assert work.operations <= most, pattern
        assert work.waits == 0


def test_full_attention_with_padding_is_one_launch_of_flash_attention() -> None:
    given = [each.detach().bfloat16().requires_grad_() for each in inputs()]
    tensors = {"key_mask": torch.arange(LENGTH)[None] < torch.tensor([[41], [0]])}
    expected = on_processor([each.detach().float().requires_grad_() for each in given], [], tensors, pattern=Full())
    for one, other in zip(on_fake_gpu(given, [], tensors, pattern=Full()), expected, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=0.05, atol=0.05)
    with FakeCuda(values=False) as device:
        there, key_mask = [each.detach().to(device) for each in given], tensors["key_mask"].to(device)
        with Work("cuda") as work:
            attend(*there, pattern=Full(), key_mask=key_mask)
    assert work.kernels["aten::_scaled_dot_product_flash_attention"] == 1
    assert work.waits == 0
