"""Linformer against numbers worked out by hand, full attention, and the counts of its paper."""

from __future__ import annotations

import pytest
import torch

from closeness import check_outputs, check_weights
from longspan.attention import FullConfig, LinformerConfig, Tokens
from longspan.checkpoints import lengthen
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanModel
from longspan.ops.attend.blocks import block_shares, pool_blocks

WIDTH, HEADS = 12, 3
SIZES = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 40, "init_std": 0.4}
SIZES |= {"num_attention_heads": 2, "max_position_embeddings": 32}


def build(**options):
    return LinformerConfig(**{"slots": 4, "max_tokens": 32} | options).build(width=WIDTH, heads=HEADS).double()


def as_tokens(rows):
    return torch.tensor(rows, dtype=torch.float64)[None, None]


def test_pools_worked_out_by_hand():
    """Blocks of two of the tokens 1, 5, −2, 4, 8 and of 10 times these: the last block has one token."""
    hidden = as_tokens([[1, 10], [5, 50], [-2, -20], [4, 40], [8, 80]])
    means = pool_blocks(hidden, size=2, pooling="mean")
    torch.testing.assert_close(means, as_tokens([[3, 30], [1, 10], [8, 80]]))
    largest = pool_blocks(hidden, size=2, pooling="max")
    torch.testing.assert_close(largest, as_tokens([[5, 50], [4, 40], [8, 80]]))
    factors = torch.tensor([[[1, 2], [3, 0.5]]], dtype=torch.float64)
    mixed = pool_blocks(hidden, size=2, pooling="conv", weight=factors)
    torch.testing.assert_close(mixed, as_tokens([[16, 45], [10, -20], [8, 160]]))
    matrices = torch.tensor([[[[1, 0], [0, 0]], [[0, 0], [1, 1]]]], dtype=torch.float64)  # channel 0, then 1 into both
    mixed = pool_blocks(hidden, size=2, pooling="conv", weight=matrices)
    torch.testing.assert_close(mixed, as_tokens([[51, 50], [38, 40], [8, 0]]))


def test_padding_is_in_no_pool():
    hidden, mask = as_tokens([[1], [5], [-2], [4], [8], [9]]), torch.tensor([[True, False, True, True, False, False]])
    for pooling, found in (("mean", [[1], [1], [0]]), ("max", [[1], [4], [0]])):
        torch.testing.assert_close(pool_blocks(hidden, size=2, pooling=pooling, mask=mask), as_tokens(found))
    shares = block_shares(hidden, size=2, pooling="mean", mask=mask)
    expected = [[1, 0, 0, 0, 0, 0], [0, 0, 0.5, 0.5, 0, 0], [0, 0, 0, 0, 0, 0]]
    torch.testing.assert_close(shares, as_tokens(expected))


@pytest.mark.parametrize("pooling", ["mean", "max", "conv"])
def test_shares_are_those_of_the_pools(pooling):
    """Where a head has one channel, a pool is the sum of its tokens by their shares."""
    hidden, weight = torch.randn(2, 3, 11, 1, dtype=torch.float64), torch.rand(3, 4, 1, dtype=torch.float64) + 0.1
    options = {"size": 4, "pooling": pooling, "weight": weight if pooling == "conv" else None}
    pools, shares = pool_blocks(hidden, **options), block_shares(hidden, **options)
    if pooling == "conv":
        pools = pools / pool_blocks(torch.ones_like(hidden), **options)
    torch.testing.assert_close(shares @ hidden, pools)


def test_with_the_identity_for_a_projection_it_is_full_attention():
    full = FullConfig().build(width=WIDTH, heads=HEADS).double()
    hidden = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    for options in ({"sharing": "none"}, {"sharing": "key_value"}, {"compress_input": True}):
        module = build(slots=9, max_tokens=9, **options)
        module.load_state_dict(full.state_dict(), strict=False)
        for table in module.tables.parameters():
            table.data.copy_(torch.eye(9))
        torch.testing.assert_close(module(hidden), full(hidden))
        torch.testing.assert_close(module.weights(hidden), full.weights(hidden))


