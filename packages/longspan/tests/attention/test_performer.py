"""Performer's random features against the softmax that they approximate, and against numbers worked out by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from closeness import check_outputs, check_weights
from longspan.attention import FullConfig, PerformerConfig, Tokens, attention_config
from longspan.checkpoints import lengthen
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanModel
from longspan.ops.kernels.linear import attend_linear, linear_weights
from longspan.ops.kernels.random_features import (
    EPSILON,
    TOP,
    draw_directions,
    key_features,
    query_features,
    relu_features,
)
from longspan.training.trainer import Borders

WIDTH = 4


def doubles(*shape):
    return torch.randn(shape, dtype=torch.float64)


def rows(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)[None, None]


def kernel(query, key, directions, hyperbolic=False):
    """The estimate of `exp(q·k / √D)` as the paper writes it, for vectors `(…, D)` that broadcast."""
    both = torch.cat([directions, -directions]) if hyperbolic else directions
    query, key = (each * each.shape[-1] ** -0.25 for each in (query, key))
    sides = [(x @ both.mT - x.square().sum(-1, keepdim=True) / 2).exp() for x in (query, key)]
    return (sides[0] * sides[1]).mean(-1)


def estimates(query, key, count, *, draws=1500, **options):
    hyperbolic = options.pop("hyperbolic", False)
    drawn = torch.stack([draw_directions(count, WIDTH, seed=3, draw=draw, **options) for draw in range(draws)])
    return torch.stack([kernel(query, key, each, hyperbolic) for each in drawn])


def test_features_worked_out_by_hand():
    """D = 1, ω = ln 2 and 0: at k = ln 2 keys have e^T·(1, e^(−(ln 2)²/2)), at q = 1 queries 2·e^((ln 2)²/2) to 1."""
    log2, directions = math.log(2), torch.tensor([[math.log(2)], [0.0]], dtype=torch.float64)
    key = key_features(rows([log2]), directions)
    torch.testing.assert_close(key, rows([math.exp(TOP), math.exp(TOP - log2**2 / 2)]))
    query = query_features(rows([1.0]), directions)
    torch.testing.assert_close(query, rows([1.0, math.exp(-(log2**2) / 2) / 2]))
    torch.testing.assert_close(
        relu_features(rows([3.0], [-1.0]), directions), rows([3 * log2 + 1e-3, 1e-3], [1e-3] * 2)
    )


def test_the_relu_kernel_is_divided_as_the_published_code_divides():
    """`generalized_kernel` of performer-pytorch 1.1.4 and of google-research, written out: `x · D^−¼`, then ReLU and
    10⁻³. By hand: D = 16, ω = (1, 1, 0, …), x = (3, 1, 0, …) gives 4 / 2 = 2, and −x nothing."""
    ones = torch.zeros(1, 16, dtype=torch.float64)
    ones[0, :2] = 1
    vector = torch.tensor([3.0, 1.0] + [0.0] * 14, dtype=torch.float64)
    torch.testing.assert_close(
        relu_features(torch.stack([vector, -vector]), ones), vector.new_tensor([[2.001], [1e-3]])
    )
    config = PerformerConfig(kernel="relu", features=11)
    attention = config.build(width=3 * WIDTH, heads=3).double()
    hidden = doubles(2, 23, 3 * WIDTH)
    query, key, _ = attention.project(hidden)
    sides = [(each * WIDTH**-0.25 @ attention.directions.mT).clamp(min=0) + 0.001 for each in (query, key)]
    products = sides[0] @ sides[1].mT
    torch.testing.assert_close(attention.weights(hidden), products / products.sum(-1, keepdim=True))


@pytest.mark.parametrize("hyperbolic", [False, True])
def test_weights_are_those_of_the_features_as_published(hyperbolic):
    """However the factors are shared out between queries and keys."""
    query, key, directions = doubles(2, 3, 17, WIDTH), doubles(2, 3, 17, WIDTH), draw_directions(6, WIDTH, seed=1)
    plain = kernel(query[:, :, :, None], key[:, :, None], directions, hyperbolic)
    options = {"hyperbolic": hyperbolic}
    found = query_features(query, directions, **options), key_features(key, directions, **options)
    torch.testing.assert_close(linear_weights(*found, causal=False), plain / plain.sum(-1, keepdim=True))
    value = doubles(2, 3, 17, 5)
    seen = plain.tril()
    torch.testing.assert_close(
        attend_linear(*found, value, causal=True)[0], (seen / seen.sum(-1, keepdim=True)) @ value
    )


@pytest.mark.parametrize("options", [{}, {"orthogonal": False}, {"hyperbolic": True}], ids=str)
def test_the_mean_over_draws_is_the_kernel_of_the_softmax(options):
    torch.manual_seed(0)
    query, key = 0.4 * doubles(5, WIDTH), 0.4 * doubles(5, WIDTH)
    found = estimates(query, key, 6, **options)
    exact = ((query * key).sum(-1) / math.sqrt(WIDTH)).exp()
    error = found.std(0) / math.sqrt(len(found))
    assert ((found.mean(0) - exact).abs() < 5 * error).all()
    assert (error < 0.1 * exact).all()


def variance(query, key, count, **options):
    return estimates(query, key, count, draws=1500, **options).var(0).mean().item()


@pytest.mark.slow
def test_more_features_orthogonal_and_opposite_ones_err_less():
    torch.manual_seed(1)
    query, key = 0.4 * doubles(9, WIDTH), 0.4 * doubles(9, WIDTH)
    few, many = variance(query, key, 4), variance(query, key, 64)
    assert many == pytest.approx(few / 16, rel=0.3)
    assert few < variance(query, key, 4, orthogonal=False)
    assert variance(query, key, 4, orthogonal=False, hyperbolic=True) < variance(query, key, 8, orthogonal=False)


def test_directions_are_orthogonal_in_blocks_and_as_long_as_gaussian_ones():
    drawn = draw_directions(2003, 10, seed=5)
    for block in (drawn[:10], drawn[1990:2000], drawn[2000:]):
        products = block @ block.mT
        torch.testing.assert_close(products, products.diagonal().diag(), rtol=0, atol=1e-12)
    squares = drawn.square().sum(-1)
    assert squares.mean().item() == pytest.approx(10, rel=0.05)  # χ² of 10 degrees of freedom
    assert squares.var().item() == pytest.approx(20, rel=0.2)
    torch.testing.assert_close(drawn.mean(0), torch.zeros(10).double(), rtol=0, atol=0.15)


def test_a_draw_is_its_seed_and_its_number():
    first = draw_directions(9, 4, seed=7)
    assert torch.equal(first, draw_directions(9, 4, seed=7, draw=0))
    assert not torch.equal(first, draw_directions(9, 4, seed=7, draw=1))
    assert not torch.equal(first, draw_directions(9, 4, seed=8))
    torch.manual_seed(99)
    assert torch.equal(first, draw_directions(9, 4, seed=7))


def errors(features):
    """How far the outputs are from those of full attention with the same weights, in all heads, on average."""
    torch.manual_seed(2)
    full = FullConfig().build(width=32, heads=4)
    module = PerformerConfig(features=features).build(width=32, heads=4)
    module.load_state_dict(full.state_dict() | {"directions": module.directions})
    hidden = torch.randn(2, 20, 32)
    with torch.no_grad():
        return float((module(hidden) - full(hidden)).norm() / (full(hidden) - full.output.bias).norm())


def test_the_layer_approaches_full_attention():
    found = [errors(features) for features in (8, 64, 4096)]
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.05


def test_long_keys_neither_overflow_nor_vanish():
    """Beyond the range of its features a key counts for nothing, and its gradient is finite."""
    directions = draw_directions(64, 64, seed=0).float()
    for size in (0.0, 1.0, 4.0, 100.0, 1e4):
        query, key = (size * torch.randn(1, 1, 90, 64, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
        key.requires_grad_()
        value = torch.randn(1, 1, 90, 64)
        features = query_features(query, directions), key_features(key, directions)
        found, _ = attend_linear(*features, value, causal=True, epsilon=EPSILON)
        found.sum().backward()
        assert found.isfinite().all()
        assert key.grad.isfinite().all()
    assert not found.any()


def test_directions_are_redrawn_when_it_is_time_and_the_same_in_every_run():
    one, other = (PerformerConfig(features=6, redraw=3, seed=4).build(width=8, heads=2) for _ in range(2))
    first = one.directions.clone()
    assert torch.equal(first, draw_directions(6, 4, seed=4).float())
    seen = []
    for step in range(1, 8):
        one.after_step(step)
        seen.append(one.directions.clone())
    same = [torch.equal(*pair) for pair in zip([first, *seen], seen, strict=False)]
    assert same == [True, True, False, True, True, False, True]
    other.after_step(6)  # as a run that was resumed
    assert torch.equal(other.directions, one.directions)
    kept = PerformerConfig(features=6, redraw=None, seed=4).build(width=8, heads=2)
    kept.after_step(1000)
    assert torch.equal(kept.directions, first)


def test_training_says_when_a_step_is_done():
    module = PerformerConfig(features=6, redraw=3, seed=4).build(width=8, heads=2)
    trainer = SimpleNamespace(model=module, accelerator=SimpleNamespace(unwrap_model=lambda model: model))
    borders, steps = Borders(trainer), SimpleNamespace(global_step=6, max_steps=9)
    borders.on_train_begin(None, steps, None)
    borders.on_step_end(None, steps, None)
    assert torch.equal(module.directions, draw_directions(6, 4, seed=4, draw=2).float())


def model(kind=LongspanModel, attention: object = "performer", **changes):
    sizes = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 40, "init_std": 0.4}
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": 32}
    torch.manual_seed(0)
    return kind(LongspanConfig(attention=attention, **(sizes | changes))).eval()


def test_redrawn_directions_are_saved_and_others_start_from_the_seed(tmp_path):
    trained = model(attention={"mechanism": "performer", "seed": {"per_layer": [0, 5]}})
    layers = [layer.attention for layer in trained.encoder.layers]
    assert not torch.equal(layers[0].directions, layers[1].directions)
    for layer in layers:
        layer.after_step(1000)
    trained.save_pretrained(tmp_path / "trained")
    ids = torch.randint(61, (2, 19))
    again = LongspanModel.from_pretrained(tmp_path / "trained").eval()
    check_weights(again, trained)
    check_outputs(again(ids)[0], trained(ids)[0])
    full = model(attention="full")
    full.save_pretrained(tmp_path / "full")
    changed = LongspanConfig.from_dict(full.config.to_dict() | {"attention": "performer"})
    loaded = LongspanModel.from_pretrained(tmp_path / "full", config=changed)
    for layer in loaded.encoder.layers:
        assert torch.equal(layer.attention.directions, PerformerConfig().build(width=24, heads=2).directions)


def test_weights_of_a_softmax_are_a_start_and_the_report_says_how_far_it_is():
    source = model(attention="full", init_std=0.1)
    longer = lengthen(source, "performer", max_tokens=64, features=4096)
    report = longer.report
    assert report.parity_hidden <= 1e-5
    assert 0 < report.approximation < 0.15
    assert "computed exactly; as approximated, states differ by" in str(report)
    rough = lengthen(source, "performer", max_tokens=64, features=4)
    assert rough.report.approximation > report.approximation
    assert longer(torch.randint(61, (1, 64)))[0].shape == (1, 64, 24)
    again = lengthen(longer, "performer", max_tokens=96)
    assert again.report.parity_hidden <= 1e-6
    assert again.report.approximation is None


def test_the_relu_kernel_is_another_mechanism_to_trained_weights():
    with pytest.raises(InputError, match="'performer' does not keep the source's outputs"):
        lengthen(model(attention="full"), "performer", max_tokens=64, kernel="relu")


def test_the_state_is_one_sum_per_feature():
    writer = model(LongspanForCausalLM, attention={"mechanism": "performer", "features": 7})
    kept = writer(torch.randint(61, (2, 9)), use_cache=True).cache
    assert kept.layers[0].tensors["sums"].shape == (2, 2, 7, 13)


def test_the_number_of_features_follows_the_width_of_a_head():
    """64 ln 64 = 266.2, rounded up to even; one feature for a head of one number would be none by D ln D."""
    assert [PerformerConfig().feature_count(width) for width in (1, 2, 8, 64)] == [2, 2, 18, 268]
    assert PerformerConfig(hyperbolic=True).direction_count(64) == 134
    assert PerformerConfig(hyperbolic=True).feature_count(64) == 268


def test_a_row_of_padding_gathers_nothing():
    module, hidden = PerformerConfig().build(width=6, heads=2).double(), doubles(2, 9, 6)
    mask = torch.tensor([[True], [False]]).expand(2, 9)
    assert torch.equal(module(hidden, Tokens(mask=mask))[1], module.output.bias.expand(9, 6))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hyperbolic": True, "kernel": "relu"}, "hyperbolic=True is a form of the softmax's features"),
        ({"hyperbolic": True, "features": 9}, "features=9 is odd, and hyperbolic ones come in pairs; give an even"),
        ({"features": 0}, "features is 0; it must be at least 1"),
        ({"kernel": "exp"}, "kernel is 'exp'; choose 'softmax' or 'relu'"),
    ],
)
def test_mistakes_get_one_sentence(options, message):
    with pytest.raises(InputError, match=message):
        attention_config({"mechanism": "performer", **options})
