"""Patterns of two sets of keys, computed apart, against the dense reference."""

from __future__ import annotations

import math

import pytest
import torch

from longspan import attend
from longspan.ops.attend.door import checked
from longspan.ops.tiles import blocked, split
from longspan.patterns import Causal, Fixed, PerHead, Strided, Window

LENGTH = 611
PATTERNS = [
    Fixed(32, 8),
    Fixed(32, 8) & Causal(),
    Fixed(32, 8, 2) & Causal(),
    Fixed(37, 5),
    Window(31, 31) | Strided(32),
    Window(31, 0) | Strided(32) & Causal(),
    Window(40, 3) | Strided(19),
    PerHead([Fixed(32, 8), Fixed(32, 8, 1)]),
]


def call_of(pattern, length=LENGTH):
    zeros = torch.zeros(1, 2, length, 3)
    options = {"key_mask": None, "globals": None, "global_rows": True, "scale": None}
    return checked(zeros, zeros, zeros, pattern, (), **options, dropout_prob=0.0, query_offset=0)


@pytest.mark.variant
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_two_sets_apart_are_the_dense_reference(pattern, dtype):
    assert all(isinstance(each, split.Apart) for _, each in split.split(call_of(pattern)))
    inputs = [torch.randn(2, 2, LENGTH, 5, dtype=dtype, requires_grad=True) for _ in range(3)]
    mask, upstream = torch.rand(2, LENGTH) < 0.8, torch.randn_like(inputs[0])
    mask[1, :100] = False  # queries that see nothing
    for globals_ in (None, torch.rand(2, LENGTH) < 0.01):
        results = []
        for backend in ("reference", "blocked"):
            output = attend(*inputs, pattern=pattern, key_mask=mask, globals=globals_, backend=backend)
            results.append((output, *torch.autograd.grad(output, inputs, upstream)))
        torch.testing.assert_close(*results, atol=1e-4 if dtype == torch.float32 else 1e-9, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [Fixed(32, 8), Window(31, 0) | Strided(32) & Causal()], ids=str)
def test_dropout_of_both_sets_keeps_the_mean_and_has_its_own_gradient(pattern):
    inputs = [torch.randn(1, 1, LENGTH, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    whole = attend(*inputs, pattern=pattern, backend="blocked")
    drawn = torch.stack([attend(*inputs, pattern=pattern, dropout_prob=0.3, backend="blocked") for _ in range(100)])
    assert (drawn.mean(0) - whole).abs().mean() < 0.2 * (drawn[0] - whole).abs().mean()

    def dropped(*tensors):
        torch.manual_seed(3)
        return attend(*tensors, pattern=pattern, dropout_prob=0.3, backend="blocked")[:, :, ::40]

    assert torch.autograd.gradcheck(dropped, inputs, fast_mode=True)


def test_logarithms_are_those_of_the_sums():
    """One query and keys whose scores are ln 1, ln 2, ln 3: ln 6, and −∞ where the pattern shows nothing."""
    key = torch.tensor([1.0, 2.0, 3.0]).log()[None, None, :, None]
    query = torch.ones(1, 1, 3, 1)
    options = {"globals": None, "global_rows": True, "scale": 1.0, "dropout_prob": 0.0, "query_offset": 0}
    call = checked(query, key, key, Causal(), (), key_mask=None, **options)
    _, logs = blocked.forward_with_logs(call)
    torch.testing.assert_close(logs.flatten(), torch.tensor([1.0, 3.0, 6.0]).log())
    hidden = checked(query, key, key, Causal(), (), key_mask=torch.tensor([[False, True, True]]), **options)
    _, logs = blocked.forward_with_logs(hidden)
    torch.testing.assert_close(logs.flatten(), torch.tensor([-math.inf, math.log(2), math.log(5)]))


def test_short_inputs_and_other_patterns_stay_whole():
    for pattern, length in ((Window(31, 31) | Strided(32), 40), (Window(3, 5), LENGTH), (Strided(32), LENGTH)):
        assert all(isinstance(each, split.Whole) for _, each in split.split(call_of(pattern, length)))


def test_columns_do_not_cost_all_pairs():
    """What tiles compute for a stride of √T grows as T·√T: eightfold for four times the length."""

    def scores(kind, length):
        stride = round(math.sqrt(length))
        far = Strided(stride) & Causal()
        pattern = Window(stride - 1, 0) | far if kind == "strided" else Fixed(stride, stride // 4) & Causal()
        ((_, apart),) = split.split(call_of(pattern, length))
        assert isinstance(apart, split.Apart)
        return sum(
            blocked.best_layout(
                part.call.pattern, part.call.query.shape[2], part.call.key.shape[2], 0, torch.device("cpu")
            ).scores
            for part in apart.parts
        )

    assert scores("strided", 65536) / scores("strided", 16384) < 8.5
    assert scores("strided", 16384) < 0.1 * 16384**2


@pytest.mark.parametrize("pattern", [Fixed(32, 8) & Causal(), Window(31, 0) | Strided(32) & Causal()], ids=str)
def test_training_computes_each_set_once_forward(pattern, monkeypatch):
    calls, original = [], blocked.forward_with_logs
    monkeypatch.setattr(blocked, "forward_with_logs", lambda call: calls.append(call) or original(call))
    inputs = [torch.randn(1, 2, LENGTH, 5, requires_grad=True) for _ in range(3)]
    attend(*inputs, pattern=pattern, backend="blocked").sum().backward()
    assert len(calls) == 2


def test_the_operator_that_keeps_its_logarithms_is_one_of_pytorch():
    query, key, value = (torch.randn(1, 2, LENGTH, 5, requires_grad=True) for _ in range(3))
    args = (query, key, value, [], None, None, None, "", [0], "fixed(32, 8) & causal()", 0.5, 0.0)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    found = torch.library.opcheck(torch.ops.longspan.attention_with_logs.default, args, test_utils=tests)
    assert set(found.values()) == {"SUCCESS"}
