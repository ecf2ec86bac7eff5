"""The recipes for dialogues: the paper's settings, a run of the small ones, pre-training and what goes on from it."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree, rmtree

import pytest

from longspan.attention.layers import spread
from longspan.attention.support import supports
from longspan.checkpoints.loading import load_tokenizer
from longspan.cli import main
from longspan.models import LongspanConfig, LongspanForPrefixLM
from longspan.training.recipe_file import load_recipe
from longspan.training.train import train
from longspan_papers.dialogue.reading import read_dialogues

TOKENS = {"dialoglm-sparse": 8192, "dialoglm-dense": 5120, "dialogled": 16384}


@pytest.mark.parametrize("name", TOKENS)
def test_pre_training_is_as_published(name: str) -> None:
    recipe = load_recipe(name)
    task, settings = recipe.task, recipe.optimisation
    assert (task.max_source_tokens, task.setting) == (TOKENS[name], "paper")
    assert (settings.steps, settings.warmup_steps, settings.batch_size) == (200_000, 20_000, 64)
    assert (settings.learning_rate, settings.label_smoothing) == (2e-5, 0.1)
    if name != "dialogled":
        assert (task.model_class().__name__, task.pseudo_masks) == ("LongspanForPrefixLM", True)
        task.check_model(LongspanConfig(max_position_embeddings=recipe.model.max_tokens, pseudo_masks=True))
    if name == "dialoglm-sparse":
        assert all(spec["target_attention"] == "full" for spec in spread(recipe.model.attention, 12) if spec)
        layers = spread(recipe.model.attention, 12)
        assert [number for number, spec in enumerate(layers, 1) if spec is None] == [4, 8, 12]  # which stay full


@pytest.mark.parametrize("name", ["ami", "icsi", "qmsum", "tvmegasite"])
def test_decoding_is_as_published(name: str) -> None:
    recipe = load_recipe(f"dialoglm-{name}")
    beams, least = {"tvmegasite": (6, 192), "qmsum": (6, 64)}.get(name, (8, 256))  # dense 6, sparse 8
    decoding = recipe.generation
    assert (decoding.beams, decoding.min_tokens, decoding.length_penalty) == (beams, least, 1.0)
    assert (decoding.no_repeat_ngram, decoding.no_repeat_ignored) == (3, (".",))
    assert recipe.published is not None
    settings = recipe.optimisation
    assert recipe.task.model_class().__name__ == "LongspanForPrefixLM"
    dense = "dialoglm-dense" in recipe.model.source
    long = (*((100_000, 2000) if name == "tvmegasite" else (5000, 500)), 7e-5 if dense else 2e-5)
    assert (settings.steps, settings.warmup_steps, settings.learning_rate, settings.batch_size) == (*long, 64)


def test_the_hybrid_is_pre_trained_and_fine_tuned_with_pseudo_masks(tmp_path: Path) -> None:
    """One layer reads the source by sorted blocks; fine-tuning takes attention and pseudo masks from the folder."""
    first, second = tmp_path / "first", tmp_path / "second"
    changes = ["optimisation.steps=2", "data.train_rows=2", "data.validation_rows=1"]
    train(load_recipe("dialoglm-sparse", changes, smoke=True), first)
    changes += [f"model.from={first}", "model.attention=null", "model.max_tokens=null", "task.pseudo_masks=null"]
    train(load_recipe("dialoglm-ami", changes, smoke=True), second)
    for folder in (first, second):
        model = LongspanForPrefixLM.from_pretrained(folder)
        layers = [model.config.layer_attention(layer) for layer in range(2)]
        assert [layer.mechanism for layer in layers] == ["sinkhorn", "full"]
        assert supports(layers[0], "prefix", causal=True)
        assert model.config.pseudo_masks
        assert model.config.mask_token_id == load_tokenizer(folder).mask_token_id
        assert {"source_query", "source_key", "source_value"} <= {name for name, _ in named_attention(model)}


def named_attention(model: LongspanForPrefixLM) -> list[tuple[str, object]]:
    """The parts of the first layer's attention."""
    return list(model.decoder.layers[0].attention.named_children())


