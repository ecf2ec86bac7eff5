"""Routing against attention over all earlier tokens, counts of real weights, and what its options refuse."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from transformers.cache_utils import DynamicLayer

from longspan.attention import RoutingConfig, Tokens, attention_config
from longspan.checkpoints import lengthen
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanModel

WIDTH, HEADS = 12, 4


def build(causal=False, **options):
    torch.manual_seed(1)
    return RoutingConfig(**options).build(width=WIDTH, heads=HEADS, causal=causal).double()


def hidden_states(length, rows=2):
    return torch.randn(rows, length, WIDTH, dtype=torch.float64)


def test_one_wide_cluster_is_attention_of_normalised_queries_over_all_earlier_tokens():
    """The first token sees itself, all others those before them; a causal window stands beside."""
    module, hidden = build(causal=True, clusters=1, cluster_tokens=50, left_tokens=4), hidden_states(31)
    query = F.layer_norm(module.split_heads(module.query(hidden))[:, 2:], (3,))
    scores = query @ query.mT / 3**0.5
    seen = torch.ones(31, 31).tril(-1).bool()
    seen[0, 0] = True
    far = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    weights = module.weights(hidden)
    torch.testing.assert_close(weights[:, 2:], far)
    place = torch.arange(31)
    offset = place[:, None] - place
    assert torch.equal(weights[0, 0] > 0, (offset >= 0) & (offset <= 4))
    value = module.split_heads(module.value(hidden))
    torch.testing.assert_close(module(hidden), module.output(module.merge_heads(weights @ value)))


def test_a_token_sees_its_own_cluster_alone():
    module, hidden = build(clusters=5, cluster_tokens=3, left_tokens=0, right_tokens=0), hidden_states(67)
    weights, unit = module.weights(hidden)[:, 2:], F.layer_norm(module.split_heads(module.query(hidden))[:, 2:], (3,))
    own = (unit @ module.centroids.centres.mT).argmax(-1)
    same = own[..., :, None] == own[..., None, :]
    assert not (weights > 0)[~same].any()
    sizes = same.sum(-1)
    place = torch.arange(67)
    assert torch.equal((weights.diagonal(dim1=2, dim2=3) > 0), sizes == 1)
    before = (weights > 0).logical_and(place < place[:, None]).sum(-1)
    assert torch.equal(before, (same & (place < place[:, None])).sum(-1).clamp(max=3))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 2, 9, 40])
def test_scores_are_the_weights_that_there_are(causal, length):
    """One cluster is of equal size with itself."""
    config = {"clusters": 1, "cluster_tokens": 6, "left_tokens": 3, "right_tokens": 2}
    module, hidden = build(causal, **config), hidden_states(length, rows=1)
    counted = int((module.weights(hidden) > 0).sum()) / HEADS
    assert module.config.scores_per_token(length, causal=causal) * length == pytest.approx(counted)


@pytest.mark.parametrize("length", [1, 10, 11, 41])
def test_scores_of_clusters_by_hand(length):
    """Three clusters of 10 tokens: 4, 3 and 3; each but the first of a cluster sees up to two before it."""
    near = RoutingConfig(clusters=3, cluster_tokens=2, left_tokens=0, right_tokens=0, routing_share=0.5)
    assert near.scores_per_token(10, causal=True) * 10 == 0.5 * 10 + 0.5 * ((1 + 1 + 2 + 2) + 2 * (1 + 1 + 2))
    balanced = RoutingConfig(selection="balanced", clusters=3, left_tokens=0, right_tokens=0)
    each = -(-length // 3)
    assert balanced.scores_per_token(length) * length == pytest.approx(0.5 * length + 0.5 * 3 * each * each)


def test_products_with_centroids_are_counted():
    """Two of four heads of width 3, five centroids, seven tokens; twice with queries and keys."""
    for selection, times in (("nearest", 1), ("balanced", 2)):
        config = RoutingConfig(selection=selection, clusters=5)
        cost = config.costs(length=7, width=WIDTH, heads=HEADS)
        assert cost.mixing - 2 * WIDTH * cost.scores == times * 2 * 3 * 5 * 7


def by_the_published_loop(query, value, centres, size):
    """Algorithm 1 of Roy et al. for one head of one text, causal: shared queries and keys, token by token. With
    `(T, D)` LayerNormed queries; as routing-transformer 1.6.1 has it, `shared_qk=True`, a token sees itself only where
    it is the first of its cluster, and tokens of several clusters get the mean."""
    length = len(query)
    total, times = torch.zeros_like(value), torch.zeros(length, 1, dtype=value.dtype)
    for centre in centres:
        likeness = [float(F.normalize(one, dim=0) @ centre) for one in query]
        members = sorted(sorted(range(length), key=lambda token: -likeness[token])[:size])
        for place, token in enumerate(members):
            keys = members[:place] or [token]
            scores = query[keys] @ query[token] / query.shape[1] ** 0.5
            total[token] += scores.softmax(0) @ value[keys]
            times[token] += 1
    return total / times.clamp(min=1)


@pytest.mark.parametrize("length", [1, 2, 3, 29, 64])
@torch.no_grad()
def test_the_published_causal_form_is_algorithm_1(length):
    options = {"selection": "balanced", "causal_form": "published", "clusters": 5, "left_tokens": 2}
    module, hidden = build(causal=True, **options), hidden_states(length)
    query = F.layer_norm(module.split_heads(module.query(hidden))[:, 2:], (3,))
    value = module.split_heads(module.value(hidden))[:, 2:]
    size = -(-length // 5)
    far = torch.stack([
        torch.stack([by_the_published_loop(*each, size) for each in zip(*row, module.centroids.centres, strict=True)])
        for row in zip(query, value, strict=True)
    ])  # fmt: skip
    weights = module.weights(hidden)
    torch.testing.assert_close(weights[:, 2:] @ value, far)
    near = weights[:, :2] @ module.split_heads(module.value(hidden))[:, :2]
    torch.testing.assert_close(module(hidden), module.output(module.merge_heads(torch.cat([near, far], 1))))


def test_the_published_form_scores_what_its_clusters_hold():
    """10 tokens in 3 clusters of 4 each, with 0 + 1 + 2 + 3 pairs, and the first that sees itself."""
    config = RoutingConfig(selection="balanced", causal_form="published", clusters=3, left_tokens=0)
    assert config.scores_per_token(10, causal=True) * 10 == pytest.approx(0.5 * 10 + 0.5 * 3 * 7)
    needed = torch.zeros(10, dtype=torch.bool)
    needed[3] = True
    assert config.depends_on(needed, causal=True).all()  # by who is chosen
    with pytest.raises(InputError, match="causal_form='published' is the paper's of selection='balanced'"):
        RoutingConfig(causal_form="published")


def test_a_published_causal_model_learns_and_writes_by_reading_all_again():
    sizes = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 40, "init_std": 0.4}
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": 32}
    routing = {"mechanism": "routing", "selection": "balanced", "causal_form": "published", "clusters": 3}
    model = LongspanForCausalLM(LongspanConfig(attention=routing, **sizes))
    ids = torch.randint(3, 61, (2, 19))
    model(ids, labels=ids).loss.backward()
    model.eval()
    written = model.generate(ids[:1], max_new_tokens=4, do_sample=False, eos_token_id=None)
    text = ids[:1]
    for _ in range(4):
        text = torch.cat([text, model(text).logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(written, text)


def test_tokens_in_no_balanced_cluster_gather_nothing():
    module, hidden = build(selection="balanced", clusters=4, left_tokens=1, right_tokens=1), hidden_states(37)
    mask = torch.arange(37) < torch.tensor([[37], [20]])
    sums = module.weights(hidden, Tokens(mask=mask))[:, 2:].sum(-1)
    assert ((sums - 1).abs().minimum(sums) < 1e-9).all()
    none = sums[0] == 0
    assert none.any()
    assert not none.all()
    assert not sums[1, :, 20:].any()


def test_global_tokens_act_in_the_local_heads():
    module, hidden = build(left_tokens=1, right_tokens=1, cluster_tokens=2, clusters=3), hidden_states(19)
    is_global = torch.zeros(2, 19, dtype=torch.bool)
    is_global[:, 7] = True
    plain, marked = module.weights(hidden), module.weights(hidden, Tokens(is_global=is_global))
    assert (marked[:, :2, :, 7] > 0).all()
    assert (marked[:, :2, 7] > 0).all()
    torch.testing.assert_close(marked[:, 2:], plain[:, 2:])


def test_shares_of_heads_are_whole_and_leave_a_local_one():
    with pytest.raises(InputError, match=r"routing_share=0.5 of heads=3 are no whole heads"):
        RoutingConfig().build(width=12, heads=3)
    with pytest.raises(InputError, match="routing_share is 1"):
        RoutingConfig(routing_share=1.0)
    local = RoutingConfig(routing_share=0.0, left_tokens=2, right_tokens=2).build(width=12, heads=3)
    local(torch.randn(1, 9, 12)).sum().backward()
    local.after_step(1)
    assert RoutingConfig(routing_share=0.0, left_tokens=9, right_tokens=9).lengthening(10).covers


def test_options_of_balanced_clusters_survive_plain_data():
    config = RoutingConfig(selection="balanced")
    again = attention_config(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert not again.causal
    assert RoutingConfig().causal
    assert "cluster_tokens" in config.idle


def test_the_state_of_another_mechanism_is_refused():
    module = build(causal=True)
    with pytest.raises(InputError, match=r"state is a DynamicLayer, which keeps no clusters"):
        module(hidden_states(5), state=DynamicLayer())


def test_only_a_model_trained_with_it_can_be_lengthened_with_it():
    """Routing heads have their queries for keys; the check of short inputs says so."""
    sizes = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 40, "init_std": 0.4}
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": 32}
    with pytest.raises(InputError, match="'routing' does not keep the source's outputs"):
        lengthen(LongspanModel(LongspanConfig(attention="full", **sizes)), "routing", max_tokens=64)
    source = LongspanModel(LongspanConfig(attention="routing", **sizes))
    for parameter in source.buffers():
        if parameter.is_floating_point():
            torch.nn.init.normal_(parameter)
    longer = lengthen(source, "routing", max_tokens=64)
    assert longer.report.parity_hidden <= 1e-6