def test_sums_worked_out_by_hand():
    """One slot, so that its weight is 1: every token gathers F V, here 2·3 + 5·1 − 1·4 = 7; without the token in the
    middle the others have the leading columns, 2·3 + 5·4 = 26."""
    module = LinformerConfig(slots=1, max_tokens=4).build(width=1, heads=1).double()
    for name in ("key", "value", "output"):
        torch.nn.init.ones_(getattr(module, name).weight)
        torch.nn.init.zeros_(getattr(module, name).bias)
    module.tables.value.data.copy_(torch.tensor([2.0, 5, -1, 100]))
    hidden = torch.tensor([[[3.0], [1], [4]]], dtype=torch.float64)
    assert torch.equal(module(hidden).flatten(), torch.tensor([7.0, 7, 7], dtype=torch.float64))
    hole = module(hidden, Tokens(mask=torch.tensor([[True, False, True]])))
    assert torch.equal(hole.flatten(), torch.tensor([26.0, 26, 26], dtype=torch.float64))


@pytest.mark.parametrize(
    ("sharing", "tables"), [("none", 12 * 12 * 2), ("headwise", 12 * 2), ("key_value", 12), ("layerwise", 1)]
)
def test_twelve_layers_of_twelve_heads_have_as_many_projections_as_published(sharing, tables):
    attention = {"mechanism": "linformer", "sharing": sharing, "slots": 3, "max_tokens": 7}
    model = LongspanModel(LongspanConfig(**SIZES | {
        "attention": attention, "num_hidden_layers": 12, "num_attention_heads": 12, "max_position_embeddings": 7,
    }))  # fmt: skip
    found = [p.numel() for name, p in model.named_parameters() if ".tables." in name or ".relative." in name]
    assert sum(found) == tables * 3 * 7


@torch.no_grad()
def test_a_bias_counts_differently_before_and_after_the_projection():
    """`E (X W + 1b)` and `(E X) W + b` (fairseq) differ by the sums of E's rows."""
    after, before, hidden = build(), build(compress_input=True), torch.randn(2, 9, WIDTH, dtype=torch.float64)
    before.load_state_dict(after.state_dict())
    for module in (after, before):
        for part in (module.key, module.value):
            torch.nn.init.zeros_(part.bias)
    torch.testing.assert_close(before(hidden), after(hidden))
    for module in (after, before):
        torch.nn.init.ones_(module.value.bias)
    assert not torch.allclose(before(hidden), after(hidden))


def test_a_text_longer_than_the_columns_is_refused_but_not_its_padding():
    module, hidden = build(max_tokens=8), torch.randn(2, 11, WIDTH, dtype=torch.float64)
    with pytest.raises(InputError, match="a text of 11 tokens is longer than max_tokens=8 of attention 'linformer'"):
        module(hidden)
    mask = torch.arange(11) % 3 > 0
    found = module(hidden, Tokens(mask=mask.expand(2, -1)))
    torch.testing.assert_close(found[:, mask], module(hidden[:, mask]))
    assert module.weights(hidden, Tokens(mask=mask.expand(2, -1))).shape == (2, HEADS, 11, 11)
    mask[0] = mask[3] = True
    with pytest.raises(InputError, match="a text of 9 tokens"):
        module(hidden, Tokens(mask=mask.expand(2, -1)))


def test_draws_come_from_the_seed_alone():
    torch.manual_seed(1)
    first = build(projection="random", seed=3)
    torch.manual_seed(2)
    assert torch.equal(build(projection="random", seed=3).tables.key, first.tables.key)
    assert not torch.equal(build(projection="random", seed=4).tables.key, first.tables.key)
    assert not torch.equal(first.tables.key, first.tables.value)
    assert not list(first.tables.parameters())
    wide = LinformerConfig(projection="random", slots=64).build(width=WIDTH, heads=HEADS)
    assert float(wide.tables.key.std()) == pytest.approx(1 / 8, rel=0.01)


def test_a_convolution_starts_as_a_mean():
    hidden = torch.randn(2, 32, WIDTH, dtype=torch.float64)
    conv, mean = build(projection="conv"), build(projection="mean")
    mean.load_state_dict({name: tensor for name, tensor in conv.state_dict().items() if "tables" not in name})
    torch.testing.assert_close(conv(hidden), mean(hidden))


