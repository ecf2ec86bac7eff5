"""LSH attention: what its paper says, transformers' Reformer, the rotations, and what the published form leaks."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import ReformerConfig as TheirConfig
from transformers.cache_utils import DynamicLayer
from transformers.models.reformer.modeling_reformer import LocalSelfAttention, LSHSelfAttention

from closeness import check_outputs, check_weights
from longspan.attention import ReformerConfig, Tokens
from longspan.checkpoints import lengthen
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanModel
from longspan.ops.attend import attend
from longspan.ops.sorted import hashed
from longspan.ops.sorted.hashing import NOWHERE, seeded_normals
from longspan.patterns import Blocks, Causal

from .conftest import check_drawn_in_training_alone

WIDTH, HEADS = 12, 3
SMALL = ReformerConfig(chunk_tokens=8, bucket_tokens=8)
PUBLISHED = replace(SMALL, chunks="published", chunks_after=0, correct_duplicates=False)


def build(config: ReformerConfig, causal: bool = False, **changes):
    torch.manual_seed(1)
    module = replace(config, **changes).build(width=WIDTH, heads=HEADS, causal=causal).double().eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("chunks", ["bucket", "published"])
def test_one_bucket_is_shared_query_full_attention_without_the_token_itself(causal, chunks):
    module = build(ReformerConfig(chunk_tokens=32, buckets=1, chunks=chunks), causal)
    hidden = torch.randn(2, 29, WIDTH, dtype=torch.float64)
    query, value = (module.split_heads(part(hidden)) for part in (module.query, module.value))
    scores = query @ torch.nn.functional.normalize(query, dim=-1).mT
    scores = scores + torch.eye(29) * -1e5  # the published penalty
    if causal:
        scores = scores.masked_fill(torch.ones(29, 29).triu(1).bool(), -1e9)
    expected = module.output(module.merge_heads(scores.softmax(-1) @ value))
    torch.testing.assert_close(module(hidden), expected, atol=1e-5, rtol=1e-5)


def theirs(module, config: ReformerConfig, hidden: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Transformers' layer with the same weights and the same buckets."""
    layer = LSHSelfAttention(
        TheirConfig(
            hidden_size=WIDTH,
            num_attention_heads=HEADS,
            attention_head_size=WIDTH // HEADS,
            lsh_attn_chunk_length=config.chunk_tokens,
            lsh_num_chunks_before=config.chunks_before,
            lsh_num_chunks_after=config.chunks_after,
            num_hashes=config.rounds,
            num_buckets=config.buckets,
            is_decoder=causal,
        ),
        0,
    ).double()
    layer.eval()
    layer.query_key.weight, layer.value.weight = module.query.weight, module.value.weight
    ids = module.vectors(hidden, Tokens(mask=mask)).ids
    ids = torch.where(ids == NOWHERE, config.buckets, ids)
    offsets = torch.arange(config.rounds)[:, None] * (config.buckets + 1)
    return module.output(layer(hidden, attention_mask=mask, buckets=(ids + offsets).flatten(2)).hidden_states)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"rounds": 1}, {"rounds": 4, "chunks_after": 1}, {"chunks_before": 2}], ids=str
)
def test_the_published_form_is_what_transformers_computes(options, causal, padded):
    config = replace(PUBLISHED, buckets=6, **options)
    module = build(config, causal)
    torch.nn.init.zeros_(module.query.bias)
    torch.nn.init.zeros_(module.value.bias)
    hidden = torch.randn(2, 48, WIDTH, dtype=torch.float64)
    mask = torch.arange(48) < torch.tensor([[48], [37]]) if padded else None
    ours, published = module(hidden, Tokens(mask=mask)), theirs(module, config, hidden, mask, causal)
    real = torch.ones(2, 48, dtype=torch.bool) if mask is None else mask
    torch.testing.assert_close(ours[real], published[real], atol=1e-5, rtol=1e-5)  # they normalise with ε in float32


