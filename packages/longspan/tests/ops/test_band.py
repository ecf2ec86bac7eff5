"""Windows with terms on a GPU, simulated: outputs and all gradients of the reference."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fake_cuda import FakeCuda
from longspan import attend
from longspan.ops import compiled, runtime
from longspan.ops.attend.call import Call, mask_of_slots, real_slots
from longspan.ops.attend.terms import ContentToPosition, GlobalKeyBias, PositionBias, PositionToContent, Term
from longspan.ops.tiles import band
from longspan.ops.tiles.split import split
from longspan.patterns import Blocks, Causal, PerHead, Window
from tracing import Trace

BATCH, HEADS, LENGTH, WIDTH, VALUES, SCALE = 2, 3, 131, 5, 7, 0.3
SLOTS = torch.tensor([[3, 130, -1, 50], [-1, 7, 0, -1]])
KINDS: dict[str, list[tuple[type[Term], int, int]]] = {
    "content both ways": [(ContentToPosition, 31, -13), (PositionToContent, 31, -13)],
    "clipped content and bias": [(ContentToPosition, 7, -3), (PositionBias, 7, -3)],
    "longer than the window": [(PositionBias, 83, -50), (PositionToContent, 83, -50)],
    "beside the window": [(ContentToPosition, 5, 40), (PositionToContent, 3, -90), (PositionBias, 2, 99)],
}
"""Kind, rows, and the offset of the first one."""


class Case:
    """Random inputs in float64, of which only some keys are real."""

    def __init__(self, kinds: list[tuple[type[Term], int, int]], *, slots: bool = False, padded: bool = False) -> None:
        made = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=made, dtype=torch.float64)

        self.inputs = [normal(BATCH, HEADS, LENGTH, width) for width in (WIDTH, WIDTH, VALUES)]
        tables = [normal(HEADS, rows, *(() if kind is PositionBias else (WIDTH,))) for kind, rows, _ in kinds]
        self.kinds, self.tables = kinds, tables
        self.slots = SLOTS if slots else None
        self.mask = None
        if padded:
            self.mask = torch.rand(BATCH, LENGTH, generator=made) < 0.7
            self.mask[1, 90:] = False
            self.mask[0, 20:60] = False  # some queries see nothing
        if slots:
            self.tables.append(normal(BATCH, HEADS, LENGTH, SLOTS.shape[1]))
        self.grad = normal(BATCH, HEADS, LENGTH, VALUES)

    def terms(self, tables: list[Tensor]) -> list[Term]:
        terms: list[Term] = [
            kind(table, first=first, globals=False)  # pyright: ignore[reportCallIssue]
            for (kind, _, first), table in zip(self.kinds, tables, strict=False)
        ]
        return terms if self.slots is None else [*terms, GlobalKeyBias(tables[-1])]

    def run(self, backend: str, dtype: torch.dtype, device: Any = "cpu", **options: Any) -> list[Tensor]:
        """Returns the output and the gradients of inputs and tables."""
        tensors = [tensor.to(dtype).to(device).requires_grad_() for tensor in (*self.inputs, *self.tables)]
        options = {"pattern": Window(13, 17), "scale": SCALE, "backend": backend, "global_rows": False, **options}
        masks = {"globals": self.slots, "key_mask": self.mask}
        options |= {name: mask.to(device) for name, mask in masks.items() if mask is not None}
        output = attend(*tensors[:3], terms=self.terms(tensors[3:]), **options)
        grads = torch.autograd.grad(output, tensors, self.grad.to(dtype).to(device))
        return [each.detach().cpu() for each in (output, *grads)]


def check(case: Case, dtype: torch.dtype, tolerance: float, **options: Any) -> None:
    wanted = case.run("reference", dtype, **options)
    with FakeCuda() as device, Trace() as trace:
        found = case.run("blocked", dtype, device, **options)
    assert [each.name for each in trace.launches].count("longspan_fake::fused") >= 2, "one pass forward, one backward"
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance)


@pytest.fixture(autouse=True)
def _small_tensors_too(monkeypatch):
    monkeypatch.setattr(compiled, "FEWEST", 1)


@pytest.mark.parametrize("pattern", [Window(13, 17), Window(29, 0), Window(0, 0), Window(60, 7)], ids=str)
@pytest.mark.parametrize("kinds", KINDS)
def test_it_equals_the_reference(kinds, pattern):
    for slots, padded in itertools.product((False, True), repeat=2):
        case = Case(KINDS[kinds], slots=slots, padded=padded)
        check(case, torch.float64, 1e-12, pattern=pattern)


def test_it_equals_the_reference_in_single_precision():
    check(Case(KINDS["content both ways"], slots=True, padded=True), torch.float32, 2e-4)


def test_rows_without_a_real_key_are_zero():
    case = Case(KINDS["content both ways"])
    case.mask = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    check(case, torch.float64, 0.0)


@pytest.mark.parametrize("heads_at_once", [1, 2, 5], ids="{} heads".format)
def test_parts_add_up(heads_at_once, monkeypatch):
    """Of heads, of rows, and the rest that is smaller."""
    case = Case(KINDS["clipped content and bias"], slots=True, padded=True)
    sizes = band.sizes_of(call_of(case))
    few = replace(runtime.GPU, tile_scores=heads_at_once * sizes.rows * sizes.stride)
    monkeypatch.setitem(runtime.SIZES, True, few)
    check(case, torch.float64, 1e-12)


def test_the_steps_equal_the_kernel(monkeypatch):
    case = Case(KINDS["content both ways"], slots=True, padded=True)
    with FakeCuda() as device:
        kernel = case.run("blocked", torch.float64, device)
        monkeypatch.setattr(compiled, "FEWEST", 1 << 62)
        steps = case.run("blocked", torch.float64, device)
    assert all(torch.equal(one, two) for one, two in zip(kernel, steps, strict=True))


def call_of(case: Case, prob: float = 0.0, **changes: Any) -> Call:
    """Returns the call of a case, of which global keys are no near keys."""
    options: dict[str, Any] = {"terms": tuple(case.terms(case.tables)), "key_mask": case.mask}
    if case.slots is not None:
        options["slots"] = real_slots(case.slots, case.mask)
        near = ~mask_of_slots(options["slots"], LENGTH)
        options["key_mask"] = near if case.mask is None else near & case.mask
    return replace(Call(*case.inputs, Window(13, 17), SCALE, dropout_prob=prob, seed=11, **options), **changes)


class Banded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call, *tensors):
        ctx.call = replaced(call, *tensors)
        return band.Band(ctx.call).output()

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        count = len(ctx.call.tensors) - 3
        return None, *band.Band(ctx.call).gradients(grad, [True] * count)


def replaced(call: Call, query: Tensor, key: Tensor, value: Tensor, *tables: Tensor) -> Call:
    terms = tuple(
        replace(term, **{term.tensor_names[0]: table}) for term, table in zip(call.terms, tables, strict=True)
    )
    return replace(call, query=query, key=key, value=value, terms=terms)


@pytest.mark.slow
@pytest.mark.parametrize("prob", [0.0, 0.3])
def test_gradcheck(prob):
    case = Case([(ContentToPosition, 3, -1), (PositionToContent, 2, 0), (PositionBias, 3, -1)], slots=True)
    inputs = [tensor[:1, :1, :7, :2] for tensor in case.inputs]
    tables = [tensor[:1, ..., :2] for tensor in case.tables[:2]] + [case.tables[2][:1], case.tables[3][:1, :1, :7, :1]]
    call = call_of(case, prob, pattern=Window(2, 1), slots=torch.tensor([[4]]), key_mask=torch.arange(7)[None] != 4)
    tensors = [tensor.clone().requires_grad_() for tensor in (*inputs, *tables)]
    assert torch.autograd.gradcheck(lambda *given: Banded.apply(call, *given), tensors)


@pytest.mark.parametrize("prob", [0.3, 1.0])
def test_dropout_scales_the_weights_it_keeps_and_draws_the_same_in_the_gradient(prob):
    case = Case(KINDS["content both ways"], slots=True, padded=True)
    keys = torch.eye(LENGTH, dtype=torch.float64).expand(BATCH, HEADS, -1, -1)
    weights = band.Band(call_of(case, value=keys)).output()
    kept = band.Band(call_of(case, prob, value=keys)).output()
    factors = torch.where(kept == 0, 0.0, 1 / (1 - prob) if prob < 1 else 0.0)
    torch.testing.assert_close(kept, weights * factors)
    share = (factors > 0).sum() / (weights > 0).sum()
    assert abs(share - (1 - prob)) < 0.02  # of 22 thousand pairs: a standard deviation is 0.003
    tensors = [tensor.clone().requires_grad_() for tensor in (*case.inputs, *case.tables)]
    call = call_of(case, prob)
    output = Banded.apply(call, *tensors)
    found = torch.autograd.grad(output, tensors, case.grad)
    dense = attend(
        *tensors[:2],
        keys,
        pattern=Window(13, 17),
        terms=case.terms(tensors[3:]),
        scale=SCALE,
        backend="reference",
        global_rows=False,
        globals=case.slots,
        key_mask=case.mask,
    )
    wanted = (dense * factors) @ tensors[2]
    torch.testing.assert_close(output, wanted)
    for one, two in zip(found, torch.autograd.grad(wanted, tensors, case.grad), strict=True):
        torch.testing.assert_close(one, two)


def test_dropout_of_attend_is_drawn_anew_and_equal_in_its_gradient():
    """The gradient of the values is that of a linear function of them: their products are the output's."""
    case = Case(KINDS["clipped content and bias"])
    with FakeCuda() as device:
        torch.manual_seed(5)
        first, second = (case.run("blocked", torch.float64, device, dropout_prob=0.4) for _ in range(2))
    assert not torch.equal(first[0], second[0])
    for output, *grads in (first, second):
        torch.testing.assert_close((grads[2] * case.inputs[2]).sum(), (output * case.grad).sum())


