"""Centroids that follow training batches: numbers worked out by hand, and when they move and when they do not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from closeness import check_outputs
from longspan.attention import ClusterConfig, RoutingConfig, Tokens
from longspan.attention.parts.centroids import Centroids, normal
from longspan.models import LongspanConfig, LongspanModel
from longspan.training.trainer import Borders

SMALL = {"clusters": 3, "seed": 1}
CONFIGS = [
    RoutingConfig(left_tokens=3, right_tokens=3, cluster_tokens=4, **SMALL),
    RoutingConfig(left_tokens=3, right_tokens=3, selection="balanced", **SMALL),
    ClusterConfig(chunk_tokens=5, **SMALL),
]


def two(decay=0.5, iterations=0):
    """Two centroids, along both axes."""
    centroids = Centroids(1, 2, 2, decay=decay, iterations=iterations, seed=0).double()
    centroids.centres.copy_(torch.eye(2))
    return centroids


def batch(*vectors):
    return torch.tensor([[vectors]], dtype=torch.float64)


def test_a_step_by_hand():
    """Half of (1, 0) and half of (0.8, 0.6) point along (3, 1); the padded vector along (0, 1) moves nothing."""
    centroids = two()
    centroids.note(batch([0.8, 0.6], [0.0, 1.0]), torch.tensor([[True, False]]))
    centroids.learn()
    torch.testing.assert_close(centroids.centres[0], torch.tensor([[3, 1], [0, 10**0.5]]).double() / 10**0.5)
    assert int(centroids.batches) == 1


def test_the_first_batch_is_clustered():
    """Three vectors along each axis; whichever two k-means starts from, it ends at the axes."""
    for seed in range(8):
        centroids = Centroids(1, 2, 2, decay=0.999, iterations=10, seed=seed).double()
        centroids.note(batch([1, 0], [1, 0], [1, 0], [0, 1], [0, 1], [0, 1]))
        centroids.learn()
        assert sorted(centroids.centres[0].tolist()) == [[0, 1], [1, 0]]


def test_too_few_vectors_leave_the_other_centroids_where_they_are():
    centroids = Centroids(1, 4, 2, decay=0.5, iterations=3, seed=0).double()
    before = centroids.centres.clone()
    centroids.note(batch([1, 0]))
    centroids.learn()
    assert (centroids.centres == before).all(2).sum() >= 2
    assert centroids.centres.isfinite().all()
    centroids.note(batch([1, 0]), torch.zeros(1, 1, dtype=torch.bool))
    centroids.learn()  # not one real vector
    assert centroids.centres.isfinite().all()


def test_the_seed_decides_the_start_and_vectors_have_length_one():
    first, same, other = (Centroids(2, 5, 3, decay=0.9, iterations=0, seed=seed).centres for seed in (4, 4, 5))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    torch.testing.assert_close(first.norm(dim=-1), torch.ones(2, 5))


def test_normal_is_a_layer_norm_without_weights():
    vectors = torch.randn(7, 5, dtype=torch.float64)
    wide, unit = normal(vectors)
    torch.testing.assert_close(wide, F.layer_norm(vectors, (5,)))
    torch.testing.assert_close(unit.norm(dim=-1), torch.ones(7, dtype=torch.float64))
    assert normal(vectors.bfloat16())[1].dtype == torch.float32


def state(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.describe())
def test_only_a_step_of_training_moves_them_and_it_moves_them_once(config):
    module, hidden = config.build(width=12, heads=2), torch.randn(2, 23, 12)
    before = state(module)
    module.eval()(hidden)
    module.after_step(1)
    for _ in range(2):
        module.train()(hidden)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    module.after_step(1)
    once = state(module)
    assert not torch.equal(before["centroids.centres"], once["centroids.centres"])
    module.after_step(2)  # nothing new was seen
    assert all(torch.equal(once[name], tensor) for name, tensor in module.state_dict().items())
    assert not module.centroids.centres.requires_grad


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.describe())
def test_a_pass_that_checkpointing_repeats_counts_once(config, reentrant):
    hidden, tokens = (
        torch.randn(2, 23, 12, requires_grad=True),
        Tokens(mask=torch.arange(23) < torch.tensor([[23], [9]])),
    )
    found = []
    for repeats in (False, True):
        module = config.build(width=12, heads=2)
        torch.nn.init.eye_(module.query.weight)
        torch.nn.init.eye_(module.key.weight)
        torch.nn.init.zeros_(module.query.bias)
        torch.nn.init.zeros_(module.key.bias)
        for step in (1, 2):
            states = step * hidden
            output = checkpoint(module, states, tokens, use_reentrant=reentrant) if repeats else module(states, tokens)
            output.sum().backward()
            module.after_step(step)
        found.append(state(module)["centroids.centres"])
    assert torch.equal(*found)


def test_training_tells_every_attention_of_its_steps_and_models_keep_what_was_learned(tmp_path):
    sizes = {"vocab_size": 31, "hidden_size": 12, "num_attention_heads": 2, "intermediate_size": 16}
    model = LongspanModel(LongspanConfig(attention=[each.to_dict() for each in CONFIGS], num_hidden_layers=3, **sizes))
    fresh = state(model)
    ids = torch.randint(3, 31, (2, 23))
    model.train()(ids)
    trainer = SimpleNamespace(model=model, accelerator=SimpleNamespace(unwrap_model=lambda each: each))
    steps, control = SimpleNamespace(global_step=1, max_steps=9), SimpleNamespace()
    borders = Borders(trainer)
    borders.on_train_begin(None, steps, control)
    borders.on_step_end(None, steps, control)
    moved = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, fresh[name])]
    kinds = ("centres", "batches")
    assert {name.rpartition(".")[2] for name in moved} == set(kinds)
    assert len(moved) == 6
    model.save_pretrained(tmp_path)
    loaded = LongspanModel.from_pretrained(tmp_path)
    for name in moved:
        assert torch.equal(loaded.state_dict()[name], model.state_dict()[name])
    check_outputs(loaded(ids)[0], model.eval()(ids)[0])
