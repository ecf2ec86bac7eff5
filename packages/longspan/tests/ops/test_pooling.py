"""Pooling against a loop over slots and taps, and its fast path against its reference, with all gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fake_cuda import FakeCuda
from longspan.errors import InputError
from longspan.ops import compiled
from longspan.ops.tiles import pooling_fused
from longspan.ops.tiles.pooling import POOLINGS, pool, pool_reference, pool_shares, slot_mask
from tracing import Trace


def naive_pool(
    hidden: Tensor, *, kernel: int, stride: int, pooling: str, mask: Tensor | None = None, weight: Tensor | None = None
) -> Tensor:
    """One slot and one tap at a time, straight from the definition."""
    batch, heads, length, width = hidden.shape
    slots = -(-length // stride)
    pooled = hidden.new_zeros(batch, heads, slots, width)
    real = torch.ones(batch, length, dtype=torch.bool) if mask is None else mask
    for b in range(batch):
        for slot in range(slots):
            centre = slot * stride
            if not real[b, centre]:
                continue
            taps = [(k, centre + k - kernel // 2) for k in range(kernel)]
            taps = [(k, t) for k, t in taps if 0 <= t < length and real[b, t]]
            vectors = torch.stack([hidden[b, :, t] for _, t in taps], dim=1)  # (H, taps, D)
            if pooling == "mean":
                pooled[b, :, slot] = vectors.mean(1)
            elif pooling == "max":
                pooled[b, :, slot] = vectors.amax(1)
            else:
                scores = torch.einsum("hkd,hd->hk", weight[:, [k for k, _ in taps]], hidden[b, :, centre])
                pooled[b, :, slot] = torch.einsum("hk,hkd->hd", scores.softmax(1), vectors)
    return pooled


def example(length: int, kernel: int, pooling: str, *, dtype=torch.float64, heads: int = 2, width: int = 3):
    """Random keys for two documents, the second one padded, and the weight that the pooling needs."""
    hidden = torch.randn(2, length, heads, width, dtype=dtype).transpose(1, 2)
    weight = torch.randn(heads, kernel, width, dtype=dtype) if pooling == "ldconv" else None
    return hidden, weight


def random_mask(length: int, kind: str) -> Tensor | None:
    """No mask, padding at the end, padding anywhere, or a row that is all padding."""
    if kind == "none":
        return None
    mask = torch.ones(2, length, dtype=torch.bool)
    if kind == "end":
        mask[1, length // 3 :] = False
    elif kind == "anywhere":
        mask = torch.rand(2, length) > 0.4
    else:
        mask[0] = False
    return mask


cases = given(
    length=st.integers(0, 23),
    kernel=st.integers(1, 7),
    stride=st.integers(1, 7),
    pooling=st.sampled_from(POOLINGS),
    padding=st.sampled_from(["none", "end", "anywhere", "row"]),
    seed=st.integers(0, 99),
)


@cases
def test_equals_the_definition(length, kernel, stride, pooling, padding, seed):
    torch.manual_seed(seed)
    hidden, weight = example(length, kernel, pooling)
    options = {"kernel": kernel, "stride": stride, "pooling": pooling, "mask": random_mask(length, padding)}
    expected = naive_pool(hidden, weight=weight, **options)
    torch.testing.assert_close(pool(hidden, weight=weight, **options), expected)
    torch.testing.assert_close(pool_reference(hidden, weight=weight, **options), expected)


@cases
def test_gradients_equal_those_of_the_reference(length, kernel, stride, pooling, padding, seed):
    torch.manual_seed(seed)
    hidden, weight = example(length, kernel, pooling)
    options = {"kernel": kernel, "stride": stride, "pooling": pooling, "mask": random_mask(length, padding)}
    inputs = [hidden.requires_grad_()] + ([] if weight is None else [weight.requires_grad_()])
    fast, slow = pool(hidden, weight=weight, **options), pool_reference(hidden, weight=weight, **options)
    upstream = torch.randn_like(fast)
    for ours, theirs in zip(
        torch.autograd.grad(fast, inputs, upstream), torch.autograd.grad(slow, inputs, upstream), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_gradcheck(pooling):
    hidden, weight = example(11, 5, pooling)
    mask = random_mask(11, "end")
    inputs = (hidden.requires_grad_(), None if weight is None else weight.requires_grad_())

    def run(hidden, weight):
        return pool(hidden, kernel=5, stride=4, pooling=pooling, mask=mask, weight=weight)

    assert torch.autograd.gradcheck(run, inputs)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_short_floats_stay_close_to_float64(pooling, dtype):
    hidden, weight = example(101, 5, pooling, dtype=dtype)
    exact = pool(
        hidden.double(), kernel=5, stride=4, pooling=pooling, weight=None if weight is None else weight.double()
    )
    ours = pool(hidden, kernel=5, stride=4, pooling=pooling, weight=weight)
    reference = pool_reference(hidden, kernel=5, stride=4, pooling=pooling, weight=weight)
    assert ours.dtype == dtype
    error, allowed = (ours.double() - exact).abs().max(), (reference.double() - exact).abs().max()
    assert error <= 2 * allowed + torch.finfo(dtype).eps


def on_cuda(hidden: Tensor, weight: Tensor | None, upstream: Tensor, options: dict) -> tuple[list[Tensor], list[str]]:
    """The pools and the gradients of both inputs on a simulated GPU, and the names of its launches."""
    mask = options["mask"]
    with FakeCuda() as device:
        tensors = [tensor.detach().to(device).requires_grad_() for tensor in (hidden, weight) if tensor is not None]
        moved: dict = options | {"mask": None if mask is None else mask.to(device)}
        upstream = upstream.to(device)
        with Trace() as trace:
            pooled = pool(tensors[0], weight=tensors[1] if weight is not None else None, **moved)
            found = [pooled, *torch.autograd.grad(pooled, tensors, upstream)]
        assert not trace.waits
        return [tensor.cpu() for tensor in found], [kernel.name for kernel in trace.launches]


def expected_of(hidden: Tensor, weight: Tensor | None, upstream: Tensor, options: dict) -> list[Tensor]:
    """The pools of the reference, and the gradients of both inputs."""
    inputs = [tensor.detach().requires_grad_() for tensor in (hidden, weight) if tensor is not None]
    pooled = pool_reference(inputs[0], weight=inputs[1] if weight is not None else None, **options)
    return [pooled, *torch.autograd.grad(pooled, inputs, upstream)]


SIZES = [(1, 5, 4), (2, 3, 5), (23, 5, 4), (29, 7, 3), (31, 2, 7), (13, 1, 1), (19, 11, 2), (17, 4, 4)]
"""Tokens, and kernels and strides of which either is larger."""


@pytest.mark.parametrize(("length", "kernel", "stride"), SIZES)
@pytest.mark.parametrize("padding", ["none", "end", "anywhere", "row"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_fused_kernels_equal_the_reference(monkeypatch, pooling, padding, length, kernel, stride):
    monkeypatch.setattr(compiled, "FEWEST", 1)
    torch.manual_seed(length)
    hidden, weight = example(length, kernel, pooling)
    options = {"kernel": kernel, "stride": stride, "pooling": pooling, "mask": random_mask(length, padding)}
    upstream = torch.randn_like(pool_reference(hidden, weight=weight, **options))
    found, launches = on_cuda(hidden, weight, upstream, options)
    assert launches.count("longspan_fake::fused") == {"mean": 2, "ldconv": 3, "max": 3}[pooling]
    for ours, theirs in zip(found, expected_of(hidden, weight, upstream, options), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kernel", [5, pooling_fused.MOST_TAPS + 1])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_small_tensors_and_long_kernels_of_a_gpu_take_the_loop(monkeypatch, pooling, kernel):
    monkeypatch.setattr(compiled, "FEWEST", 1 if kernel > 5 else 1 << 21)
    hidden, weight = example(41, kernel, pooling)
    options = {"kernel": kernel, "stride": 3, "pooling": pooling, "mask": random_mask(41, "anywhere")}
    upstream = torch.randn_like(pool_reference(hidden, weight=weight, **options))
    found, launches = on_cuda(hidden, weight, upstream, options)
    assert "longspan_fake::fused" not in launches
    for ours, theirs in zip(found, expected_of(hidden, weight, upstream, options), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("fewest", [1, 1 << 21])
def test_bfloat16_of_a_gpu_errs_at_most_twice_as_much_as_the_reference(monkeypatch, pooling, fewest):
    monkeypatch.setattr(compiled, "FEWEST", fewest)
    torch.manual_seed(3)
    hidden, weight = example(211, 5, pooling, dtype=torch.bfloat16, width=13)
    if pooling == "max":  # the reference divides the gradient of equal numbers
        hidden = torch.rand(2, 2, 211, 13).argsort(2).bfloat16()
    options = {"kernel": 5, "stride": 4, "pooling": pooling, "mask": random_mask(211, "end")}
    upstream = torch.randn_like(pool_reference(hidden, weight=weight, **options))
    found, _ = on_cuda(hidden, weight, upstream, options)
    wide = [None if tensor is None else tensor.double() for tensor in (hidden, weight, upstream)]
    exact, reference = expected_of(*wide, options), expected_of(hidden, weight, upstream, options)  # pyright: ignore
    for ours, theirs, true in zip(found, reference, exact, strict=True):
        assert ours.dtype == torch.bfloat16
        assert (ours - true).norm() <= 2 * (theirs - true).norm()


@pytest.mark.parametrize("pooling", POOLINGS)
def test_what_padding_holds_is_never_read(pooling):
    hidden, weight = example(19, 5, pooling)
    mask = random_mask(19, "end")
    options = {"kernel": 5, "stride": 3, "pooling": pooling, "mask": mask, "weight": weight}
    dirty = hidden.masked_fill(~mask[:, None, :, None], 1e9)
    assert torch.equal(pool(hidden.masked_fill(~mask[:, None, :, None], 0), **options), pool(dirty, **options))


def test_a_kernel_cut_by_the_end_averages_what_is_left():
    hidden = torch.arange(6, dtype=torch.float64).view(1, 1, 6, 1)
    pooled = pool(hidden, kernel=5, stride=4, pooling="mean")
    assert pooled.flatten().tolist() == [1.0, 3.5]  # tokens 0…2, tokens 2…5


def test_zero_weights_make_ldconv_a_mean():
    hidden, _ = example(23, 5, "mean")
    mask = random_mask(23, "anywhere")
    conv = pool(hidden, kernel=5, stride=4, pooling="ldconv", mask=mask, weight=torch.zeros(2, 5, 3).double())
    torch.testing.assert_close(conv, pool(hidden, kernel=5, stride=4, pooling="mean", mask=mask))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_kernel_of_one_token_copies(pooling):
    hidden, weight = example(9, 1, pooling)
    torch.testing.assert_close(pool(hidden, kernel=1, stride=1, pooling=pooling, weight=weight), hidden)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_shares_of_valid_pools_sum_to_one(pooling):
    hidden, weight = example(17, 5, pooling)
    mask = random_mask(17, "anywhere")
    shares = pool_shares(hidden, kernel=5, stride=2, pooling=pooling, mask=mask, weight=weight)
    valid = slot_mask(mask, 2)
    assert shares.shape == (2, 2, 9, 17)
    torch.testing.assert_close(shares.sum(-1), valid[:, None].double().expand(2, 2, 9))
    assert not shares.masked_select(~mask[:, None, None, :]).any()
    if pooling != "max":
        pooled = pool(hidden, kernel=5, stride=2, pooling=pooling, mask=mask, weight=weight)
        torch.testing.assert_close(shares @ hidden, pooled)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["ldconv", "max"])
def test_operators_obey_the_rules_of_compilation(pooling):
    hidden, weight = example(13, 5, pooling, dtype=torch.float32)
    hidden.requires_grad_()

    def run(hidden, weight):
        return pool(hidden, kernel=5, stride=4, pooling=pooling, weight=weight) * 2

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (13, 29):
        hidden = torch.randn(2, 2, length, 3, requires_grad=True)
        torch.testing.assert_close(compiled(hidden, weight), run(hidden, weight))
        (ours,) = torch.autograd.grad(compiled(hidden, weight).sum(), hidden)
        (theirs,) = torch.autograd.grad(run(hidden, weight).sum(), hidden)
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "median"}, "pooling='median' is unknown"),
        ({"kernel": 0}, "kernel=0"),
        ({"stride": 0}, "stride=0"),
        ({"pooling": "ldconv"}, "needs weight"),
        ({"weight": torch.zeros(2, 5, 3)}, "takes no weight"),
        ({"pooling": "ldconv", "weight": torch.zeros(2, 4, 3)}, r"\(2, 5, 3\)"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(InputError, match=message):
        pool(torch.zeros(1, 2, 7, 3), **{"kernel": 5, "stride": 4, "pooling": "mean"} | options)
