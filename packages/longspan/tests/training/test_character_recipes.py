"""The recipes of Longformer's character models have the settings of its tables, and so many weights."""

from __future__ import annotations

from statistics import mean
from typing import Any

import pytest
import torch

from longspan.stacks.block import Block
from longspan.training.models import new_config
from longspan.training.recipe import Recipe
from longspan.training.recipe_file import load_recipe

STAGES = {
    "small": [(430, 32), (50, 32), (50, 16), (35, 16), (5, 16)],
    "large": [(350, 32), (25, 32), (10, 16), (5, 16), (5, 16)],
}
"""Thousands of steps and batch of each phase."""


def model_of(recipe: Recipe) -> tuple[Any, int]:
    """The configuration of a recipe's model, and how many weights it has."""
    task = recipe.task
    assert recipe.tokenizer.train is not None
    config = new_config(task, recipe.model, recipe.tokenizer.train)
    with torch.device("meta"):
        model = task.model_class()(config)
    return config, sum(weight.numel() for weight in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size", "layers", "weights"),
    [
        ("longformer-text8-small", "small", 12, 41_085_440),
        ("longformer-enwik8-small", "small", 12, 41_085_440),
        ("longformer-enwik8-large", "large", 30, 102_510_080),
    ],
)
def test_five_stages_as_in_the_tables(name: str, size: str, layers: int, weights: int) -> None:
    """The paper has 41 and 102 million weights; ours count 256 bytes and five special tokens (0.13 million)."""
    recipe = load_recipe(name)
    stages = recipe.stage_recipes
    assert [stage.task.max_tokens for stage in stages] == [2048, 4096, 8192, 16384, 23040]
    assert [(stage.optimisation.steps, stage.optimisation.batch_size) for stage in stages] == [
        (1000 * steps, batch) for steps, batch in STAGES[size]
    ]
    for number, stage in enumerate(stages):
        optimisation = stage.optimisation
        assert optimisation.steps is not None
        assert optimisation.learning_rate == 2.5e-4 / 2**number
        assert optimisation.warmup() == min(10_000, optimisation.steps / 10)
        assert (optimisation.gradient_checkpointing, optimisation.bf16, optimisation.float32_attention) == (True,) * 3
    config, counted = model_of(recipe)
    assert counted == weights
    assert (config.num_hidden_layers, config.dropout) == (layers, {"small": 0.2, "large": 0.4}[size])
    attention = [config.layer_attention(layer) for layer in range(layers)]
    assert sorted({each.left_tokens for each in attention}) == [32, 64, 128, 256, 512]
    assert [each.left_tokens for each in attention] == sorted(each.left_tokens for each in attention)
    half = layers // 2
    assert all(set(each.dilations) == {1} for each in attention[:half])
    assert all(each.dilations[:6] == (1,) * 6 and each.dilations[6] == each.dilations[7] for each in attention[half:])
    assert [each.dilations[-1] for each in attention[half:]] == sorted([2, 3, 4] * (half // 3))
    last = new_config(stages[-1].task, stages[-1].model, 261)
    assert {last.layer_attention(layer).left_tokens for layer in (0, layers - 1)} == {512, 8192}


@pytest.mark.parametrize(
    ("kind", "published", "first", "last", "dilated"),
    [
        ("decreasing", 1.24, 512, 32, False),
        ("fixed", 1.23, 230, 230, False),
        ("increasing", 1.21, 32, 512, False),
        ("dilated", 1.20, 32, 512, True),
    ],
)
def test_the_rows_of_the_ablation(kind: str, published: float, first: int, last: int, dilated: bool) -> None:
    recipe = load_recipe(f"longformer-ablation-{kind}")
    assert recipe.published is not None
    assert recipe.published.scores == {"bits_per_character": published}
    assert (recipe.optimisation.steps, recipe.stages) == (150_000, ())
    config, _ = model_of(recipe)
    attention = [config.layer_attention(layer) for layer in range(12)]
    assert (attention[0].left_tokens, attention[-1].left_tokens) == (first, last)
    assert mean(each.left_tokens for each in attention) == pytest.approx(230, abs=1)
    assert (attention[-1].dilations[-1] > 1) is dilated


def test_attention_may_stay_in_float32_under_mixed_precision() -> None:
    """Its sum of products is then that of float32, while the feed-forward layers stay in bfloat16."""
    torch.manual_seed(0)
    from longspan.attention import LongformerConfig, Tokens

    attention = LongformerConfig(left_tokens=3).build(width=8, heads=2, causal=True)
    sizes = {"inner": 8, "activation_function": "gelu", "eps": 1e-5, "dropout": 0.0, "activation_dropout": 0.0}
    block, hidden = Block(attention, pre=True, **sizes), torch.randn(1, 9, 8)
    seen: list[torch.dtype] = []
    hooks = [attention.query, attention.output, block.feed_forward.up]
    for layer in hooks:
        layer.register_forward_hook(lambda module, given, output: seen.append(output.dtype))
    exact = block(hidden, Tokens())
    seen.clear()
    with torch.autocast("cpu", torch.bfloat16):
        rough = block(hidden, Tokens())
        block.float32_attention = True
        block.feed_forward.register_forward_hook(lambda module, given, output: torch.zeros_like(output))
        precise = block(hidden, Tokens())
    half, single = torch.bfloat16, torch.float32
    assert seen == [half, half, half, single, single, half]
    attended = hidden + attention(block.attention_norm(hidden), Tokens())
    torch.testing.assert_close(precise.float(), attended)
    assert not torch.equal(rough.float(), exact)
