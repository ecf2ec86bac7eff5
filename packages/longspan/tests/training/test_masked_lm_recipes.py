"""The recipes for masked words: the thesis's settings, three small ones that differ in one thing, a run of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan.attention import attention_config
from longspan.attention.layers import layer_specs
from longspan.cli import main
from longspan.models import LongspanForMaskedLM
from longspan.settings import to_plain
from longspan.training.recipe import Recipe
from longspan.training.recipe_file import load_recipe

SMALL = ("window", "poolingformer", "fusion")


def recipe_of(name: str, *, smoke: bool = False) -> Recipe:
    return load_recipe(name, smoke=smoke)


@pytest.mark.parametrize("kind", ["poolingformer", "fusion"])
def test_the_settings_are_those_of_the_thesis(kind: str) -> None:
    recipe = recipe_of(f"{kind}-mlm")
    task, settings, new = recipe.task, recipe.optimisation, recipe.model.new
    assert (task.name, task.max_tokens, task.mask_probability, task.cross_documents) == ("masked_lm", 4096, 0.15, False)
    assert (settings.batch_size, settings.learning_rate, settings.epochs) == (128, 1e-4, 4)
    assert new is not None
    assert [new[key] for key in ("num_hidden_layers", "hidden_size", "num_attention_heads")] == [24, 1024, 16]
    layers = [attention_config(spec) for spec in layer_specs(recipe.model.attention, 24)]
    assert [layer for layer, spec in enumerate(layers) if spec.lengthening().first_level != spec] == [
        15,
        16,
        17,
        18,
        19,
        20,
    ]
    assert {spec.left_tokens for spec in layers} == {128}
    attention = layers[15].to_dict()
    assert attention["mechanism"] == kind
    sides = ("left_tokens", "right_tokens", "pooled_left_tokens", "pooled_right_tokens", "kernel", "stride")
    assert [attention[name] for name in sides] == [128, 128, 512, 512, 5, 4]


def test_the_small_ones_differ_in_attention_and_positions_alone() -> None:
    plain = []
    for kind in SMALL:
        data = to_plain(recipe_of(f"small-mlm-{kind}"))
        for key in ("name", "about"):
            del data[key]
        del data["model"]["attention"]
        for key in ("position_embedding", "scale_embedding", "sinusoids"):
            data["model"]["new"].pop(key, None)
        plain.append(data)
    assert plain[0] == plain[1] == plain[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["poolingformer-mlm", "fusion-mlm", *(f"small-mlm-{kind}" for kind in SMALL)])
def test_smoke(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert main(["train", name, "--smoke", "--output", str(folder)]) == 0
    assert "best checkpoint: step" in capsys.readouterr().out
    model = LongspanForMaskedLM.from_pretrained(folder)
    kind = name.removeprefix("small-mlm-").removesuffix("-mlm")
    layers = [model.config.layer_attention(layer) for layer in range(model.config.num_hidden_layers)]
    half = len(layers) // 2
    assert len(layers) == (2 if name.startswith("small") else 4)
    expected = {
        "window": ["longformer"] * 2 * half,
        "poolingformer": ["longformer"] * half + ["poolingformer"] * half,
        "fusion": ["fusion"] * 2 * half,
    }
    assert [layer.mechanism for layer in layers] == expected[kind]
    if kind == "fusion":
        assert [getattr(layer, "two_level", None) for layer in layers] == [False] * half + [True] * half