def by_hand(module, config: ReformerConfig, hidden: Tensor) -> Tensor:
    """The published form query by query, one head after the other, from lists."""
    query, _, value, ids, _ = module.vectors(hidden, Tokens())
    size, length = config.chunk_tokens, hidden.shape[1]
    context = torch.zeros_like(value)
    for row in range(hidden.shape[0]):
        for head in range(HEADS):
            ring = []
            for number in range(config.rounds):
                ring += [(number, t) for t in sorted(range(length), key=lambda t: (int(ids[row, head, number, t]), t))]
                ring += [(number, None)] * (-length % size)
            tiles = [ring[start : start + size] for start in range(0, len(ring), size)]
            for token in range(length):
                weights: dict[int, float] = {}
                for place, tile in enumerate(tiles):
                    for number, _ in (each for each in tile if each[1] == token):
                        for offset in range(-config.chunks_before, config.chunks_after + 1):
                            for other, key in tiles[(place + offset) % len(tiles)]:
                                if key is None or key == token:
                                    continue
                                bucket = ids[row, head, :, token], ids[row, head, :, key]
                                if not config.attend_across_buckets and (
                                    other != number or bucket[0][number] != bucket[1][number]
                                ):
                                    continue
                                score = float(query[row, head, token] @ hashed.unit(query[row, head, key]))
                                earlier = 0.0 if config.correct_duplicates else weights.get(key, 0.0)
                                weights[key] = earlier + math.exp(score)
                if not weights:
                    weights = {token: 1.0}
                total = sum(weights.values())
                context[row, head, token] = sum(
                    weight / total * value[row, head, key] for key, weight in weights.items()
                )
    return module.output(module.merge_heads(context))


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("across", [False, True])
def test_the_published_form_query_by_query(once, across):
    config = replace(PUBLISHED, chunk_tokens=4, correct_duplicates=once, attend_across_buckets=across, chunks_after=1)
    module, hidden = build(config), torch.randn(1, 19, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(module(hidden), by_hand(module, config, hidden), atol=1e-6, rtol=1e-6)
        weights = module.weights(hidden) @ module.split_heads(module.value(hidden))
        torch.testing.assert_close(module(hidden), module.output(module.merge_heads(weights)))


def test_published_chunks_leak_and_those_of_buckets_do_not():
    hidden = torch.randn(4, 64, WIDTH, dtype=torch.float64)
    changed = hidden.clone()
    changed[:, 40:] = torch.randn_like(changed[:, 40:])
    for config, leaks in ((PUBLISHED, True), (SMALL, False)):
        module = build(config, causal=True, buckets=6)
        assert torch.equal(module(hidden)[:, :40], module(changed)[:, :40]) != leaks


def test_published_buckets_count_padding_and_ours_do_not():
    hidden = torch.randn(1, 64, WIDTH, dtype=torch.float64)
    mask = torch.arange(64)[None] < 41
    for config, same in ((PUBLISHED, False), (SMALL, True)):
        module = build(config)
        alone, padded = module(hidden[:, :41]), module(hidden, Tokens(mask=mask))[:, :41]
        assert torch.allclose(alone, padded, rtol=0, atol=1e-9) == same


def test_a_state_of_constant_size_serves_one_form_only():
    with pytest.raises(InputError, match=r"keeps no state between steps, since .* unless chunks='bucket'"):
        build(PUBLISHED, causal=True)(torch.zeros(1, 3, WIDTH).double(), state=DynamicLayer())
    with pytest.raises(InputError, match="keeps no state"):
        build(PUBLISHED, causal=True).new_state()
    with pytest.raises(InputError, match="state is a DynamicLayer, which keeps no buckets"):
        build(SMALL, causal=True)(torch.zeros(1, 3, WIDTH).double(), state=DynamicLayer())
    module, hidden = build(SMALL, causal=True, causal_tokens=48), torch.randn(1, 90, WIDTH).double()
    state = module.new_state()
    with torch.no_grad():
        module(hidden, state=state)
        before = {name: tensor.data_ptr() for name, tensor in state.tensors.items()}
        module(hidden[:, :1], state=state)
    assert before == {name: tensor.data_ptr() for name, tensor in state.tensors.items()}
    assert state.tensors["keys"].shape == (1, HEADS, 2, 6 + 1, 2 * 8, WIDTH // HEADS)


def test_the_seed_gives_the_rotations_and_files_keep_them():
    one, same, other = (build(SMALL, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(one.rotations, same.rotations)
    assert not torch.equal(one.rotations, other.rotations)
    assert not torch.equal(one.rotations[0], one.rotations[1])  # every head has its own
    other.load_state_dict(one.state_dict())
    hidden = torch.randn(2, 50, WIDTH).double()
    check_weights(other, one)
    check_outputs(other(hidden), one(hidden))


def test_rotations_of_a_saved_model_are_those_it_was_trained_with(tmp_path):
    sizes = {"vocab_size": 61, "hidden_size": 12, "num_hidden_layers": 2, "intermediate_size": 20}
    model = LongspanModel(LongspanConfig(attention=SMALL, num_attention_heads=3, **sizes))
    for layer, block in enumerate(model.encoder.layers):
        block.attention.rotations.add_(layer + 1)
    model.save_pretrained(tmp_path)
    again = LongspanModel.from_pretrained(tmp_path)
    for ours, theirs in zip(model.encoder.layers, again.encoder.layers, strict=True):
        assert torch.equal(ours.attention.rotations, theirs.attention.rotations)


def test_new_rotations_in_training_only_and_the_same_when_recomputed():
    module, hidden = build(SMALL, resample=True), torch.randn(2, 50, WIDTH).double().requires_grad_()
    check_drawn_in_training_alone(module, hidden)


@pytest.mark.parametrize("chunks", ["bucket", "published"])
def test_autocast_rounds_what_is_multiplied_and_leaves_buckets_as_they_are(chunks):
    """Attention of rounded queries, as autocast makes them, in the buckets of those that are not rounded."""
    module = build(replace(SMALL, chunks=chunks)).float()
    hidden = torch.randn(2, 300, WIDTH, requires_grad=True)
    exact = module.vectors(hidden, Tokens())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = module.vectors(hidden, Tokens())
        rounded = module.query(hidden)
        found = module(hidden)
    assert torch.equal(cast.ids, exact.ids)
    assert cast.query.dtype == cast.value.dtype == torch.bfloat16
    assert torch.equal(module.merge_heads(cast.query), rounded)
    assert not torch.equal(cast.query.float(), exact.query)

    # Every weight and the inputs learn as without autocast, but for what bfloat16 rounds.
    learn = [hidden, module.query.weight, module.value.weight]
    weight = torch.randn(found.shape)
    ours = torch.autograd.grad((found.float() * weight).sum(), learn)
    theirs = torch.autograd.grad((module(hidden) * weight).sum(), learn)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.nn.functional.cosine_similarity(one.flatten(), other.flatten(), dim=0) > 0.999


@pytest.mark.parametrize("causal", [False, True])
def test_multiply_adds_are_those_that_pytorch_counts(causal):
    """One bucket is computed whole; of many no more than is said, since a unit is no longer than its bucket. In the
    causal form chunks are filled up."""
    for length, options in ((131, {"buckets": 1, "chunk_tokens": 131}), (8000, {})):
        module = build(ReformerConfig(**options), causal)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            module(torch.randn(1, length, WIDTH).double())
        cost = module.config.costs(length=length, width=WIDTH, heads=HEADS, causal=causal)
        times = (counter.get_total_flops() / 2 - cost.projections) / cost.mixing
        assert times == pytest.approx(1) if length == 131 else 0.2 < times <= (1.25 if causal else 1), (length, times)


def test_an_odd_number_of_buckets_is_refused():
    with pytest.raises(InputError, match="buckets=7 is odd"):
        ReformerConfig(buckets=7)
    assert ReformerConfig(buckets=1).buckets == 1


def test_describe_leaves_out_what_means_nothing():
    assert ReformerConfig(buckets=8).describe() == "reformer(chunk_tokens=64, buckets=8)"
    assert "bucket_tokens" not in replace(PUBLISHED, buckets=None).describe()


def test_only_a_model_trained_with_it_can_be_lengthened_with_it():
    sizes = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 40, "init_std": 0.4}
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": 32}
    with pytest.raises(InputError, match="'reformer' does not keep the source's outputs"):
        lengthen(LongspanModel(LongspanConfig(attention="full", **sizes)), "reformer", max_tokens=64)
    source = LongspanModel(LongspanConfig(attention=ReformerConfig(seed=5), **sizes))
    longer = lengthen(source, "reformer", max_tokens=64)
    assert longer.report.parity_hidden <= 1e-6
    first, second = (model.encoder.layers[0].attention.rotations for model in (source, longer))
    assert torch.equal(first, second)


LOCAL = ReformerConfig(local=True, chunk_tokens=4, chunks_before=2, head_width=5, bias=False)


@pytest.mark.parametrize("causal", [False, True])
def test_local_layers_are_blocks_of_a_pattern(causal):
    """Every chunk sees itself, two before and, both ways, one after it."""
    module, hidden = build(LOCAL, causal), torch.randn(2, 39, WIDTH, dtype=torch.float64)
    pattern = Blocks(4, 2, 0) & Causal() if causal else Blocks(4, 2, 1)
    query, key, value = (module.split_heads(part(hidden)) for part in (module.query, module.key, module.value))
    assert query.shape == (2, HEADS, 39, 5)
    context = attend(query, key, value, pattern=pattern, backend="reference")
    torch.testing.assert_close(module(hidden), module.output(module.merge_heads(context)))
    assert torch.equal(module.weights(hidden) > 0, pattern.dense(39).expand(2, HEADS, -1, -1))
    assert all(part.bias is None for part in (module.query, module.key, module.value, module.output))


def test_local_layers_keep_constant_state():
    module, hidden = build(LOCAL, True), torch.randn(1, 90, WIDTH, dtype=torch.float64)
    state, steps = module.new_state(), []
    with torch.no_grad():
        for start in range(0, 90, 7):
            steps.append(module(hidden[:, start : start + 7], state=state))
        torch.testing.assert_close(torch.cat(steps, 1), module(hidden))
    assert state.tensors["keys"].shape == (1, HEADS, 1, 1 + 1, 3 * 4, 5)
    assert module.rotations is None


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sides", [(1, 0), (0, 2), (1, 1), (3, 2)])
@pytest.mark.parametrize("length", [3, 8, 12, 48])
def test_published_local_layers_are_what_transformers_computes(length, sides, causal, padded):
    """Chunks stand in a ring: in a short text, some are seen twice, and count twice; padding may stand anywhere."""
    options = dict(zip(("chunks_before", "chunks_after"), sides, strict=True))
    module = build(replace(LOCAL, chunks="published"), causal, **options)
    config = TheirConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        attention_head_size=5,
        local_attn_chunk_length=4,
        local_num_chunks_before=sides[0],
        local_num_chunks_after=sides[1],
        is_decoder=causal,
    )
    layer = LocalSelfAttention(config).double().eval()
    layer.query.weight, layer.key.weight, layer.value.weight = (
        module.query.weight,
        module.key.weight,
        module.value.weight,
    )
    hidden = torch.randn(2, length, WIDTH, dtype=torch.float64)
    mask = None
    if padded:
        mask = torch.rand(2, length) < 0.7
        mask[:, 0] = True
    want = module.output(layer(hidden, attention_mask=mask).hidden_states)
    real = torch.ones(2, length, dtype=torch.bool) if mask is None else mask
    torch.testing.assert_close(module(hidden, Tokens(mask=mask))[real], want[real])
    weights = module.weights(hidden, Tokens(mask=mask)) @ module.split_heads(module.value(hidden))
    torch.testing.assert_close(
        module(hidden, Tokens(mask=mask))[real], module.output(module.merge_heads(weights))[real]
    )


def test_published_lengths_and_buckets():
    """As transformers pads and counts: 333 tokens beside chunks of 6 and 4 are 336, which are 56 chunks of 6, and 112
    buckets rounded down to 64."""
    config = replace(PUBLISHED, chunk_tokens=6, beside_tokens=4)
    assert [config.padded(length) for length in (0, 3, 4, 5, 12, 13, 333)] == [0, 3, 4, 12, 12, 24, 336]
    assert (config.factors(4), config.factors(333)) == ((), (64,))
    assert replace(config, hash_buckets=32).factors(333) == (8, 8)
    assert replace(config, hash_buckets=16).factors(100) == (4, 8)
    assert replace(config, buckets=(4, 6, 2)).factors(333) == (4, 6, 2)
    assert replace(config, buckets=512).factors(333) == (24, 22)
    assert replace(config, buckets=(512,)).count_buckets(333, False) == 512


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buckets": (4, 3), "chunks": "published"}, r"buckets=\(4, 3\) is odd"),
        ({"buckets": (), "chunks": "published"}, r"buckets=\(\) names 1 buckets"),
        ({"buckets": (4, 6)}, r"buckets=\(4, 6\) is a matter of the published form; set chunks='published', or give a"),
        ({"beside_tokens": 4}, "beside_tokens=4 is a matter of the published form"),
    ],
)
def test_options_of_the_published_form_alone(options, message):
    with pytest.raises(InputError, match=message):
        ReformerConfig(**options)


def test_published_rotations_are_drawn_as_by_a_seed_of_torch():
    found = seeded_normals(torch.zeros(1).double(), 7, [3, 4, 5])
    torch.manual_seed(7)
    assert torch.equal(found, torch.randn(3, 4, 5, dtype=torch.float64))
    assert build(PUBLISHED).state_dict().keys() == build(LOCAL, bias=True).state_dict().keys() - {
        "key.weight",
        "key.bias",
    }