@pytest.mark.parametrize("slots", [False, True], ids=["window", "global keys"])
def test_bfloat16_is_within_twice_the_error_of_a_dense_reference(slots):
    case = Case(KINDS["content both ways"], slots=slots)
    wanted = case.run("reference", torch.float64)
    rounded = [tensor.bfloat16().double() for tensor in (*case.inputs, *case.tables, case.grad)]
    case.inputs, case.tables, case.grad = rounded[:3], rounded[3:-1], rounded[-1]
    wanted = case.run("reference", torch.float64)
    dense = case.run("reference", torch.bfloat16)
    with FakeCuda() as device:
        found = case.run("blocked", torch.bfloat16, device)
    for one, two, three in zip(found, dense, wanted, strict=True):
        assert (one - three).norm() <= 2 * (two - three).norm()


def test_what_cannot_be_seen_changes_nothing():
    case = Case(KINDS["content both ways"], padded=True)
    assert case.mask is not None
    changed = Case(KINDS["content both ways"], padded=True)
    changed.inputs[1] = case.inputs[1].masked_fill(~case.mask[:, None, :, None], 1e30)
    before, after = (band.Band(call_of(each)).output() for each in (case, changed))
    assert torch.equal(before, after)


def test_flex_computes_the_forward_pass_and_this_form_the_gradients(monkeypatch):
    """In the widths that FlexAttention serves, and without dropout."""
    monkeypatch.setitem(globals(), "WIDTH", 16)
    monkeypatch.setitem(globals(), "VALUES", 32)
    for slots, padded in itertools.product((False, True), repeat=2):
        case = Case(KINDS["content both ways"], slots=slots, padded=padded)
        wanted = case.run("reference", torch.float32)
        with FakeCuda() as device, Trace() as trace:
            found = case.run("auto", torch.float32, device)
        names = [each.name for each in trace.launches]
        kernels = [name for name in names if name.startswith("longspan_fake::")]
        assert kernels == ["longspan_fake::flex_forward", "longspan_fake::fused"]
        for one, two in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, two, rtol=2e-4, atol=2e-4)
        with FakeCuda() as device, Trace() as trace:
            case.run("auto", torch.float32, device, dropout_prob=0.1)
        names = [each.name for each in trace.launches]
        assert [name for name in names if name.startswith("longspan_fake::")] == ["longspan_fake::fused"] * 2


