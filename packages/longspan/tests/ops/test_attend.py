"""Every backend of `attend` against the dense reference, and the reference against a loop."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.errors import InputError
from longspan.ops import attend
from longspan.ops.attend.call import Call, slots_of_mask
from longspan.ops.attend.terms import Bias, GlobalKeyBias, PositionBias
from longspan.ops.runtime import LAYOUT_CACHE
from longspan.ops.tiles import blocked
from longspan.ops.tiles.layout import _regular_step, best_layout
from longspan.patterns import (
    Blocks,
    Causal,
    DrawnBlocks,
    First,
    Fixed,
    Full,
    PerHead,
    PooledWindow,
    Prefix,
    RandomBlocks,
    Strided,
    Window,
)

PATTERNS = [
    Full(),
    Causal(),
    Window(3, 5),
    Window(17, 0),
    Window(20, 2, 3),
    Window(20, 2, 3) & Causal(),
    First(2),
    Blocks(7),
    Strided(5),
    Strided(5) & Causal(),
    Fixed(6, 2),
    Prefix(7),
    Prefix(9, 6),
    RandomBlocks(3, 2, 1),
    DrawnBlocks(3, 2, 1, blocks=30),
    PooledWindow(9, 8, 5, 4),
    Window(4, 0) | First(1),
    (Window(4, 4) | Blocks(5)) & Causal(),
    PerHead([Window(1, 1), Window(2, 2, 2), Window(1, 1)]),
]


def tensors(queries, keys, *, batch=2, heads=3, width=5, value_width=7, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((queries, width), (keys, width), (keys, value_width))
    return [torch.randn(batch, heads, *shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def run(backend, inputs, **options):
    """Outputs and all gradients, for a fixed random upstream gradient; inputs beyond three are learnt by a term."""
    output = attend(*inputs[:3], backend=backend, **options)
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return output.detach(), *torch.autograd.grad(output, inputs, upstream.to(output.dtype))


def assert_equal(first, second, tolerance):
    for one, two in zip(first, second, strict=True):
        torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance)


def by_hand(query, key, value, pattern, key_mask, is_global):
    """Attention one query at a time, straight from the definition; a padded token is not global."""
    is_global = is_global & key_mask
    output = torch.zeros(*query.shape[:-1], value.shape[-1], dtype=query.dtype)
    for b in range(query.shape[0]):
        for h in range(query.shape[1]):
            for i in range(query.shape[2]):
                keys = [
                    j
                    for j in range(key.shape[2])
                    if key_mask[b, j]
                    and (
                        bool(pattern.head(h).visible(torch.tensor(i), torch.tensor(j)))
                        or is_global[b, i]
                        or is_global[b, j]
                    )
                ]
                if keys:
                    scores = torch.stack([query[b, h, i] @ key[b, h, j] for j in keys]) / math.sqrt(query.shape[-1])
                    output[b, h, i] = torch.softmax(scores, 0) @ value[b, h, keys]
    return output


@pytest.mark.parametrize("pattern", [Window(2, 3), PerHead([Window(1, 0), Full()]), First(1) & Causal()], ids=str)
def test_reference_is_the_definition(pattern):
    query, key, value = tensors(11, 11, heads=2)
    key_mask = torch.rand(2, 11) < 0.8
    key_mask[1, :4] = False
    is_global = torch.zeros(2, 11, dtype=torch.bool)
    is_global[0, [0, 5]] = True
    is_global[1, [2, 9]] = True
    found = attend(query, key, value, pattern=pattern, key_mask=key_mask, globals=is_global, backend="reference")
    torch.testing.assert_close(found, by_hand(query, key, value, pattern, key_mask, is_global), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize(
    ("queries", "keys", "offset"), [(0, 0, 0), (1, 1, 0), (149, 149, 0), (151, 37, 0), (3, 89, 86)]
)
@pytest.mark.parametrize("padded", [False, True])
def test_blocked_equals_reference(pattern, queries, keys, offset, padded):
    inputs = tensors(queries, keys)
    key_mask = None
    if padded:
        key_mask = torch.rand(2, keys, generator=torch.Generator().manual_seed(3)) < 0.8
        key_mask[1] = False
    options = {"pattern": pattern, "key_mask": key_mask, "query_offset": offset}
    expected = run("reference", inputs, **options)
    assert_equal(run("blocked", inputs, **options), expected, 1e-12)
    assert_equal(run("auto", inputs, **options), expected, 1e-12)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_blocked_equals_reference_for_any_window_globals_padding_and_dtype(data):
    length = data.draw(st.integers(1, 300))
    left, right = data.draw(st.integers(0, 90)), data.draw(st.integers(0, 90))
    pattern = Window(left, right, data.draw(st.integers(1, 4)))
    dtype, tolerance = data.draw(st.sampled_from([(torch.float64, 1e-12), (torch.float32, 2e-5)]))
    inputs = tensors(length, length, dtype=dtype, seed=data.draw(st.integers(0, 99)))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    key_mask = torch.rand(2, length, generator=generator) < data.draw(st.sampled_from([0.0, 0.5, 1.1]))
    is_global = torch.rand(2, length, generator=generator) < data.draw(st.sampled_from([0.0, 0.03, 1.1]))
    options = {"pattern": pattern, "key_mask": key_mask, "globals": is_global}
    options["global_rows"] = data.draw(st.booleans())
    assert_equal(run("blocked", inputs, **options), run("reference", inputs, **options), tolerance)


def test_global_slots_are_the_mask_and_doubles_count_once():
    inputs = tensors(53, 53)
    mask = torch.zeros(2, 53, dtype=torch.bool)
    mask[0, [3, 40]] = True
    mask[1, 7] = True
    slots = torch.tensor([[40, 3, -1, 40], [-1, 7, 7, -1]])
    expected = run("reference", inputs, pattern=Window(2, 2), globals=mask)
    assert_equal(run("blocked", inputs, pattern=Window(2, 2), globals=slots), expected, 1e-12)
    assert_equal(run("reference", inputs, pattern=Window(2, 2), globals=slots), expected, 1e-12)
    assert slots_of_mask(mask).tolist() == [[3, 40], [7, -1]]
    assert slots_of_mask(mask, 3).tolist() == [[3, 40, -1], [7, -1, -1]]


@pytest.mark.parametrize("pattern", [Window(3, 5), PerHead([Window(1, 1), Strided(3), Full()]), Fixed(6, 2)], ids=str)
@pytest.mark.parametrize(
    "shape", [(2, 3, 71, 71), (1, 1, 71, 71), (2, 1, 1, 71), (71, 71), (3, 1, 71), (1, 71), (71,), (71, 1), ()]
)
def test_bias_is_added_to_the_scores(pattern, shape):
    inputs = tensors(71, 71)
    bias = torch.randn(shape, dtype=torch.float64)
    is_global = torch.zeros(2, 71, dtype=torch.bool)
    is_global[0, [0, 50]] = True
    options = {"pattern": pattern, "terms": [Bias(bias)], "globals": is_global}
    assert_equal(run("blocked", inputs, **options), run("reference", inputs, **options), 1e-12)


@pytest.mark.parametrize("backend", ["reference", "blocked", "auto"])
@pytest.mark.parametrize("pattern", [Full(), Window(3, 5), Strided(3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_bias_of_minus_infinity_hides_keys_and_whole_rows(backend, pattern, dtype):
    inputs = [each.detach().to(dtype).requires_grad_() for each in tensors(71, 71, value_width=5)]
    bias = torch.zeros(71, 71, dtype=dtype)
    bias[:, 10:14] = bias[20:23] = -math.inf
    bias[40, :40] = -math.inf
    is_global = torch.zeros(2, 71, dtype=torch.bool)
    is_global[0, 50] = True
    found = run(backend, inputs, pattern=pattern, terms=[Bias(bias)], globals=is_global)
    # The same by hiding, in plain PyTorch: a softmax over what is left, zero where nothing is.
    exact = [each.detach().double().requires_grad_() for each in inputs]
    seen = (pattern.dense(71) | is_global[:, None, :, None] | is_global[:, None, None]) & (bias == 0)
    scores = (exact[0] @ exact[1].transpose(-1, -2) / math.sqrt(5)).masked_fill(~seen, -1e300)
    output = (torch.softmax(scores, -1) * seen) @ exact[2]
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    upstream = upstream.to(dtype).double()
    expected = output.detach(), *torch.autograd.grad(output, exact, upstream)
    assert (found[0][:, :, 20:23] == 0).all()
    tolerance = 1e-12 if dtype == torch.float64 else 3e-2
    assert_equal([each.double() for each in found], expected, tolerance)


def test_a_bias_that_broadcasts_learns():
    inputs = tensors(9, 9)
    bias = torch.randn(3, 1, 9, dtype=torch.float64, requires_grad=True)
    whole = bias.detach().expand(2, 3, 9, 9).clone().requires_grad_()
    upstream = torch.randn(2, 3, 9, 7, dtype=torch.float64)
    small = torch.autograd.grad(attend(*inputs, pattern=Window(2, 2), terms=[Bias(bias)]), bias, upstream)[0]
    large = torch.autograd.grad(attend(*inputs, pattern=Window(2, 2), terms=[Bias(whole)]), whole, upstream)[0]
    torch.testing.assert_close(small, large.sum((0, 2))[:, None], rtol=1e-12, atol=1e-12)


def test_a_line_of_bias_is_never_spread_over_all_queries(memory):
    query = torch.randn(1, 2, 8192, 4)
    with memory() as made:
        terms = (Bias(torch.zeros(1, 1, 1, 8192)),)
        slots = torch.tensor([[5]])
        blocked.forward(Call(query, query, query, Window(64, 64), 0.5, terms, slots=slots))
    assert made.largest < 8192 * 8192 / 32


@pytest.mark.slow
def test_random_and_other_irregular_patterns_at_any_length():
    """Tiles in any order and number: a grid over patterns and lengths, one of which once ran backwards."""
    made = [RandomBlocks(block, count, seed) for block in (7, 32) for count in (1, 5) for seed in (0, 1)]
    made += [Fixed(32, 1), Strided(64), Blocks(33), RandomBlocks(32, 5) & Causal(), RandomBlocks(16, 1) | First(1)]
    for pattern in made:
        for length in (1, 33, 64, 96, 129, 200):
            query, key, value = (each.detach() for each in tensors(length, length, batch=1, heads=1, width=2))
            found = attend(query, key, value, pattern=pattern, backend="blocked")
            expected = attend(query, key, value, pattern=pattern, backend="reference")
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_band_never_runs_backwards():
    assert _regular_step(torch.tensor([0, 1]), torch.tensor([[3], [1]])) is None
    assert _regular_step(torch.tensor([0, 1]), torch.tensor([[1], [3]])) == 2


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # PyTorch's own, in its forward mode
@pytest.mark.parametrize("pattern", [Window(2, 1), Full(), Causal()], ids=str)
def test_forward_mode_is_right_or_refused(pattern):
    inputs = tuple(each.detach() for each in tensors(11, 11))
    tangents = tuple(torch.randn_like(each) for each in inputs)

    def function(backend):
        return lambda *each: attend(*each, pattern=pattern, backend=backend)

    _, found = torch.func.jvp(function("auto"), inputs, tangents)
    step = 1e-6
    ahead, behind = (
        function("reference")(*(each + sign * step * by for each, by in zip(inputs, tangents, strict=True)))
        for sign in (1, -1)
    )
    torch.testing.assert_close(found, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-7)
    with pytest.raises(InputError, match="forward-mode"):
        torch.func.jvp(function("blocked"), inputs, tangents)
    with pytest.raises(InputError, match=r"torch\.func"):
        torch.func.jacrev(function("blocked"))(*inputs)
    jacobian = torch.func.jacrev(function("auto"))(*inputs)
    turned = torch.einsum("bhtdxyze,xyze->bhtd", jacobian, tangents[0])
    _, expected = torch.func.jvp(lambda each: function("auto")(each, *inputs[1:]), inputs[:1], tangents[:1])
    torch.testing.assert_close(turned, expected)


@pytest.mark.parametrize("slot", [8, 10**9, -2])
def test_slots_that_name_no_token_are_refused(slot):
    inputs = [torch.zeros(1, 1, 8, 4) for _ in range(3)]
    with pytest.raises(InputError, match=f"globals holds {slot}"):
        attend(*inputs, pattern=Full(), globals=torch.tensor([[0, slot]]))


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [Window(2, 1), Strided(3) & Causal(), PerHead([Full(), Window(1, 1, 2)])], ids=str)
def test_gradcheck(pattern):
    inputs = tensors(11, 11, heads=2, width=3, value_width=2)
    is_global = torch.zeros(2, 11, dtype=torch.bool)
    is_global[0, 4] = True
    key_mask = torch.ones(2, 11, dtype=torch.bool)
    key_mask[1, 6:] = False

    def function(*tensors_):
        return attend(*tensors_, pattern=pattern, globals=is_global, key_mask=key_mask, backend="blocked")

    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("pattern", [Window(20, 9), Strided(4) | Blocks(9), RandomBlocks(8, 2, 0)], ids=str)
def test_padding_and_company_change_nothing(pattern):
    lengths = [97, 40, 1]
    query, key, value = (tensor.detach() for tensor in tensors(97, 97, batch=3))
    key_mask = torch.arange(97)[None] < torch.tensor(lengths)[:, None]
    is_global = torch.zeros(3, 97, dtype=torch.bool)
    is_global[:, 0] = True
    is_global[1, 33] = True
    together = attend(query, key, value, pattern=pattern, key_mask=key_mask, globals=is_global)
    for row, length in enumerate(lengths):
        alone = [tensor[row : row + 1, :, :length] for tensor in (query, key, value)]
        found = attend(*alone, pattern=pattern, globals=is_global[row : row + 1, :length])
        torch.testing.assert_close(together[row : row + 1, :, :length], found, rtol=1e-12, atol=1e-12)


def test_causal_outputs_do_not_move_when_the_future_changes():
    for pattern in (Causal(), Window(9, 0), Fixed(8, 2) & Causal(), Strided(4) & Causal()):
        query, key, value = (tensor.detach() for tensor in tensors(131, 131, dtype=torch.float32))
        before = attend(query, key, value, pattern=pattern, backend="blocked")
        key[:, :, 70:] += 5
        value[:, :, 70:] -= 3
        after = attend(query, key, value, pattern=pattern, backend="blocked")
        assert torch.equal(before[:, :, :70], after[:, :, :70])


LINEAR = [
    Window(64, 64),
    Window(30, 30, 4),
    Window(64, 0) | First(2),
    Blocks(100),
    PooledWindow(256, 256, 5, 4),
    RandomBlocks(64, 2, 0),
    PerHead([Window(64, 64), Window(16, 16, 3)]),
    Strided(512),
]


@pytest.mark.parametrize("pattern", LINEAR, ids=str)
def test_no_tensor_of_size_length_squared(pattern, watched):
    length = 4096
    inputs = tensors(length, length, batch=1, heads=2, width=8, value_width=8, dtype=torch.float32)
    is_global = torch.zeros(1, length, dtype=torch.bool)
    is_global[0, [0, 99]] = True
    run("blocked", inputs, pattern=pattern, globals=is_global)
    LAYOUT_CACHE.clear()
    assert len(watched) >= 2
    assert max(watched) < length * length / 8


@pytest.mark.parametrize("pattern", [Window(64, 64), Window(30, 30, 4), PooledWindow(256, 256, 5, 4)], ids=str)
def test_the_largest_tensor_grows_no_faster_than_the_length(pattern, memory):
    def largest_at(length):
        query = torch.randn(1, 1, length, 4)
        with memory() as made:
            blocked.forward(Call(query, query, query, pattern, 0.5))
        return made.largest

    # A law of the design: exponent at most 1.1 from 4k to 64k tokens.
    assert largest_at(65536) <= largest_at(4096) * 16**1.1


def test_the_number_of_scores_is_linear_for_a_window():
    device = torch.device("cpu")
    short = best_layout(Window(128, 128), 4096, 4096, 0, device).scores
    long = best_layout(Window(128, 128), 65536, 65536, 0, device).scores
    assert long / short < 16.5
    assert long < 65536 * 257 * 1.5


@pytest.mark.parametrize(
    "pattern",
    [
        PerHead([Window(5, 4, dilation) for dilation in (1, 1, 2, 2)]),
        PerHead([Window(5, 4, dilation) for dilation in (2, 1, 3, 1)]),
        PerHead([Window(5, 4), Window(4, 5), Window(3, 0, 2), Window(5, 4)]) & Causal(),
    ],
    ids=str,
)
@pytest.mark.parametrize("length", [3, 61, 256])
def test_heads_with_tiles_of_one_shape_run_in_one_pass(pattern, length, watched):
    inputs = tensors(length, length, heads=4)
    key_mask = torch.ones(2, length, dtype=torch.bool)
    key_mask[1, length // 2 :] = False
    slots = torch.tensor([[0, 2], [1, -1]])
    bias = torch.randn(2, 4, length, 2, dtype=torch.float64, requires_grad=True)
    options = {"pattern": pattern, "key_mask": key_mask, "globals": slots, "terms": [GlobalKeyBias(bias)]}
    inputs.append(bias)
    found = run("blocked", inputs, **options)
    assert len(watched) == 4  # the pass and that of the global rows, forward and backward
    assert_equal(found, run("reference", inputs, **options), 1e-11)

    def seeded(*heads):
        torch.manual_seed(0)
        return attend(*heads, pattern=pattern, dropout_prob=0.3, backend="blocked")

    if length == 3:
        assert torch.autograd.gradcheck(seeded, tensors(3, 3, batch=1, heads=4, width=2, value_width=2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("value_width", [3, 5, 7])
def test_causal_attention_over_padding_equals_reference_without_a_mask_of_all_pairs(dtype, value_width, memory):
    length = 521
    inputs = [tensor.detach().to(dtype).requires_grad_() for tensor in tensors(length, length, value_width=value_width)]
    key_mask = torch.rand(2, length) < 0.8
    key_mask[0, :77] = False
    key_mask[1] = False
    options = {"pattern": Causal(), "key_mask": key_mask}
    with memory() as made:
        found = run("auto", inputs, **options)
    assert made.largest < length * length / 8
    tolerance = {torch.float64: 1e-11, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}[dtype]
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    assert_equal([each.double() for each in found], run("reference", exact, **options), tolerance)


@pytest.mark.parametrize("terms", [[], [PositionBias(torch.linspace(-1, 1, 9).double().expand(3, 9))]])
def test_dropout_of_everything_leaves_nothing(terms):
    query, key, value = tensors(67, 67, width=4, value_width=67)
    options = {"pattern": Window(30, 30), "terms": terms, "backend": "blocked"}
    assert (attend(query, key, value, dropout_prob=1.0, **options) == 0).all()


@pytest.mark.parametrize("terms", [[], [PositionBias(torch.linspace(-1, 1, 9).double().expand(3, 9))]])
def test_dropout_keeps_the_expectation_and_backward_sees_the_same_mask(terms):
    query, key, value = tensors(67, 67, width=4, value_width=67)
    value = torch.eye(67, dtype=torch.float64).expand(2, 3, 67, 67).clone().requires_grad_()
    options = {"pattern": Window(30, 30), "terms": terms, "backend": "blocked"}
    weights = attend(query, key, value, **options)
    torch.manual_seed(0)
    dropped = attend(query, key, value, dropout_prob=0.25, **options)
    kept = dropped != 0
    share = (kept.sum() / (weights != 0).sum()).item()
    assert abs(share - 0.75) < 0.02
    torch.testing.assert_close(dropped[kept], (weights / 0.75)[kept], rtol=1e-10, atol=1e-10)

    def seeded(*inputs):
        torch.manual_seed(0)
        return attend(*inputs, dropout_prob=0.25, **options)

    small = tensors(7, 7, batch=1, width=2, value_width=2)
    assert torch.autograd.gradcheck(seeded, small)


@pytest.mark.slow
def test_operator_passes_pytorchs_own_checks():
    query, key, value = tensors(21, 21, dtype=torch.float32)
    key_mask = torch.rand(2, 21) < 0.8
    terms, kinds = [torch.randn(3, 7, 5), torch.randn(3, 5), torch.randn(1, 1, 21, 21)], "content_to_position:2 bias:1"
    slots, pattern = torch.tensor([[3], [-1]]), "window(3, 3, 1)"
    args = (query, key, value, terms, key_mask, slots, None, kinds, [0, -3, 0], pattern, 0.4, 0.0)
    assert set(torch.library.opcheck(torch.ops.longspan.blocked_attention.default, args).values()) == {"SUCCESS"}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"backend": "fast"}, ["backend='fast'", "reference"]),
        ({"backend": "flex", "dropout_prob": 0.1}, ["flex", "dropout_prob=0.1", "blocked"]),
        ({"pattern": "window(3)"}, ["pattern", "parse"]),
        ({"pattern": PerHead([Full()] * 2)}, ["2 heads", "3"]),
        ({"key_mask": torch.ones(2, 8)}, ["key_mask", "bool"]),
        ({"key_mask": torch.ones(2, 7, dtype=torch.bool)}, ["key_mask", "(2, 8)"]),
        ({"dropout_prob": 1.5}, ["dropout_prob=1.5"]),
        ({"globals": torch.ones(2, 7, dtype=torch.bool)}, ["globals", "7", "8"]),
        ({"globals": torch.ones(2, 8)}, ["globals", "float32"]),
        ({"query_offset": 3, "globals": torch.ones(2, 8, dtype=torch.bool)}, ["globals", "offset 3"]),
        ({"terms": [Bias(torch.zeros(2, 3, 5, 5))]}, ["Bias", "broadcasts"]),
        ({"terms": [Bias(torch.zeros(1, 1, 1, 8, 8))]}, ["Bias", "broadcasts"]),
        ({"terms": [Bias(torch.zeros(8, 8, dtype=torch.bool))]}, ["Bias", "bool"]),
    ],
)
def test_what_does_not_fit_is_one_sentence(change, names):
    inputs = [torch.zeros(2, 3, 8, 4) for _ in range(3)]
    with pytest.raises(InputError) as caught:
        attend(*inputs, **{"pattern": Full(), **change})
    message = str(caught.value)
    assert "\n" not in message
    for name in names:
        assert name in message


def test_shapes_and_dtypes_must_fit():
    good = torch.zeros(2, 3, 8, 4)
    for query, key, value in ((good[0], good, good), (good, good[:1], good), (good, good, good[:, :, :5])):
        with pytest.raises(InputError, match="shapes"):
            attend(query, key, value, pattern=Full())
    with pytest.raises(InputError, match="dtypes"):
        attend(good, good.double(), good, pattern=Full())


@pytest.mark.parametrize("backend", ["auto", "blocked", "reference"])
@pytest.mark.parametrize("pattern", [Window(2, 2), Full(), Causal(), PerHead([Full(), Window(1, 1)])], ids=str)
@pytest.mark.parametrize("padded", [False, True])
def test_no_tokens_with_unused_slots_give_nothing(backend, pattern, padded):
    inputs = tensors(0, 0, heads=2, value_width=5)
    mask, slots = torch.ones(2, 0, dtype=torch.bool) if padded else None, torch.full((2, 3), -1)
    for terms in ([], [Bias(torch.zeros(0, 0, dtype=torch.float64))]):
        output = attend(*inputs, pattern=pattern, key_mask=mask, globals=slots, terms=terms, backend=backend)
        assert output.shape == (2, 2, 0, 5)
        assert all(each.shape[2] == 0 for each in torch.autograd.grad(output.sum(), inputs))
