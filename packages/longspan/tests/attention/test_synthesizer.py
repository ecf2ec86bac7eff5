"""Synthesizer's scores against their definitions by hand, its parameter counts, and what its tables allow."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from closeness import check_outputs, check_weights
from longspan.attention import FullConfig, SynthesizerConfig, Tokens, attention_config
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanModel

WIDTH, HEADS, MOST = 8, 2, 12


def build(*members, causal=False, **options):
    """A layer whose weights are all random, so that no two scores are equal by their start."""
    torch.manual_seed(0)
    config = SynthesizerConfig(members=members, **({"max_tokens": MOST} | options))
    module = config.build(width=WIDTH, heads=HEADS, causal=causal).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def rows(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def set_(module, **weights):
    for name, values in weights.items():
        module.get_parameter(name).data.copy_(values)


def softmax(*scores):
    return rows(*scores).softmax(-1)


def one_head(member, **options):
    config = SynthesizerConfig(members=(member,), **({"max_tokens": 3} | options))
    return config.build(width=1, heads=1).double()


def test_random_scores_by_hand():
    """Rows (0, ln 3, …) and (ln 2, 0, …): the third place does not count for two tokens."""
    module, ln = one_head("random"), torch.tensor([2.0, 3.0], dtype=torch.float64).log()
    set_(module, random=rows([0, ln[1], 9], [ln[0], 0, 9], [9, 9, 9]))
    expected = rows([1 / 4, 3 / 4], [2 / 3, 1 / 3])[None, None]
    torch.testing.assert_close(module.weights(torch.zeros(1, 2, 1).double()), expected)
    set_(module, **{"value.weight": 1, "value.bias": 0, "output.weight": 1, "output.bias": 0})
    torch.testing.assert_close(module(rows([[4], [8]])), rows([[7], [16 / 3]]))


def test_dense_scores_by_hand():
    """Tokens 1 and −2, W₁ = 2, b₁ = 1: relu gives 3 and 0; W₂ = (1, 2, 0), b₂ = (0, −1, 5): (3, 5), (0, −1)."""
    module = one_head("dense")
    set_(module, **{"dense.weight": 2, "dense.bias": 1})
    set_(module, dense_weight=rows([1], [2], [0]), dense_bias=rows(0, -1, 5))
    expected = torch.stack([softmax(3, 5), softmax(0, -1)])[None, None]
    torch.testing.assert_close(module.weights(rows([[1], [-2]])), expected)


def test_factors_are_tiled_and_repeated():
    """A token's vectors (1, 2, 3), tiled, and (10, 20), repeated: 10, 20, 30, 20, 40, 60, of which five are places."""
    module = one_head("factorised_dense", max_tokens=5, tile_tokens=3)
    zero = {f"{name}.{kind}": 0 for name in ("tiled", "repeated") for kind in ("weight", "bias")}
    set_(module, **zero, tiled_bias=rows(1, 2, 3), repeated_bias=rows(10, 20))
    expected = softmax(10, 20, 30, 20, 40).expand(1, 1, 5, 5)
    torch.testing.assert_close(module.weights(torch.zeros(1, 5, 1).double()), expected)
    hidden = torch.randn(1, 5, 1).double()
    torch.testing.assert_close(module(hidden), module.output(expected[0] @ module.value(hidden)))


def test_a_table_of_a_rank_by_hand():
    """Rank 1, left (1, 2, 0), right (3, −1, 0)."""
    module = one_head("factorised_random", rank=1)
    set_(module, random_left=rows([1], [2], [0]), random_right=rows([3], [-1], [0]))
    expected = torch.stack([softmax(3, -1, 0), softmax(6, -2, 0), softmax(0, 0, 0)])[None, None]
    torch.testing.assert_close(module.weights(torch.zeros(1, 3, 1).double()), expected)


