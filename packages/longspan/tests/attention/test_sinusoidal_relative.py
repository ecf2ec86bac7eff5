"""Transformer-XL's relative positions against a loop over distances, and against the published relative shift."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from closeness import check_outputs
from longspan.attention import FullConfig, FusionConfig, LongformerConfig, Tokens
from longspan.attention.features.memory import new_memory
from longspan.attention.parts.sinusoidal_relative import RelativeAttention
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanModel
from longspan.ops.sinusoids import distance_sinusoids

WIDTH, HEADS, HEAD_WIDTH = 6, 2, 3
FULL = FullConfig(positions="relative")
WINDOW = LongformerConfig(positions="relative", left_tokens=4, right_tokens=2, dilation=(1, 3))


def build(config, *, causal: bool = True) -> RelativeAttention:
    module = config.build(width=WIDTH, heads=HEADS, causal=causal).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


def sinusoid(distance: Tensor) -> Tensor:
    """[sines ‖ cosines] of distances `(…)`, one frequency after the other: `(…, E)`."""
    angles = [distance.double() / 10000 ** (2 * i / WIDTH) for i in range(WIDTH // 2)]
    return torch.stack([*(angle.sin() for angle in angles), *(angle.cos() for angle in angles)], -1)


def seen_by(module, queries: int, keys: int, mask: Tensor) -> Tensor:
    """`(B, H, T, S)` bool, from the definition of the mechanism."""
    behind = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    config, shown = module.config, []
    for head in range(HEADS):
        if isinstance(config, FullConfig):
            shown.append(behind >= 0 if module.causal else behind == behind)
        else:
            step, right = config.dilation[head], 0 if module.causal else config.right_tokens
            far = (behind <= config.left_tokens * step) & (behind >= -right * step)
            shown.append(far & (behind % step == 0))
    return torch.stack(shown) & mask[:, None, None, :]


def by_distance(module, hidden: Tensor, mask: Tensor, queries: int) -> Tensor:
    """Equation of section 3.3, pair by pair, for the last T of S tokens: `(B, T, E)`."""
    keys, config = hidden.shape[1], module.config
    q, k, v = (
        project(hidden).view(*hidden.shape[:2], HEADS, HEAD_WIDTH).transpose(1, 2)
        for project in (module.query, module.key, module.value)
    )
    distance = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    if config.clamp_tokens is not None:
        distance = distance.clamp(-config.clamp_tokens, config.clamp_tokens)
    places = (sinusoid(distance) @ module.position.weight.T).view(queries, keys, HEADS, HEAD_WIDTH)
    q = q[:, :, keys - queries :]
    content = torch.einsum("bhid,bhjd->bhij", q + module.content_bias[:, None], k)
    position = torch.einsum("bhid,ijhd->bhij", q + module.position_bias[:, None], places)
    seen = seen_by(module, queries, keys, mask)
    scores = ((content + position) / HEAD_WIDTH**0.5).masked_fill(~seen, -1e300)
    weights = scores.softmax(-1) * seen
    return module.output((weights @ v).transpose(1, 2).flatten(2))


def shifted(rows: Tensor) -> Tensor:
    """The published relative shift of `(B, H, T, S)` scores by falling distance: pad, reshape, drop the first row."""
    padded = torch.cat([rows.new_zeros(*rows.shape[:3], 1), rows], -1)
    return padded.view(*rows.shape[:2], rows.shape[3] + 1, rows.shape[2])[:, :, 1:].reshape(rows.shape)


CONFIGS = [FULL, WINDOW, replace(FULL, clamp_tokens=5), replace(WINDOW, clamp_tokens=7), replace(FULL, bias=False)]
CONFIGS += [replace(WINDOW, bias=False, right_tokens=0)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.describe())
@pytest.mark.parametrize("length", [1, 2, 19, 150])
def test_outputs_and_gradients_equal_the_formula_by_distance(config, causal, length):
    module, mask = build(config, causal=causal), torch.ones(3, length, dtype=torch.bool)
    mask[1, length // 2 :], mask[2] = False, False  # padded at the end, and padding alone
    hidden, upstream = (torch.randn(3, length, WIDTH, dtype=torch.float64) for _ in range(2))
    upstream[~mask] = 0  # windows leave rows of padding empty, full attention does not
    found = []
    for run in (lambda x: module(x, Tokens(mask=mask)), lambda x: by_distance(module, x, mask, length)):
        given = hidden.clone().requires_grad_()
        output = run(given)
        sources = [given, *module.parameters()]
        gradients = torch.autograd.grad(output, sources, upstream, allow_unused=True)
        found.append((output[mask], gradients))
    torch.testing.assert_close(*found)
    assert module(hidden, Tokens(mask=mask)).isfinite().all()


@pytest.mark.parametrize("memory", [0, 1, 7, 30])
def test_continued_keys_equal_the_published_shift(memory):
    """Eight new tokens behind a memory, as the published code computes them: without biases, shared scale."""
    module, new = build(replace(FULL, bias=False)), 8
    hidden = torch.randn(2, memory + new, WIDTH, dtype=torch.float64)
    state = module.new_state()
    module(hidden[:, :memory], state=state)
    q, k, v = (each.transpose(1, 2) for each in module.project(hidden))  # (B, S, H, D)
    distances = torch.arange(memory + new - 1, -1, -1)
    places = module.position(sinusoid(distances)).view(-1, HEADS, HEAD_WIDTH)
    content = torch.einsum("bihd,bjhd->bhij", q[:, memory:] + module.content_bias, k)
    position = shifted(torch.einsum("bihd,jhd->bhij", q[:, memory:] + module.position_bias, places))
    future = torch.ones(new, memory + new).triu(1 + memory).bool()
    weights = ((content + position) * HEAD_WIDTH**-0.5).masked_fill(future, -torch.inf).softmax(-1)
    expected = module.output(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2))
    torch.testing.assert_close(module(hidden[:, memory:], state=state), expected)


@pytest.mark.parametrize("config", [FULL, WINDOW], ids=lambda config: config.mechanism)
def test_one_step_equals_the_segment(config):
    """A step with few queries projects these instead of all distances."""
    wide = config.build(width=16, heads=2, causal=True).double().eval()
    hidden, state = torch.randn(2, 40, 16, dtype=torch.float64), wide.new_state()
    mask = torch.arange(40) >= torch.tensor([[0], [9]])
    pieces, seen = [], 0
    for step in (23, 1, 4, 5, 1, 6):
        seen += step
        pieces.append(wide(hidden[:, seen - step : seen], Tokens(mask=mask[:, :seen]), state))
    torch.testing.assert_close(torch.cat(pieces, 1), wide(hidden, Tokens(mask=mask)))


@torch.no_grad()
def test_segments_behind_a_full_memory_share_the_projected_distances():
    module, hidden = build(FULL).eval(), torch.randn(2, 40, WIDTH, dtype=torch.float64)
    state, tables = new_memory(module, 9), []
    for first in range(0, 40, 8):
        past = hidden[:, max(0, first - 9) : first]
        found = module(hidden[:, first : first + 8], state=state)
        torch.testing.assert_close(found, module(torch.cat([past, hidden[:, first : first + 8]], 1))[:, -8:])
        tables.append(state.positions)
    assert [len(table[0]) for table in tables] == [8, 16, 17, 17, 17]
    assert tables[2] is tables[3] is tables[4]


def test_a_clamp_beyond_every_distance_changes_nothing():
    module, hidden = build(FULL), torch.randn(2, 20, WIDTH, dtype=torch.float64)
    plain = module(hidden)
    for tokens in (19, 3):
        clamped = build(replace(FULL, clamp_tokens=tokens))
        clamped.load_state_dict(module.state_dict())
        assert torch.equal(clamped(hidden), plain) == (tokens == 19)
    with pytest.raises(InputError, match="clamp_tokens is 0"):
        replace(FULL, clamp_tokens=0)


def test_pairs_with_a_global_token_are_scored_by_content():
    for separate in (False, True):
        module = build(replace(WINDOW, separate_global_projections=separate), causal=False)
        hidden, is_global = torch.randn(1, 17, WIDTH, dtype=torch.float64), torch.arange(17)[None] == 5
        weights = module.weights(hidden, Tokens(is_global=is_global))
        torch.nn.init.zeros_(module.position.weight)
        module.position_bias.data.fill_(3)
        changed = module.weights(hidden, Tokens(is_global=is_global))
        torch.testing.assert_close(changed[:, :, 5], weights[:, :, 5])
        assert not torch.allclose(changed[:, :, 6], weights[:, :, 6])


def test_layers_share_their_biases_unless_told_otherwise():
    sizes = {"vocab_size": 31, "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": 3}
    sizes |= {"intermediate_size": 8, "position_embedding": "none", "init_std": 0.3}
    ids = torch.randint(3, 31, (2, 13))
    for attention in (FULL, WINDOW):
        model = LongspanForCausalLM(LongspanConfig(attention=attention.to_dict(), **sizes)).eval()
        names = {name for name, _ in model.named_parameters() if "_bias" in name}
        assert names == {"decoder.relative.content_bias", "decoder.relative.position_bias"}
        assert 0.1 < model.decoder.relative.content_bias.std() < 0.9
        own = LongspanForCausalLM(LongspanConfig(attention={**attention.to_dict(), "share_biases": False}, **sizes))
        weights = model.state_dict()
        for name in names:
            for layer in range(3):
                weights[f"decoder.layers.{layer}.attention.{name.rpartition('.')[2]}"] = weights[name]
            del weights[name]
        own.load_state_dict(weights)
        check_outputs(own.eval()(ids).logits, model(ids).logits)
    both = LongspanModel(LongspanConfig(attention=FULL.to_dict(), **sizes)).eval()
    assert both.encoder.relative is not None
    assert both(ids)[0].isfinite().all()


def test_a_layer_without_biases_says_where_they_are():
    module, hidden = build(FULL), torch.randn(1, 5, WIDTH, dtype=torch.float64)
    biases, plain = (module.content_bias.detach(), module.position_bias.detach()), module(hidden)
    module.share_positions()
    with pytest.raises(InputError, match="relative=None of Tokens leaves this layer without the two biases"):
        module(hidden)
    with pytest.raises(InputError, match=r"relative=\[\(6,\)\] of Tokens"):
        module(hidden, Tokens(relative=(torch.zeros(6),)))
    assert torch.equal(module(hidden, Tokens(relative=biases)), plain)


def test_a_source_without_positions_starts_without_any():
    module = build(replace(FULL, share_biases=False))
    started = module.warm_start(["position.weight", "content_bias", "position_bias"])
    assert set(started.values()) == {"new"}
    plain = FullConfig().build(width=WIDTH, heads=HEADS, causal=True).double()
    plain.load_state_dict({name: tensor for name, tensor in module.state_dict().items() if name in plain.state_dict()})
    hidden = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(module(hidden), plain(hidden))
    output = module(hidden).square().sum()
    output.backward()
    assert module.position.weight.grad.any()
    biases = FULL.shared_tables().build(WIDTH, HEADS)
    assert FULL.shared_tables().start(biases, {"content_bias"}) == set()
    assert not biases.content_bias.any()
    assert biases.position_bias.any()


def test_sinusoids_of_any_width_are_kept_but_not_from_inference():
    like = torch.zeros(1, dtype=torch.float64)
    for first, last in ((0, 0), (-7, 0), (-600, 3), (5, 9)):
        rows = distance_sinusoids(first, last, WIDTH, like)
        torch.testing.assert_close(rows, sinusoid(-torch.arange(first, last + 1)))
    assert distance_sinusoids(-3, 0, 5, like).shape == (4, 5)
    with torch.inference_mode():
        kept = distance_sinusoids(-1999, 0, WIDTH, torch.zeros(1))
    assert not kept.is_inference()


def test_costs_and_descriptions_count_the_positions():
    plain, far = FullConfig().costs(length=50, width=8, heads=2), FULL.costs(length=50, width=8, heads=2)
    assert far.projections - plain.projections == 99 * 64
    assert far.mixing - plain.mixing == 8 * far.scores
    clamped = replace(WINDOW, clamp_tokens=3).costs(length=50, width=8, heads=2, causal=True)
    without = replace(WINDOW, positions="none").costs(length=50, width=8, heads=2, causal=True)
    assert clamped.projections - without.projections == 4 * 64
    assert FullConfig(clamp_tokens=3).describe() == "full"
    assert FULL.describe() == "full(positions=relative)"
    with pytest.raises(InputError, match="positions is 'absolute'"):
        FullConfig(positions="absolute")
    sizes = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2}
    with pytest.raises(InputError, match="layers share one table of relative positions"):
        LongspanConfig(attention=[FULL.to_dict(), FusionConfig().to_dict()], **sizes)
