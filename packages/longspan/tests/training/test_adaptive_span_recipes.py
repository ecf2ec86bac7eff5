"""The recipes of adaptive spans have the published settings, and Adagrad with a cut of each weight's gradient."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from longspan.errors import InputError
from longspan.models.work import Choice
from longspan.planning.plan import make_plan
from longspan.planning.source import open_planned
from longspan.training.arguments import check_made_optimizer, trainer_arguments
from longspan.training.callbacks import CutEachGradient
from longspan.training.models import new_config
from longspan.training.optimisation import Optimisation
from longspan.training.recipe_file import load_recipe


@pytest.mark.parametrize(
    ("name", "layers", "width", "inner", "dropout", "steps", "weights"),
    [
        ("adaptive-span-enwik8", 12, 512, 2048, 0.3, 600_000, 38_000_000),
        ("adaptive-span-enwik8-large", 24, 768, 4096, 0.4, 150_000, 208_000_000),
    ],
)
def test_the_published_rows(name, layers, width, inner, dropout, steps, weights):
    recipe = load_recipe(name)
    task, optimisation = recipe.task, recipe.optimisation
    config = new_config(task, recipe.model, 261)
    with torch.device("meta"):
        model = task.model_class()(config)
    assert sum(weight.numel() for weight in model.parameters()) == pytest.approx(weights, rel=0.02)
    sizes = (config.num_hidden_layers, config.hidden_size, config.intermediate_size, config.num_attention_heads)
    assert sizes == (layers, width, inner, 8)
    assert (config.activation_dropout, config.attention_dropout, config.normalization) == (dropout, dropout, "post")
    attention = config.layer_attention(0)
    assert (attention.span_tokens, attention.ramp_tokens, attention.span_penalty) == (8192, 32, 5e-7)
    assert (attention.sees_itself, attention.bias, attention.initial_span) == (False, False, 0.0)
    assert config.stack["memory_tokens"] == 8192
    assert (optimisation.optimizer, optimisation.learning_rate, optimisation.warmup()) == ("adagrad", 0.07, 32_000)
    assert (optimisation.weight_gradient_clip, optimisation.gradient_clip) == (0.03, 0)
    assert (optimisation.batch_size, optimisation.steps, task.max_tokens) == (64, steps, 512)


def test_adagrad_is_asked_for_by_name_and_adamw_as_before(tmp_path):
    task = SimpleNamespace(
        metrics=SimpleNamespace(lower_is_better=()), losses=lambda: SimpleNamespace(labels=("labels",))
    )
    plain, own = (
        trainer_arguments(Optimisation(steps=2, **options), task, tmp_path)
        for options in ({}, {"optimizer": "adagrad"})
    )
    assert str(own.optim) == "OptimizerNames.ADAGRAD"
    assert "ADAMW" in str(plain.optim)
    for name, value in (("betas", (0.9, 0.98)), ("epsilon", 1e-6)):
        settings = Optimisation(steps=2, optimizer="adagrad", **{name: value})
        with pytest.raises(InputError, match=f"'adagrad', which does not take optimisation.{name}="):
            check_made_optimizer(trainer_arguments(settings, task, tmp_path), settings)


def test_each_gradient_is_cut_by_itself():
    model = torch.nn.Linear(3, 2)
    model.weight.grad, model.bias.grad = torch.full((2, 3), 4.0), torch.tensor([0.01, 0.0])
    CutEachGradient(0.03).on_pre_optimizer_step(None, None, None, model=model)
    assert model.weight.grad.norm().item() == pytest.approx(0.03)
    assert model.bias.grad.tolist() == pytest.approx([0.01, 0.0])
    CutEachGradient(0.0).on_pre_optimizer_step(None, None, None, model=model)
    assert model.weight.grad.norm().item() == pytest.approx(0.03)


def test_a_plan_times_blocks_that_look_back_only():
    planned = open_planned("adaptive-span-enwik8", 32)
    counts = make_plan(planned, Choice(tokens=32, batch=1, train=False), room=None, mechanisms=(), timed=True)
    assert all(row.seconds > 0 for row in counts.rows if row.seconds is not None)
    assert any(row.seconds is not None for row in counts.rows)
