"""DeBERTa's disentangled scores in a window beside global keys: the tiles against the reference, at every tile size."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from longspan.ops import attend
from longspan.ops.terms import ContentToPosition, GlobalKeyBias, PositionToContent
from longspan.ops.tiles import best_layout
from longspan.patterns import Window

SCALE = 0.3


def problem(length, left, right, *, slots=0, padded=False, batch=2, heads=3, width=5, dtype=torch.float64, seed=0):
    """Inputs that learn, and options: `slots` global tokens in the first row, one less in the others."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    inputs = {name: normal(batch, heads, length, width) for name in ("query", "key", "value")}
    inputs |= {name: normal(heads, left + 1 + right, width) for name in ("position_key", "position_query")}
    options = {"left": left, "right": right, "scale": SCALE, "key_mask": None}
    if padded:
        options["key_mask"] = torch.rand(batch, length, generator=generator) < 0.7
    if slots:
        places = torch.stack([torch.randperm(length, generator=generator)[:slots] for _ in range(batch)])
        places[1:, -1:] = -1
        if padded:
            places = torch.where(options["key_mask"].gather(1, places.clamp(min=0)), places, -1)
        options["slots"] = places
        inputs["global_bias"] = normal(batch, heads, length, places.shape[1])
    return inputs, options


def relative(query, key, value, position_key, position_query, global_bias=None, *, left, right, slots=None, **options):
    """Attention in a window whose scores with its keys, and only these, depend on positions."""
    terms = [
        ContentToPosition(position_key, first=-left, globals=False),
        PositionToContent(position_query, first=-left, globals=False),
    ]
    terms += [] if global_bias is None else [GlobalKeyBias(global_bias)]
    options |= {"pattern": Window(left, right), "terms": terms, "globals": slots, "global_rows": False}
    return attend(query, key, value, **options)


def run(backend, inputs, options):
    """Output and all gradients, for a fixed random upstream gradient."""
    output = relative(**inputs, **options, backend=backend)
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return output.detach(), *torch.autograd.grad(output, list(inputs.values()), upstream.to(output.dtype))


def assert_same(inputs, options, tolerance):
    for one, two in zip(run("blocked", inputs, options), run("reference", inputs, options), strict=True):
        torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance)


def by_hand(inputs, options) -> Tensor:
    """One query at a time, straight from the definition."""
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    output, mask, slots = torch.zeros_like(query), options["key_mask"], options.get("slots")
    for b, h, i in torch.cartesian_prod(*(torch.arange(size) for size in query.shape[:3])).tolist():
        scores, values, q = [], [], query[b, h, i]
        globals_ = [] if slots is None else slots[b].tolist()
        for g, j in enumerate(globals_):
            if j >= 0:
                scores.append(q @ key[b, h, j] * SCALE + inputs["global_bias"][b, h, i, g])
                values.append(value[b, h, j])
        for j in range(max(0, i - options["left"]), min(query.shape[2], i + options["right"] + 1)):
            if j not in globals_ and (mask is None or mask[b, j]):
                k, row = key[b, h, j], j - i + options["left"]
                to_position, to_content = q @ inputs["position_key"][h, row], k @ inputs["position_query"][h, row]
                scores.append((q @ k + to_position + to_content) * SCALE)
                values.append(value[b, h, j])
        if scores:
            output[b, h, i] = torch.softmax(torch.stack(scores), 0) @ torch.stack(values)
    return output


@pytest.mark.parametrize("slots", [0, 3])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("left", "right"), [(2, 3), (0, 1), (20, 4)])
def test_reference_is_the_definition(slots, padded, left, right):
    inputs, options = problem(11, left, right, slots=slots, padded=padded, heads=2)
    with torch.no_grad():
        found = relative(**inputs, **options, backend="reference")
        torch.testing.assert_close(found, by_hand(inputs, options), rtol=1e-12, atol=1e-12)