def test_other_calls_are_computed_in_tiles():
    case = Case(KINDS["clipped content and bias"])
    biased = ContentToPosition(case.tables[0], query_bias=torch.zeros(HEADS, WIDTH, dtype=torch.float64))
    calls = {
        "a processor": call_of(case),
        "no window": call_of(case, pattern=Causal()),
        "blocks": call_of(case, pattern=Blocks(16, 1, 1)),
        "by head": call_of(case, pattern=PerHead([Window(1, 1), Window(2, 2), Window(3, 3)])),
        "dilated": call_of(case, pattern=Window(4, 4, 2)),
        "wider than the text": call_of(case, pattern=Window(60, 60)),
        "later queries": call_of(case, query_offset=1),
        "another order": call_of(case, step=2),
        "a query bias": call_of(case, terms=(biased,)),
        "two of a kind": call_of(case, terms=(case.terms(case.tables)[0],) * 2),
        "no terms": call_of(case, terms=()),
    }
    assert not any(band.band_serves(call) for call in calls.values())
    with FakeCuda() as device:
        moved = {name: replaced_on(call, device) for name, call in calls.items()}
        assert band.band_serves(replaced_on(call_of(case), device))
        assert isinstance(split(replaced_on(call_of(case), device))[0][1], band.Band)
        assert [name for name, call in moved.items() if band.band_serves(call)] == ["a processor"]


def replaced_on(call: Call, device: Any) -> Call:
    """Returns the call with inputs on a device; which form serves it does not depend on where the tables are."""
    return replace(call, query=call.query.to(device), key=call.key.to(device), value=call.value.to(device))


def test_flex_by_name_drops_weights_of_terms_that_learn():
    """Where FlexAttention computes the forward pass alone, nothing would draw them."""
    query, key, value = torch.randn(3, 1, HEADS, 128, 16)
    with FakeCuda() as device:
        term = PositionBias(torch.randn(HEADS, 9).to(device).requires_grad_(), first=-4)
        inputs = [tensor.to(device) for tensor in (query, key, value)]
        output = attend(*inputs, pattern=Window(4, 4), terms=[term], dropout_prob=1.0, backend="flex")
        assert not output.cpu().any()