def test_vanilla_alone_is_full_attention():
    module, full = build("vanilla"), FullConfig().build(width=WIDTH, heads=HEADS).double()
    full.load_state_dict(module.state_dict())
    hidden = torch.randn(2, 9, WIDTH).double()
    torch.testing.assert_close(module(hidden), full(hidden))


@pytest.mark.parametrize("member", ["vanilla", "dense", "random", "fixed_random", "factorised_dense"])
def test_a_mixture_of_one_share_is_that_member(member):
    members = ("factorised_random", member)
    mixed = build(*members)
    set_(mixed, mixture=rows(-1000, 0))
    alone = build(member)
    alone.load_state_dict({name: mixed.state_dict()[name] for name in alone.state_dict()})
    hidden = torch.randn(2, 9, WIDTH).double()
    torch.testing.assert_close(mixed(hidden), alone(hidden))


def test_shares_start_equal_and_are_of_scores_not_of_weights():
    fresh = SynthesizerConfig(members=("random", "vanilla"), max_tokens=MOST).build(width=WIDTH, heads=HEADS)
    assert torch.equal(fresh.mixture, torch.zeros(2))
    hidden = torch.randn(1, 5, WIDTH)
    query, key, _ = fresh.project(hidden)
    scores = (fresh.random[:, :5, :5] + query @ key.mT / 2) / 2  # √D = 2, and half of each
    torch.testing.assert_close(fresh.weights(hidden), scores.softmax(-1))


def test_random_scores_do_not_depend_on_the_text():
    for member in ("random", "fixed_random", "factorised_random"):
        module = build(member)
        first, second = (module.weights(torch.randn(1, 7, WIDTH).double()) for _ in range(2))
        assert torch.equal(first, second)
    module = build("dense")
    assert not torch.equal(*(module.weights(torch.randn(1, 7, WIDTH).double()) for _ in range(2)))


def test_what_is_drawn_once_has_no_gradient_and_comes_from_the_seed():
    first, same, other = (
        SynthesizerConfig(members=("fixed_random",), seed=seed).build(width=WIDTH, heads=HEADS) for seed in (3, 3, 4)
    )
    assert torch.equal(first.fixed_random, same.fixed_random)
    assert not torch.equal(first.fixed_random, other.fixed_random)
    assert not first.fixed_random.requires_grad
    assert {name.partition(".")[0] for name, _ in first.named_parameters()} == {"value", "output"}
    assert first.fixed_random.std().item() == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize(
    ("member", "each", "biases"),
    [
        ("vanilla", 2 * 8 * 4, 2 * 4),
        ("dense", 8 * 4 + 4 * 12, 4 + 12),
        ("random", 12 * 12, 0),
        ("fixed_random", 0, 0),
        ("factorised_dense", 2 * 8 * 4 + 4 * (4 + 3), 2 * 4 + 4 + 3),
        ("factorised_random", 2 * 12 * 3, 0),
    ],
)
def test_parameters_are_those_of_the_paper(member, each, biases):
    """Per head, for d = 8, d_h = 4, N = 12, k = 3, a = 4, b = 3, besides value and output; it counts no biases."""
    module = build(member, rank=3)
    own = sum(p.numel() for name, p in module.named_parameters() if name.partition(".")[0] not in ("value", "output"))
    assert own == HEADS * (each + biases)


def test_tables_start_with_variance_one_whatever_their_rank():
    for rank in (2, 32):
        config = SynthesizerConfig(members=("factorised_random",), rank=rank, max_tokens=400)
        module = config.build(width=WIDTH, heads=HEADS)
        assert (module.random_left @ module.random_right.mT).std().item() == pytest.approx(1, rel=0.25)