# One tile, tiles of 32, 64 and 128, filled up or not, windows wider than the input, no window at all.
CASES = [(0, 3, 5), (1, 3, 2), (13, 2, 40), (149, 20, 20), (256, 16, 31), (1031, 0, 0), (1100, 65, 0), (1200, 128, 127)]


@pytest.mark.parametrize(("length", "left", "right"), CASES)
@pytest.mark.parametrize("slots", [0, 2])
@pytest.mark.parametrize("padded", [False, True])
def test_tiles_equal_reference(length, left, right, slots, padded):
    if slots and length < 2:
        slots = length
    assert_same(*problem(length, left, right, slots=slots, padded=padded), 1e-12)


@settings(max_examples=60)
@given(data=st.data())
def test_tiles_equal_reference_for_any_window_globals_padding_and_dtype(data):
    length = data.draw(st.integers(1, 300))
    left, right = data.draw(st.integers(0, 70)), data.draw(st.integers(0, 70))
    dtype, tolerance = data.draw(st.sampled_from([(torch.float64, 1e-12), (torch.float32, 3e-5)]))
    slots = data.draw(st.integers(0, min(length, 5)))
    padded, seed = data.draw(st.booleans()), data.draw(st.integers(0, 99))
    inputs, options = problem(length, left, right, slots=slots, padded=padded, dtype=dtype, seed=seed)
    if data.draw(st.booleans()) and padded:
        options["key_mask"][1] = False
        if slots:
            options["slots"][1] = -1
    assert_same(inputs, options, tolerance)


def test_the_cases_cover_every_size_of_tile():
    def size(length, left, right):
        return best_layout(Window(left, right), length, length, 0, torch.device("cpu"), one_tile=True).size

    assert {1, 13, 32, 64} <= {size(*case) for case in CASES}
    assert size(4096, 512, 512) == 128


