"""LoRA by PEFT: what it trains, what it saves, and that a killed run resumes to the same adapter."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from longspan.checkpoints.loading import load_model
from longspan.cli import main
from longspan.errors import InputError
from longspan.training.adapters import add_adapters
from longspan.training.models import published_model
from longspan.training.optimisation import Lora
from longspan.training.recipe import Recipe
from longspan.training.recipe_file import load_recipe
from longspan.training.train import train

# PEFT asks by a name that transformers is giving up.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

RECIPE = """
name: adapted
task: {name: summarization, max_source_tokens: 256, max_target_tokens: 32}
data: {train: synthetic, validation: synthetic, train_rows: 8, validation_rows: 2}
model: {from: random-bart, max_tokens: 256, attention: longformer}
optimisation:
  steps: 4
  batch_size: 2
  learning_rate: 1.0e-2
  log_every: 1
  evaluate_every: 2
  keep_checkpoints: 9
  report_to: none
  lora: {rank: 4, alpha: 8, dropout: 0.1, targets: [query, value]}
generation: {beams: 1, max_tokens: 16}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    (tmp_path / "adapted.yaml").write_text(RECIPE)
    return load_recipe(tmp_path / "adapted.yaml")


def _loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=ids, labels=ids).logits


@pytest.mark.slow
def test_the_adapter_trains_alone_and_both_ways_to_load_it_agree(recipe: Recipe, tmp_path: Path) -> None:
    from peft import PeftModel

    folder = train(recipe, tmp_path / "run").folder
    assert not (folder / "tensorboard").exists()
    base = published_model(recipe.task, recipe.model, folder / "random-bart")
    before = {name: weight.clone() for name, weight in base.state_dict().items()}
    merged, adapter = load_model(folder), load_file(folder / "adapter" / "adapter_model.safetensors")

    # W + alpha / rank · B A, by hand, in the layers that were asked for, and nothing else changed.
    changed = {name for name, weight in merged.state_dict().items() if not torch.equal(weight, before[name])}
    assert changed
    assert {name.split(".")[-2] for name in changed} == {"query", "value"}
    for name in changed:
        down, up = (adapter[f"base_model.model.{name.removesuffix('weight')}lora_{part}.weight"] for part in "AB")
        assert torch.allclose(merged.state_dict()[name], before[name] + 8 / 4 * up @ down, atol=1e-7)

    ids = torch.arange(10, 40)[None]
    loaded = PeftModel.from_pretrained(base, str(folder / "adapter"))
    assert torch.allclose(_loss(loaded, ids), _loss(merged, ids), atol=1e-5)
    assert main(["evaluate", str(folder), "--data", "synthetic", "--limit", "1"]) == 0

    assert "LoRA of rank 4, seed" in (folder / "README.md").read_text()
    assert "LoRA of rank 4, seed" not in (folder / "adapter/README.md").read_text()  # which is PEFT's


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_adapter(recipe: Recipe, tmp_path: Path) -> None:
    whole = train(recipe, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "checkpoints" / "checkpoint-4")
    shutil.rmtree(tmp_path / "killed" / "adapter")
    for name in ("metrics.json", "model.safetensors"):
        (tmp_path / "killed" / name).unlink()
    resumed = train(recipe, tmp_path / "killed", resume=True)
    assert [entry.get("loss") for entry in resumed.history] == [entry.get("loss") for entry in whole.history]
    for name in ("adapter/adapter_model.safetensors", "model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes(), name
    settings = json.loads((tmp_path / "killed/adapter/adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], settings["task_type"]) == (4, 8, None)


def test_a_new_head_trains_whole() -> None:
    from longspan.models import LongspanConfig, LongspanForSequenceClassification

    model = LongspanForSequenceClassification(
        LongspanConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    )
    head = next(name for name, _ in model.named_parameters() if not name.startswith("model."))
    model.new_weights = (head,)
    trained = add_adapters(model, Lora(rank=2))
    left = {name for name, weight in trained.named_parameters() if weight.requires_grad}
    assert any(f"{head.rpartition('.')[0]}.modules_to_save" in name for name in left)
    assert any(".query.lora_A" in name for name in left)
    assert all("lora_" in name or "modules_to_save" in name for name in left)


def test_mistakes(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"targets has 'q_proj', which no module of the model is .*query"):
        train(load_recipe(tmp_path / "adapted.yaml", ["optimisation.lora.targets=[q_proj]"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    changes = ["model={new: {decoder_layers: 1}}", "tokenizer.train=400"]
    with pytest.raises(InputError, match=r"adapts weights that are trained already; give model\.from"):
        load_recipe(tmp_path / "adapted.yaml", changes)
    with pytest.raises(InputError, match=r"report_to is 'wandb', which is not installed: .*pip install wandb"):
        load_recipe(tmp_path / "adapted.yaml", ["optimisation.report_to=wandb"])


@pytest.mark.slow
@pytest.mark.parametrize("first", ["longspan", "peft"])
def test_peft_knows_what_to_adapt_without_being_told(first: str) -> None:
    """In every class, whichever of the two was imported first: queries and values, everywhere."""
    code = f"""
import warnings
import {first}
import longspan, peft
from longspan import models
from longspan.models.heads import HEADS
warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing")
sizes = dict(vocab_size=61, hidden_size=24, num_hidden_layers=1, num_attention_heads=3, intermediate_size=40)
for name in dict.fromkeys([*models.__all__, *(spec.model for spec in HEADS.values())]):
    if not name.startswith("Longspan") or name in ("LongspanConfig", "LongspanPreTrainedModel"):
        continue
    kind = getattr(models, name)
    layers = 1 if name == "LongspanForConditionalGeneration" else 0
    model = kind(longspan.LongspanConfig(**sizes, attention="full", decoder_layers=layers))
    for settings in (peft.LoraConfig(), peft.AdaLoraConfig(total_step=9)):
        adapted = peft.get_peft_model(kind(model.config), settings)
        trained = [key for key, weight in adapted.named_parameters() if weight.requires_grad]
        assert trained, name
        assert all(".query." in key or ".value." in key for key in trained), name
    print(name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"LongspanForCausalLM", "LongspanForCoreference"} <= set(done.stdout.split())