@pytest.mark.parametrize("causal", [False, True])
def test_longer_texts_are_refused_by_their_real_tokens(causal):
    module = build("random", "dense", causal=causal)
    with pytest.raises(InputError, match="a text of 13 tokens is longer than max_tokens=12 of attention 'synthesizer'"):
        module(torch.zeros(1, 13, WIDTH).double())
    hidden, mask = torch.randn(2, 17, WIDTH).double(), torch.zeros(2, 17, dtype=torch.bool)
    mask[0, 2:14] = mask[1, :3] = True
    torch.testing.assert_close(module(hidden, Tokens(mask=mask))[0, 2:14], module(hidden[:1, 2:14])[0])
    mask[0, 16] = True
    with pytest.raises(InputError, match="a text of 13 tokens"):
        module(hidden, Tokens(mask=mask))


def test_a_text_is_refused_where_it_grows_too_long_step_by_step():
    module = build("dense", causal=True)
    state, hidden = module.new_state(), torch.randn(1, 13, WIDTH).double()
    steps = [module(hidden[:, token : token + 1], state=state) for token in range(12)]
    torch.testing.assert_close(torch.cat(steps, 1), module(hidden[:, :12]))
    with pytest.raises(InputError, match="a text of 13 tokens"):
        module(hidden[:, 12:], state=state)


def test_products_never_make_all_scores(memory):
    """Of dense, vanilla and a table of a rank nothing of T × T is made; a table itself is as large."""
    members = ("dense", "vanilla", "factorised_random")
    module = SynthesizerConfig(members=members, max_tokens=2048).build(width=WIDTH, heads=HEADS)
    with memory() as made, torch.no_grad():
        module(torch.zeros(1, 2048, WIDTH))
    assert made.largest < 2048 * 2048


def test_costs_by_hand():
    """53 tokens in 2 heads of 4: 2809 scores per head, each 4 for its value besides what its members take."""

    def mixing(*members, **options):
        config = SynthesizerConfig(members=members, max_tokens=60, **options)
        return config.costs(length=53, width=WIDTH, heads=HEADS).mixing

    scores = 2 * 53 * 53
    assert mixing("random") == mixing("fixed_random") == 4 * scores
    assert mixing("vanilla") == FullConfig().costs(length=53, width=WIDTH, heads=HEADS).mixing
    assert mixing("dense", "random") == (4 + 5) * scores
    assert mixing("factorised_random", rank=3) == (4 + 3) * scores
    assert mixing("factorised_dense") == (4 + 1) * scores + 2 * 53 * 4 * (8 + 8)


def test_models_keep_their_tables(tmp_path):
    sizes = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 1, "intermediate_size": 40}
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": 32}
    spec = {"mechanism": "synthesizer", "members": ["fixed_random", "dense"], "max_tokens": 32, "seed": 9}
    model = LongspanModel(LongspanConfig(attention=spec, **sizes)).eval()
    assert abs(model.encoder.layers[0].attention.dense_weight.std().item() - 0.02) < 0.005
    model.encoder.layers[0].attention.fixed_random.mul_(2)
    model.save_pretrained(tmp_path)
    ids = torch.randint(61, (2, 32))
    again = LongspanModel.from_pretrained(tmp_path).eval()
    check_weights(again, model)
    check_outputs(again(ids)[0], model(ids)[0])
    writer = LongspanForCausalLM(LongspanConfig(attention=spec, **sizes)).eval()
    text = writer.generate(ids[:, :5], max_new_tokens=9, min_new_tokens=9, do_sample=False)
    assert torch.equal(
        text, writer.generate(ids[:, :5], max_new_tokens=9, min_new_tokens=9, do_sample=False, use_cache=False)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"members": []}, r"members=\(\) must name at least one"),
        ({"members": ["dense", "dense"]}, "and each of them once"),
        ({"members": ["sparse"]}, r"members\[0\] is 'sparse'; choose 'vanilla'"),
        ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
    ],
)
def test_mistakes_get_one_sentence(options, message):
    with pytest.raises(InputError, match=message):
        attention_config({"mechanism": "synthesizer", **options})


def test_only_options_that_mean_something_are_described():
    assert SynthesizerConfig().describe() == "synthesizer(max_tokens=512)"
    assert "rank=4" in SynthesizerConfig(members=("factorised_random",), rank=4).describe()
