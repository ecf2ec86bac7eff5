"""The recipes of this repository run with `--smoke`, from a random checkpoint to a trained, saved model."""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan.cli import main
from longspan.data.summaries.rows import synthetic_rows
from longspan.tasks.summaries.base import texts_of
from longspan.training.models import published_model, write_random
from longspan.training.recipe_file import load_recipe, read_recipe
from longspan.training.shipped import shipped_recipes
from longspan.training.tokenizers import train_tokenizer

RECIPES = shipped_recipes()
PLAIN = {name: read_recipe(path) for name, path in RECIPES.items()}
PUBLISHED = [
    name
    for name, recipe in PLAIN.items()
    if (recipe["model"].get("from") or "runs/").partition("/")[0] != "runs"
    and recipe["task"]["name"] == "summarization"
]


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random checkpoint, as `--smoke` makes one."""
    tokenizer = train_tokenizer(texts_of(synthetic_rows(2, seed=0)), 400)
    return write_random("random-bart", tmp_path_factory.mktemp("bart") / "bart", tokenizer, seed=0)


@pytest.mark.variant
@pytest.mark.parametrize("name", PUBLISHED)
def test_every_model_can_be_built(name: str, bart: Path) -> None:
    recipe = load_recipe(RECIPES[name], smoke=True)
    model = published_model(recipe.task, recipe.model, bart)
    layers = [model.config.layer_attention(layer) for layer in range(4)]
    assert model.config.max_position_embeddings == 1024
    names = ["longformer"] * 4
    if recipe.model.attention["mechanism"] == "poolingformer":
        names[2:] = ["poolingformer"] * 2
        assert layers[3].pooling == recipe.model.attention["pooling"]
    assert [layer.mechanism for layer in layers] == names
    assert {layer.left_tokens for layer in layers} == {recipe.model.attention["left_tokens"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["poolingformer-arxiv-16k", "led-arxiv-4k", "transformer-xl-wikitext103-large"])
def test_smoke(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(RECIPES[name]), "--smoke", "--output", str(tmp_path / "run")]) == 0
    assert "best checkpoint: step" in capsys.readouterr().out
    assert (tmp_path / "run" / "model.safetensors").is_file()
