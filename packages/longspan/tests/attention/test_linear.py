"""Linear attention against numbers worked out by hand and the recurrence of its paper, token by token."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks
from transformers.cache_utils import DynamicLayer

from longspan.attention import LinearConfig, Tokens
from longspan.attention.linear import LinearAttention
from longspan.checkpoints import lengthen
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanModel
from longspan.ops.kernels import linear
from longspan.ops.kernels.linear import attend_linear, elu_features

HALF, QUARTER = -math.log(2), -math.log(4)


def one_head(rows):
    return torch.tensor(rows, dtype=torch.float64)[None, None]


def attend(query, key, value, **options):
    return attend_linear(elu_features(query), elu_features(key), value, epsilon=LinearAttention.epsilon, **options)


def test_numbers_worked_out_by_hand():
    """φ of the queries is (1, 2), (3, ¼), of the keys (1, 1), (2, ½); so the scores are 3, 3 and 3¼, 6⅛."""
    query, key, value = one_head([[0, 1], [2, QUARTER]]), one_head([[0, 0], [1, HALF]]), one_head([[3], [6]])
    both, sums = attend(query, key, value, causal=False)
    torch.testing.assert_close(both, one_head([[4.5], [4.96]]), rtol=0, atol=1e-5)
    back, last = attend(query, key, value, causal=True)
    torch.testing.assert_close(back, one_head([[3], [4.96]]), rtol=0, atol=1e-5)
    for found in (sums, last):
        torch.testing.assert_close(found, one_head([[15, 3], [6, 1.5]]))
    first, held = attend(query[:, :, :1], key[:, :, :1], value[:, :, :1], causal=True)
    second, held = attend(query[:, :, 1:], key[:, :, 1:], value[:, :, 1:], causal=True, sums=held)
    torch.testing.assert_close(torch.cat([first, second], 2), back)
    torch.testing.assert_close(held, last)


def recurrence(query, key, value, mask):
    """Section 3.4: `s_i = s_{i−1} + φ(k_i) v_iᵀ`, `z_i = z_{i−1} + φ(k_i)`, `y_i = φ(q_i)ᵀ s_i / (φ(q_i)ᵀ z_i)`."""
    s, z, rows = torch.zeros(()), torch.zeros(()), []
    for token in range(query.shape[2]):
        phi = (F.elu(key[:, :, token]) + 1) * mask[:, None, token, None]
        s, z = s + phi[..., :, None] * value[:, :, token, None, :], z + phi
        read = F.elu(query[:, :, token]) + 1
        rows.append((read[..., None] * s).sum(2) / ((read * z).sum(2)[..., None] + 1e-6))
    return torch.stack(rows, 2)


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
@pytest.mark.parametrize("length", [1, 64, 131])
def test_chunks_of_any_size_are_the_recurrence(length, chunk, monkeypatch):
    monkeypatch.setattr(linear, "CHUNK", chunk)
    inputs = [torch.randn(2, 3, length, 5, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    mask, upstream = torch.rand(2, length) < 0.8, torch.randn_like(inputs[0])
    ours, _ = attend(*inputs, causal=True, key_mask=mask)
    theirs = recurrence(*inputs, mask)
    torch.testing.assert_close(ours, theirs)
    for mine, other in zip(*(torch.autograd.grad(each, inputs, upstream) for each in (ours, theirs)), strict=True):
        torch.testing.assert_close(mine, other)


def test_both_ways_every_query_reads_the_last_sum():
    query, key, value = (torch.randn(2, 3, 23, 5, dtype=torch.float64) for _ in range(3))
    both, _ = attend(query, key, value, causal=False)
    for token in range(23):
        moved = query[:, :, token : token + 1].expand(query.shape)
        last = recurrence(moved, key, value, torch.ones(2, 23))[:, :, -1]
        torch.testing.assert_close(both[:, :, token], last)


def test_features_are_those_of_the_paper_and_never_round_to_zero():
    points = torch.tensor([-3.0, -0.5, 0.0, 0.5, 40.0], dtype=torch.float64)
    torch.testing.assert_close(elu_features(points), F.elu(points) + 1)
    assert elu_features(torch.tensor(-30.0)) == torch.tensor(-30.0).exp() > 0
    assert elu_features(torch.zeros(1, dtype=torch.bfloat16)).dtype == torch.float32


def test_a_row_of_padding_gathers_nothing():
    module, hidden = LinearConfig().build(width=6, heads=2).double(), torch.randn(2, 9, 6, dtype=torch.float64)
    mask = torch.tensor([[True], [False]]).expand(2, 9)
    assert torch.equal(module(hidden, Tokens(mask=mask))[1], module.output.bias.expand(9, 6))


def test_dropout_takes_whole_keys_and_scales_the_rest():
    query, key = torch.randn(2, 1, 3, 40, 40, dtype=torch.float64)
    value = torch.eye(40, dtype=torch.float64).expand(1, 3, 40, 40)  # so that outputs are weights
    weights, _ = attend(query, key, value, causal=False)
    dropped, _ = attend(query, key, value, causal=False, dropout_prob=0.25)
    kept = (dropped != 0).any(2, keepdim=True)
    torch.testing.assert_close(dropped, weights * kept / 0.75)
    assert 60 < int(kept.sum()) < 115  # of 120; six standard deviations


def test_what_is_kept_for_the_backward_pass_holds_no_sum_per_token():
    length, width, sizes = 4096, 32, []

    def keep(tensor):
        sizes.append(tensor.numel())
        return tensor

    inputs = [torch.randn(1, 1, length, width, requires_grad=True) for _ in range(3)]
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        attend(*inputs, causal=True)
    assert max(sizes) <= length * linear.CHUNK
    assert sum(sizes) < length * width * width


def test_the_state_of_another_mechanism_is_refused():
    module = LinearConfig().build(width=6, heads=2, causal=True)
    with pytest.raises(InputError, match=r"state is a DynamicLayer, which keeps no sums; give attention.new_state\(\)"):
        module(torch.zeros(1, 5, 6), state=DynamicLayer())


def test_only_a_model_trained_with_it_can_be_lengthened_with_it():
    """The softmax's weights mean something else here; the check of short inputs says so."""
    sizes = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 40, "init_std": 0.4}
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": 32}
    with pytest.raises(InputError, match="'linear' does not keep the source's outputs"):
        lengthen(LongspanModel(LongspanConfig(attention="full", **sizes)), "linear", max_tokens=64)
    longer = lengthen(LongspanModel(LongspanConfig(attention="linear", **sizes)), "linear", max_tokens=64)
    assert longer.report.parity_hidden <= 1e-6
    assert longer(torch.randint(61, (1, 64)))[0].shape == (1, 64, 24)
