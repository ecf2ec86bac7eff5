"""The Sparse Transformer's two sets against loops over their definition, places counted in real tokens."""

from __future__ import annotations

import pytest
import torch

from longspan.attention import MECHANISMS, SparseConfig, Tokens
from longspan.errors import InputError
from longspan.ops.attend.reference import dense_weights


def definition(config, heads, length, causal):
    """`(H, T, T)` bool: who sees whom among `length` real tokens, pair by pair."""
    stride, count, seen = config.stride, config.summary_tokens, torch.zeros(heads, length, length, dtype=torch.bool)
    for head in range(heads):
        for i in range(length):
            for j in range(i + 1 if causal else length):
                if config.kind == "strided":
                    sets = (abs(i - j) < stride, (i - j) % stride == 0)
                    seen[head, i, j] = any(sets) if config.heads == "merged" else sets[head % 2]
                else:
                    turn = 0 if config.heads == "merged" else head % config.sub_blocks
                    end = stride - turn * count
                    seen[head, i, j] = i // stride == j // stride or end - count <= j % stride < end
    return seen


OPTIONS = [
    {"stride": 5, "summary_tokens": 2},
    {"stride": 7, "summary_tokens": 3, "heads": "per_head", "sub_blocks": 2},
    {"kind": "strided", "stride": 4},
    {"kind": "strided", "stride": 4, "heads": "per_head"},
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_every_pair_is_seen_as_the_definition_says(options, causal):
    config = SparseConfig(**options)
    module = config.build(width=6, heads=2, causal=causal).double()
    for length in (1, 4, 23, 38):
        real = torch.rand(length + 9).argsort() < length  # padding anywhere
        hidden = torch.randn(1, length + 9, 6, dtype=torch.float64)
        seen = definition(config, 2, length, causal)
        query, key, value = module.project(hidden[:, real])
        expected = module.output(module.merge_heads(dense_weights(query, key, seen[None], scale=3**-0.5) @ value))
        torch.testing.assert_close(module(hidden, Tokens(mask=real[None]))[:, real], expected)
        assert config.scores_per_token(length, causal=causal) == pytest.approx(int(seen.sum()) / 2 / length)


def test_scores_worked_out_by_hand():
    """11 tokens in blocks of 4, 4 and 3, of which places 3 and 7 are seen by all; then columns of 4."""
    fixed, strided = SparseConfig(stride=4, summary_tokens=1), SparseConfig(kind="strided", stride=4)
    assert fixed.scores_per_token(11) * 11 == pytest.approx(4 * 4 + 4 * 4 + 3 * 3 + 4 * 1 + 4 * 1 + 3 * 2)
    assert fixed.scores_per_token(11, causal=True) * 11 == pytest.approx(10 + 10 + 6 + 4 * 1 + 3 * 2)
    assert strided.scores_per_token(11, causal=True) * 11 == pytest.approx(1 + 2 + 3 + 4 * 8 + 4 * 1 + 3 * 2)


@pytest.mark.parametrize("options", OPTIONS)
def test_every_earlier_token_is_reached_in_two_steps(options):
    """The paper's condition on its sets, by all heads of two layers."""
    seen = definition(SparseConfig(**options), 2, 41, causal=True).any(0).double()
    assert torch.equal((seen @ seen > 0).tril(), torch.ones(41, 41).tril() > 0)


def test_heads_see_summaries_of_their_own():
    module = SparseConfig(stride=12, summary_tokens=3, heads="per_head").build(width=8, heads=4)
    columns = [module.pattern.head(head).dense(30)[29, :24].nonzero().flatten() for head in range(4)]
    assert [each.tolist() for each in columns] == [
        [first + k for first in (at, at + 12) for k in range(3)] for at in (9, 6, 3, 0)
    ]


def test_a_stride_may_follow_the_longest_input():
    assert SparseConfig.defaults_for(4096, {}) == {}
    assert SparseConfig.defaults_for(65536, {}) == {"stride": 256}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stride": 16}, "summary_tokens=32 are more than the stride=16 of a block; give at most the stride"),
        ({"heads": "per_head", "sub_blocks": 5}, "sub_blocks=5 of summary_tokens=32 do not fit .* give at most 4"),
        ({"kind": "dilated"}, "kind is 'dilated'"),
        ({"stride": 0}, "stride is 0"),
    ],
)
def test_options_that_do_not_fit_are_named(options, says):
    with pytest.raises(InputError, match=says):
        MECHANISMS["sparse"](**options)


@pytest.mark.parametrize("steps", [1, 7])
def test_padded_rows_continue_at_places_of_their_own(steps, monkeypatch):
    """Few pairs at a time, as long texts are computed."""
    monkeypatch.setattr("longspan.attention.parts.windowed.PAIRS", 50)
    module = SparseConfig(stride=5, summary_tokens=2).build(width=6, heads=2, causal=True).double()
    hidden, mask = torch.randn(2, 29, 6, dtype=torch.float64), torch.rand(2, 29) < 0.7
    state, outputs = module.new_state(), []
    for first in range(0, 29, steps):
        tokens = Tokens(mask=mask[:, : first + steps])
        outputs.append(module(hidden[:, first : first + steps], tokens, state))
    torch.testing.assert_close(torch.cat(outputs, 1), module(hidden, Tokens(mask=mask)))