def test_one_table_for_all_layers_is_saved_once_and_learns(tmp_path):
    attention = {"mechanism": "linformer", "sharing": "layerwise", "slots": 3, "max_tokens": 32}
    model = LongspanModel(LongspanConfig(attention=attention, **SIZES)).eval()
    ids = torch.randint(61, (2, 17))
    model(ids)[0].square().sum().backward()
    assert model.encoder.relative.key.grad.abs().sum() > 0
    assert [name for name in model.state_dict() if "tables" in name or "relative" in name] == ["encoder.relative.key"]
    model.save_pretrained(tmp_path)
    again = LongspanModel.from_pretrained(tmp_path)
    check_weights(again, model)
    check_outputs(again(ids)[0], model(ids)[0])
    layer = model.encoder.layers[0].attention
    with pytest.raises(InputError, match="relative=None of Tokens leaves this layer without the projection"):
        layer(torch.zeros(1, 5, 24))
    with pytest.raises(InputError, match=r"relative has tables of shapes \[\(1, 2, 32\)\]"):
        layer(torch.zeros(1, 5, 24), Tokens(relative=(torch.zeros(1, 2, 32),)))


@pytest.mark.parametrize("projection", ["linear", "random"])
def test_tables_that_a_checkpoint_lacks_start_as_the_configuration_says(projection, tmp_path):
    """transformers builds models without memory, and fills in what is missing later."""
    sizes = SIZES | {"attention": {"mechanism": "linformer", "projection": projection, "max_tokens": 32}}
    LongspanModel(LongspanConfig(**SIZES | {"attention": "full"})).save_pretrained(tmp_path)
    model = LongspanModel.from_pretrained(tmp_path, config=LongspanConfig(**sizes))
    found = model.encoder.layers[1].attention.tables.key.detach()
    fresh = LongspanModel(LongspanConfig(**sizes)).encoder.layers[1].attention.tables.key.detach()
    assert found.std() == pytest.approx(float(fresh.std()), rel=0.1)
    assert torch.equal(found, fresh) == (projection == "random")


def test_options_that_do_not_go_together_are_refused():
    with pytest.raises(InputError, match="sharing='none' gives each head a projection of its own"):
        LinformerConfig(sharing="none", compress_input=True)
    with pytest.raises(InputError, match="sharing='layerwise' has no tables of projection='conv'"):
        LinformerConfig(sharing="layerwise", projection="conv")
    with pytest.raises(InputError, match="attention of layer 0 takes at most 16 tokens, fewer than max_position_emb"):
        LongspanConfig(attention={"mechanism": "linformer", "max_tokens": 16}, **SIZES)
    shared = {"mechanism": "linformer", "sharing": "layerwise", "max_tokens": 32}
    with pytest.raises(InputError, match="layer 1 has slots=4, that of layer 0 has 3; all linformer layers share one"):
        LongspanConfig(attention=[shared | {"slots": 3}, shared | {"slots": 4}], **SIZES)


def test_layers_may_have_fewer_slots_the_higher_they_are():
    attention = {"mechanism": "linformer", "max_tokens": 32, "slots": {"per_layer": [8, 4]}}
    model = LongspanModel(LongspanConfig(attention=attention, **SIZES))
    assert [layer.attention.tables.key.shape[1] for layer in model.encoder.layers] == [8, 4]


@pytest.mark.parametrize("sharing", ["headwise", "layerwise"])
def test_a_longer_model_is_made_only_of_one_that_has_its_columns(sharing):
    attention = {"mechanism": "linformer", "max_tokens": 64, "sharing": sharing}
    source = LongspanModel(LongspanConfig(**SIZES, attention=attention))
    longer = lengthen(source, "linformer", max_tokens=64)
    assert longer.report.parity_hidden <= 1e-6
    assert longer(torch.randint(61, (1, 64)))[0].shape == (1, 64, 24)
    with pytest.raises(InputError, match="takes at most 64 tokens, fewer than max_position_embeddings=128"):
        lengthen(source, "linformer", max_tokens=128)
    with pytest.raises(InputError, match="'linformer' does not keep the source's outputs"):
        lengthen(LongspanModel(LongspanConfig(attention="full", **SIZES)), "linformer", max_tokens=64)