def test_tables_of_zeros_leave_plain_window_attention():
    inputs, options = problem(211, 20, 9, padded=True)
    zeros = {name: torch.zeros_like(inputs[name]) for name in ("position_key", "position_query")}
    plain = {name: inputs[name] for name in ("query", "key", "value")}
    expected = attend(**plain, pattern=Window(20, 9), key_mask=options["key_mask"], scale=SCALE)
    found = relative(**plain, **zeros, **options, backend="blocked")
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("length", "left", "right"), [(7, 2, 1), (67, 1, 1)])
def test_gradcheck(length, left, right):
    inputs, options = problem(length, left, right, slots=2, padded=True, batch=1, heads=1, width=2)
    names = list(inputs)

    def function(*tensors):
        return relative(**dict(zip(names, tensors, strict=True)), **options, backend="blocked")

    assert torch.autograd.gradcheck(function, list(inputs.values()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [101, 1307])
def test_half_precision_is_as_exact_as_a_dense_computation_in_it(dtype, length):
    half, options = problem(length, 40, 40, width=16, batch=1, dtype=dtype)
    exact = {name: tensor.detach().double().requires_grad_() for name, tensor in half.items()}
    place = torch.arange(length)
    row, seen = (place - place[:, None] + 40).clamp(0, 80), (place - place[:, None]).abs() <= 40

    def dense_in_half(query, key, value, position_key, position_query):
        shape = (*query.shape[:2], length, length)
        scores = query @ key.transpose(-1, -2)
        scores = scores + (query @ position_key.transpose(-1, -2)).gather(-1, row.expand(shape))
        by_key = (key @ position_query.transpose(-1, -2)).gather(-1, row.T.expand(shape))
        scores = (scores + by_key.transpose(-1, -2)) * SCALE
        return torch.softmax(scores.masked_fill(~seen, -math.inf), -1) @ value

    truth = run("reference", exact, options)
    output = dense_in_half(**half)
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    dense = output, *torch.autograd.grad(output, list(half.values()), upstream)
    for true, simple, mine in zip(truth, dense, run("blocked", half, options), strict=True):
        assert mine.dtype == dtype
        assert (mine.double() - true).abs().max() <= 2 * (simple.double() - true).abs().max()


def test_padding_and_company_change_nothing():
    lengths = [397, 40, 1]
    inputs, options = problem(397, 20, 9, batch=3)
    options["key_mask"] = torch.arange(397)[None] < torch.tensor(lengths)[:, None]
    tables = {name: inputs[name] for name in ("position_key", "position_query")}
    with torch.no_grad():
        together = relative(**inputs, **options)
        for row, length in enumerate(lengths):
            alone = {name: inputs[name][row : row + 1, :, :length] for name in ("query", "key", "value")}
            found = relative(**alone, **tables, **{**options, "key_mask": None})
            torch.testing.assert_close(together[row : row + 1, :, :length], found, rtol=1e-12, atol=1e-12)


def test_what_cannot_be_seen_changes_nothing():
    """Keys that are masked, and what stands beside the window in memory, even if it is beyond all numbers."""
    inputs, options = problem(331, 9, 5)
    options["key_mask"] = torch.ones(2, 331, dtype=torch.bool)
    options["key_mask"][0, 100:140] = False
    with torch.no_grad():
        before = relative(**inputs, **options)
        inputs["key"][0, :, 100:140] = 1e30
        inputs["query"][0, :, 200] = 1e30
        after = relative(**inputs, **options)
    other = torch.arange(331) != 200
    assert torch.equal(before[:, :, other], after[:, :, other])


@pytest.mark.parametrize("prob", [0.25, 1.0])
@pytest.mark.parametrize("length", [67, 1101])
def test_dropout_keeps_the_expectation(prob, length):
    inputs, options = problem(length, 30, 30, batch=1, heads=1, width=4)
    inputs["value"] = torch.ones_like(inputs["value"]).requires_grad_()
    dropped = relative(**inputs, **options, dropout_prob=prob, backend="blocked")
    assert torch.allclose(dropped.mean(), torch.tensor(1.0 if prob < 1 else 0.0, dtype=torch.float64), atol=0.05)
    torch.manual_seed(7)
    again = relative(**inputs, **options, dropout_prob=prob, backend="blocked")
    torch.manual_seed(7)
    assert torch.equal(again, relative(**inputs, **options, dropout_prob=prob, backend="blocked"))
    assert prob == 1 or not torch.equal(again, dropped)


def test_backward_sees_the_same_dropout():
    inputs, options = problem(9, 3, 2, slots=1, batch=1, heads=1, width=2)
    names = list(inputs)

    def seeded(*tensors):
        torch.manual_seed(0)
        named = dict(zip(names, tensors, strict=True))
        return relative(**named, **options, dropout_prob=0.3, backend="blocked")

    assert torch.autograd.gradcheck(seeded, list(inputs.values()))


def largest(length: int, watched: list[int]) -> int:
    """Elements of the largest tensor in forward and backward."""
    watched.clear()
    run("blocked", *problem(length, 64, 64, slots=2, batch=1, heads=2, width=8, dtype=torch.float32))
    assert len(watched) == 2
    return max(watched)


def test_no_tensor_of_size_length_squared(watched):
    assert largest(4096, watched) < 4096 * 4096 / 8


def test_the_largest_tensor_grows_no_faster_than_the_length(watched):
    # A law of the design: exponent at most 1.1 from 4k to 64k tokens.
    assert largest(65536, watched) <= largest(4096, watched) * 16**1.1


@pytest.mark.gpu
@pytest.mark.parametrize("slots", [0, 2])
def test_tiles_on_cuda_equal_reference(slots):
    inputs, options = problem(1200, 64, 33, slots=slots, padded=True)
    inputs = {name: tensor.detach().cuda().requires_grad_() for name, tensor in inputs.items()}
    options = {name: each.cuda() if isinstance(each, Tensor) else each for name, each in options.items()}
    output = [relative(**inputs, **options, backend=backend) for backend in ("blocked", "reference")]
    grads = [torch.autograd.grad(each.sum(), list(inputs.values())) for each in output]
    torch.testing.assert_close(*output, rtol=1e-10, atol=1e-10)
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-10)
