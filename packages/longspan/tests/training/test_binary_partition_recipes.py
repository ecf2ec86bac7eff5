"""The recipes of BP-Transformer: sizes of the authors' configuration, and how many weights that is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from longspan.errors import InputError
from longspan.models.work import Choice
from longspan.planning.memory import memory_of
from longspan.planning.source import open_planned
from longspan.training.recipe_file import load_recipe
from longspan.training.train import _configure


@pytest.mark.parametrize(
    ("name", "score"), [("bp-enwik8", {"bits_per_byte": 1.02}), ("bp-text8", {"bits_per_character": 1.11})]
)
def test_the_published_rows(name: str, score: dict[str, float]) -> None:
    recipe = load_recipe(name)
    assert recipe.published.scores == score
    assert (recipe.task.max_tokens, recipe.optimisation.learning_rate) == (8192, 5.8e-4)
    planned = open_planned(name)
    with torch.device("meta"):
        model = planned.model_class(planned.config)
    # Embeddings, tied; 12 layers of four projections and a table of 7 · 129 labels, a feed-forward layer, two norms.
    layer = 4 * 512**2 + 7 * 129 * 64 + (2 * 512 * 2048 + 2048 + 512) + 4 * 512
    entries = planned.config.vocab_size
    assert sum(weight.numel() for weight in model.parameters()) == entries * 512 + 2 * 512 + 12 * layer
    short, long = (
        memory_of(planned, Choice(tokens=tokens, train=True)).activations for tokens in (planned.tokens // 2, 8192)
    )
    assert long == pytest.approx(2 * short, rel=0.01)


def test_what_does_not_reach_its_layers_is_refused() -> None:
    recipe, planned = load_recipe("bp-text8"), open_planned("bp-text8")
    recipe = replace(recipe, optimisation=replace(recipe.optimisation, float32_attention=True))
    with torch.device("meta"):
        model = planned.model_class(planned.config)
    with pytest.raises(
        InputError, match="float32_attention is true, but the layers of stack 'binary_partition' are its"
    ):
        _configure(model, recipe, recipe.task, None)