def test_the_authors_files_are_read_as_they_are(tmp_path: Path) -> None:
    """JSON Lines in files that end in .json, with `src` and `tgt`; SummScreen's own for television shows."""
    plain = {"src": "PM: Shall we start?\nUI: Yes, the remote.", "tgt": "They planned a remote. It is small."}
    show = {"Transcript": ["[Scene One]", "Ann: Hi."], "Recap": ["They met."]}
    for name, record, text in (("ami", plain, plain["src"]), ("tvmegasite", show, "[Scene One]\nAnn: Hi.")):
        (tmp_path / name).mkdir()
        for split in ("train", "val", "test"):
            (tmp_path / name / f"{split}.json").write_text(json.dumps(record) + "\n", encoding="utf-8")
        task = load_recipe(f"dialoglm-{name}").task
        (row,) = task.read(str(tmp_path / name), "validation", None)
        assert row.source == text
        assert row.reference.split("\n")[0] in ("They planned a remote.", "They met.")
        (talk,) = read_dialogues(tmp_path / name, "validation")
        assert talk.text == text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dialogue-small", "dialogue-prefix-small"])
def test_stopped_and_resumed_the_weights_are_the_same_to_the_last_bit(name: str, tmp_path: Path) -> None:
    """From the middle of the second epoch, whose noise is not that of the first."""
    changes = ["optimisation.steps=6", "optimisation.evaluate_every=2", "optimisation.log_every=2"]
    changes += ["optimisation.batch_size=2", "optimisation.micro_batch_size=2", "optimisation.keep_checkpoints=9"]
    changes += ["data.train_rows=3", "data.validation_rows=1", "task.max_target_tokens=32", "model.new.hidden_size=32"]
    recipe = load_recipe(name, changes, smoke=True)
    whole, parts = train(recipe, tmp_path / "whole").folder, tmp_path / "parts"
    copytree(whole, parts)
    rmtree(parts / "checkpoints/checkpoint-6")
    for lost in ("metrics.json", "model.safetensors"):
        (parts / lost).unlink()
    state = json.loads((parts / "checkpoints/checkpoint-4/trainer_state.json").read_text(encoding="utf-8"))
    assert 1 < state["epoch"] < 2
    train(recipe, parts, resume=True)
    assert (parts / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert json.loads((parts / "metrics.json").read_text())["best_step"] == 6


@pytest.mark.slow
def test_small_ones_run_one_after_the_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert main(["train", "dialogue-small", "--smoke", "--output", str(first)]) == 0
    changes = [f"model.from={first}", "model.max_tokens=null", "task.max_source_tokens=256", "optimisation.steps=2"]
    changes += ["data.train=[synthetic]", "data.validation=[synthetic]", "data.train_rows=2", "data.validation_rows=1"]
    changes += ["optimisation.warmup_steps=0", "optimisation.log_every=1", "optimisation.evaluate_every=1"]
    changes += ["generation.max_tokens=17"]
    assert main(["train", "dialogue-small-qmsum", *changes, "--output", str(second)]) == 0
    settings = json.loads((second / "generation_config.json").read_text(encoding="utf-8"))
    assert settings["no_repeat_ngram_ignored"]
    assert "best checkpoint: step" in capsys.readouterr().out
    # What was trained on queries reads them, and what was not says so.
    talk = tmp_path / "talk.txt"
    talk.write_text("Ann: We ship on Friday.\nBob: The tests are red.\n" * 3, encoding="utf-8")
    asked = ["summarize", str(talk), "--query", "When?", "--max-tokens", "18", "--json", "--model"]
    assert main([*asked, str(second)]) == 0
    (read,) = json.loads(capsys.readouterr().out)
    assert main(["summarize", str(talk), "--max-tokens", "18", "--json", "--model", str(second)]) == 0
    assert read["tokens"] > json.loads(capsys.readouterr().out)[0]["tokens"]
    assert main([*asked, str(first)]) == 2
    assert "reads no query" in capsys.readouterr().err
