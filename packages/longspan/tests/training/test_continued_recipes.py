"""The recipes that go on pre-training a lengthened RoBERTa: the paper's settings, runs from a published folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import RobertaForMaskedLM

from closeness import check_outputs
from longspan.checkpoints import from_transformers, lengthen
from longspan.checkpoints.loading import load_model
from longspan.errors import InputError
from longspan.training.recipe_file import load_recipe
from longspan.training.shipped import shipped_recipes
from longspan.training.train import train

ROWS = {"longformer-mlm-base": 1.705, "longformer-mlm-large": 1.358, "longformer-mlm-base-frozen": 1.850}


@pytest.mark.parametrize("name", ROWS)
def test_the_settings_are_those_of_the_paper(name: str) -> None:
    recipe = load_recipe(shipped_recipes()[name])
    task, settings, model = recipe.task, recipe.optimisation, recipe.model
    assert (task.max_tokens, model.max_tokens, task.mask_probability) == (4096, 4096, 0.15)
    assert model.attention == {"mechanism": "longformer", "left_tokens": 256, "right_tokens": 256}
    assert (settings.steps, settings.batch_size, settings.learning_rate) == (65_000, 64, 3e-5)
    assert (settings.warmup_steps, settings.schedule, settings.schedule_options["power"]) == (500, "polynomial", 3)
    assert settings.train == ("new_positions" if "frozen" in name else "all")
    assert recipe.published is not None
    assert recipe.published.scores == {"bits_per_masked_token": ROWS[name]}


@pytest.mark.variant
def test_frozen_training_keeps_short_inputs_and_all_other_weights_bit_for_bit(tmp_path: Path) -> None:
    """From a folder of transformers' own format, with weight decay, read back from disk."""
    changes = ["optimisation.learning_rate=0.05", "optimisation.weight_decay=0.5", "optimisation.warmup_steps=0"]
    recipe = load_recipe(shipped_recipes()["longformer-mlm-small-frozen"], changes, smoke=True)
    train(recipe, tmp_path / "run")
    source = RobertaForMaskedLM.from_pretrained(tmp_path / "run" / "random-roberta").eval()
    before, after = lengthen(source, recipe.model.attention, 256), load_model(tmp_path / "run")
    short = torch.randint(5, source.config.vocab_size, (3, 64))
    with torch.no_grad():
        check_outputs(after(short).logits, before(short).logits)
    ours, theirs, name = after.state_dict(), before.state_dict(), "model.encoder.embeddings.position.weight"
    assert [key for key in theirs if not torch.equal(ours[key], theirs[key])] == [name]
    moved = ours[name] != theirs[name]
    assert moved.any(1).tolist() == [False] * 66 + [True] * (after.config.max_position_embeddings - 64)


def test_all_weights_train_from_random_positions_too(tmp_path: Path) -> None:
    changes = ["model.new_positions=random", "optimisation.steps=2"]
    recipe = load_recipe(shipped_recipes()["longformer-mlm-small"], changes, smoke=True)
    train(recipe, tmp_path / "run")
    before = from_transformers(tmp_path / "run" / "random-roberta").state_dict()
    after = load_model(tmp_path / "run").state_dict()
    assert {name for name in before if before[name].equal(after[name])} <= {"model.encoder.layers.0.attention.key.bias"}


def test_nothing_to_train_is_refused(tmp_path: Path) -> None:
    changes = ["model.max_tokens=64", "task.max_tokens=64"]
    recipe = load_recipe(shipped_recipes()["longformer-mlm-small-frozen"], changes, smoke=True)
    with pytest.raises(InputError, match="leaves no new rows"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
