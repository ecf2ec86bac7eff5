"""`longspan plan`: a table, JSON, and one sentence for mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import BertConfig, BertForMaskedLM

from longspan.cli import main
from longspan.errors import InputError
from longspan.models import LongspanConfig
from longspan.planning.source import open_planned
from longspan.tasks import build_task
from longspan.training.shipped import read_recipe, shipped_recipes


def config(**changes) -> LongspanConfig:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return LongspanConfig(**{"vocab_size": 50, "position_embedding": "sinusoidal", **sizes, **changes})


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config().save_pretrained(tmp_path)
    arguments = ["plan", str(tmp_path), "--tokens", "4096", "--no-time", "--mechanism", "full"]
    assert main([*arguments, "--device-memory", "1"]) == 0
    out = capsys.readouterr().out
    assert "full, bfloat16" in out
    assert "fits into 1 GiB" in out
    assert main([*arguments, "--train", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["choices"]) == 8
    assert found["choices"][0]["peak"] > found["choices"][0]["activations"] > 0


def test_a_device_that_need_not_be_here(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config(hidden_size=64).save_pretrained(tmp_path)
    plan = ["plan", str(tmp_path), "--tokens", "16384", "--mechanism", "full", "--json"]
    assert main([*plan, "--device", "l4"]) == 0
    slow = json.loads(capsys.readouterr().out)
    assert main([*plan, "--device", "h100"]) == 0
    fast = json.loads(capsys.readouterr().out)
    assert (slow["device_memory"], fast["device_memory"]) == (24 * 10**9, 80 * 10**9)
    for one, other in zip(slow["choices"], fast["choices"], strict=True):
        assert one["seconds"] > other["seconds"] > 1e-4
    assert "predicted of one NVIDIA H100 SXM5 80 GB" in fast["advice"][-1]
    assert main([*plan[:-1], "--train", "--device", "l4", "--no-time", "--device-memory", "0.001"]) == 0
    out = capsys.readouterr().out
    assert "of 0.001 GiB" in out  # and what would fit


def test_recipes_and_mistakes(refused, tmp_path: Path) -> None:
    assert open_planned("small-mlm-window", 2048).config.hidden_size == 128
    assert "no recipe of the package" in refused("plan", "small-mlm-windw")
    assert "which is no folder here" in refused("plan", "longformer-imdb")
    assert "choose one of h100, h200, a100, l4, rtx4090" in refused("plan", "small-mlm-window", "--device", "tpu")
    assert "--device-memory is -1.0" in refused("plan", "small-mlm-window", "--device-memory", "-1")
    assert "--mechanism is 'nothing'" in refused("plan", "small-mlm-window", "--mechanism", "nothing")
    assert "has no config.json, so it holds no model" in refused("plan", str(tmp_path))
    config(position_embedding="learned", max_position_embeddings=512).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"--tokens is 1,024 .* positions for 512"):
        open_planned(str(tmp_path), 1024)
    assert "'a=1' changes a recipe, and" in refused("plan", str(tmp_path), "a=1")
    changed = ["model.max_tokens=4096", "task.max_tokens=3000", "model.new.position_embedding=learned"]
    assert "or add model.max_tokens=5000" in refused("plan", "small-mlm-window", *changed, "--tokens", "5000")
    planned = open_planned("small-mlm-window", changes=changed)
    assert (planned.tokens, planned.config.max_position_embeddings) == (3000, 4096)


@pytest.mark.slow
def test_every_recipe_that_needs_no_other_model_is_planned_at_its_own_length(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = {name: read_recipe(file) for name, file in shipped_recipes().items()}
    new = [name for name, recipe in plain.items() if recipe["model"].get("new")]
    assert len(new) > 35
    for name in new:
        capsys.readouterr()
        assert main(["plan", name, "--train", "--no-time", "--json"]) == 0, name
        lengths = {choice["tokens"] for choice in json.loads(capsys.readouterr().out)["choices"]}
        task = plain[name]["task"]
        said = task.get("max_source_tokens", task.get("max_tokens"))
        assert lengths == {said or build_task(task).input_tokens or 16_384}, name


def test_what_a_model_is_planned_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config(position_embedding="learned", max_position_embeddings=512).save_pretrained(tmp_path / "short")
    config().save_pretrained(tmp_path / "endless")
    assert main(["plan", str(tmp_path / "short"), "--no-time"]) == 0
    assert capsys.readouterr().out.startswith("1 row of 512 tokens\n")
    assert main(["plan", str(tmp_path / "endless"), "--no-time", "--batch", "3"]) == 0
    assert capsys.readouterr().out.startswith("3 rows of 16,384 tokens\n")


def test_published_models_and_recipes_that_make_them_longer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    source, recipe = tmp_path / "bert", tmp_path / "longer.yaml"
    BertForMaskedLM(BertConfig(vocab_size=50, max_position_embeddings=40, **sizes)).save_pretrained(source)
    assert open_planned(str(source), 40).model_class.__name__ == "LongspanForMaskedLM"
    assert main(["plan", str(source), "--tokens", "40", "--no-time", "--train"]) == 0
    model = {"from": str(source), "attention": {"mechanism": "longformer", "left_tokens": 8}, "max_tokens": 64}
    data = {"train": ["synthetic"], "validation": ["synthetic"]}
    given = {"name": "longer", "task": {"name": "masked_lm", "max_tokens": 64}, "data": data, "model": model}
    recipe.write_text(json.dumps({**given, "optimisation": {"steps": 1}}), encoding="utf-8")
    found = open_planned(str(recipe), 64).config
    assert (found.max_position_embeddings, found.layer_attention(0).left_tokens) == (64, 8)


def test_a_recipe_is_planned_whatever_this_machine_has(capsys: pytest.CaptureFixture[str]) -> None:
    """Sixteen billion weights, whose training takes 258 GB: 4 GB in each of 64 processes of another machine."""
    sizes = ("hidden_size=16384", "intermediate_size=65536", "num_hidden_layers=4", "num_attention_heads=128")
    plan = ["plan", "small-mlm-window", *(f"model.new.{size}" for size in sizes), "--train", "--no-time"]
    assert main([*plan, "--device", "h100", "--processes", "64", "--shard", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["choices"][0]
    weights = 4 * 15 * 16384**2  # four projections, three of global tokens, a feed-forward layer four times as wide
    assert 1 < first["weights"] * 64 / 4 / weights < 1.1
