"""The task of guessing hidden tokens, from a corpus to bits, and a training that can be interrupted."""

from __future__ import annotations

import json
import math
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from installed import needs_documents
from longspan.data.summaries.rows import synthetic_rows
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForMaskedLM
from longspan.tasks.language_modelling.masked_lm import MaskedLM
from longspan.training.checkpoints import complete_checkpoints
from longspan.training.evaluate import evaluate
from longspan.training.recipe_file import load_recipe
from longspan.training.tokenizers import train_tokenizer
from longspan.training.train import train

RECIPE = """
name: tiny
task: {name: masked_lm, max_tokens: 61, global_tokens: first}
data: {train: DATA, validation: DATA, train_rows: 2, validation_rows: 1}
model:
  new: {hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, intermediate_size: 64, dropout: 0.1}
  attention: {mechanism: poolingformer, left_tokens: 7, right_tokens: 7, pooled_left_tokens: 24,
    pooled_right_tokens: 24, init: normal}
  max_tokens: 61
tokenizer: {train: 300}
optimisation: {steps: 12, batch_size: 4, micro_batch_size: 2, learning_rate: 3e-3, log_every: 1, evaluate_every: 2,
  keep_checkpoints: 10}
"""
TEXTS = [row.source for row in synthetic_rows(3, seed=3, sentences=20)]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe on two short files; an epoch has a handful of steps."""
    data = tmp_path / "corpus.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    (tmp_path / "tiny.yaml").write_text(RECIPE.replace("DATA", str(data)))
    return tmp_path / "tiny.yaml"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(TEXTS, 300)


def _model(tokenizer: Any, **options: Any) -> LongspanForMaskedLM:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return LongspanForMaskedLM(LongspanConfig(vocab_size=len(tokenizer), **sizes, **options))


def _dataset(task: MaskedLM, tokenizer: Any, folder: Path, **options: Any) -> Any:
    rows = task.read("synthetic", "train", 3)
    return task.dataset(rows, tokenizer, folder=folder, **{"training": False, "seed": 1, **options})


def test_chunks_have_the_tokenizers_special_tokens(tokenizer: Any, tmp_path: Path) -> None:
    task = MaskedLM(max_tokens=61, global_tokens="first")
    data = _dataset(task, tokenizer, tmp_path)
    batch = task.collator(tokenizer)([data[index] for index in range(len(data))])
    lengths = batch["attention_mask"].sum(1)
    assert batch["input_ids"].shape == (len(data), 61)
    assert (batch["input_ids"][:, 0] == tokenizer.bos_token_id).all()
    ends = batch["input_ids"][torch.arange(len(data)), lengths - 1]
    assert (ends == tokenizer.eos_token_id).all()
    assert (batch["labels"][~batch["attention_mask"]] == -100).all()
    assert (batch["input_ids"][~batch["attention_mask"]] == tokenizer.pad_token_id).all()
    assert batch["global_attention_mask"].sum(1).tolist() == [1] * len(data)
    # What was hidden, put back, is the text.
    whole = torch.where(batch["labels"] >= 0, batch["labels"], batch["input_ids"])
    words = tokenizer(synthetic_rows(3, seed=0)[0].source)["input_ids"]
    assert whole[0, :60].tolist() == words[:60]


def test_the_bits_are_those_of_each_hidden_token(tokenizer: Any, tmp_path: Path) -> None:
    """Against one chunk at a time, the whole vocabulary at every place; and in any batch."""
    task = MaskedLM(max_tokens=61)
    data = _dataset(task, tokenizer, tmp_path)
    model = _model(tokenizer).eval()
    rows = task.read("synthetic", "train", 3)
    outcome = task.evaluate(model, tokenizer, rows, batch_size=3)
    nats = tokens = right = 0.0
    for index in range(len(data)):
        item = data[index]
        logits = model(torch.from_numpy(item["input_ids"])[None]).logits[0].detach()
        labels = torch.from_numpy(item["labels"])
        nats += float(cross_entropy(logits, labels, reduction="sum"))
        right += float((logits.argmax(-1) == labels).sum())
        tokens += float((labels >= 0).sum())
    assert outcome.scores["bits_per_masked_token"] == pytest.approx(nats / math.log(2) / tokens, rel=1e-5)
    assert outcome.scores["perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-5)
    assert outcome.scores["accuracy"] == pytest.approx(100 * right / tokens)
    assert [sum(line[name] for line in outcome.lines) for name in ("masked", "correct")] == [tokens, right]
    alone = task.evaluate(model, tokenizer, rows, batch_size=1)
    assert alone.scores == pytest.approx(outcome.scores, rel=1e-5)


def test_the_loss_at_hidden_tokens_alone_is_the_loss_and_so_are_its_gradients(tokenizer: Any, tmp_path: Path) -> None:
    task = MaskedLM(max_tokens=61)
    data = _dataset(task, tokenizer, tmp_path, training=True)
    batch = task.collator(tokenizer)([data[0], data[len(data) - 1]])
    model = _model(tokenizer, dropout=0.0).double()
    losses, gradients = [], []
    for only in (False, None):  # None: in training, only hidden tokens
        model.zero_grad()
        output = model(**batch, only_masked=only)
        output.loss.backward()
        losses.append(output.loss.detach())
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    assert output.logits.shape == ((batch["labels"] >= 0).sum(), len(tokenizer))
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-12, atol=0)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert model.eval()(**batch).logits.shape == (2, 61, len(tokenizer))
    with pytest.raises(InputError, match="only_masked=True needs labels"):
        model(batch["input_ids"], only_masked=True)


@pytest.mark.variant
def test_training_writes_the_bits_and_uses_the_tokens_again(recipe: Path, tmp_path: Path) -> None:
    result = train(load_recipe(recipe, ["optimisation.steps=4"]), tmp_path / "run")
    assert result.best["eval_bits_per_masked_token"] == pytest.approx(result.best["eval_loss"] / math.log(2))
    assert not [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]
    scored = evaluate(tmp_path / "run", str(tmp_path / "corpus.jsonl"), limit=1, batch_size=2)
    # The same documents, holes and model as the last validation, whose batches had two chunks as well.
    assert scored.scores["bits_per_masked_token"] == pytest.approx(result.best["eval_bits_per_masked_token"], rel=1e-5)
    assert scored.report["task"] == "masked_lm"
    (tmp_path / "run" / "recipe.yaml").unlink()  # as a published checkpoint
    assert evaluate(tmp_path / "run", str(tmp_path / "corpus.jsonl"), limit=1).scores == pytest.approx(
        scored.scores, rel=1e-5
    )


@pytest.mark.variant
def test_an_interrupted_run_resumes_to_the_same_losses(recipe: Path, tmp_path: Path) -> None:
    """In the middle of an epoch and across its end: masks are those of the epoch, whatever happened."""
    settings = load_recipe(recipe)
    train(settings, tmp_path / "whole")
    copytree(tmp_path / "whole", tmp_path / "parts")
    written = (tmp_path / "parts" / "tokens-train" / "tokens.bin").stat().st_mtime_ns
    (tmp_path / "parts" / "metrics.json").unlink()
    for checkpoint in complete_checkpoints(tmp_path / "parts" / "checkpoints")[1:]:
        (checkpoint / "files.json").unlink()
    train(settings, tmp_path / "parts", resume=True)
    assert (tmp_path / "parts" / "tokens-train" / "tokens.bin").stat().st_mtime_ns == written
    curves = [
        [(entry["step"], entry.get("loss"), entry.get("eval_loss"), entry.get("grad_norm")) for entry in history]
        for history in (
            [
                entry
                for entry in json.loads((folder / "metrics.json").read_text())["history"]
                if "train_loss" not in entry
            ]
            for folder in (tmp_path / "whole", tmp_path / "parts")
        )
    ]
    assert curves[0] == curves[1]
    steps_of_an_epoch = json.loads((tmp_path / "whole" / "tokens-train" / "index.json").read_text())["values"] / 59 / 4
    assert 2 < steps_of_an_epoch < 12  # the interruption lies within the first epoch, and others follow


def test_a_run_whose_corpus_has_changed_is_refused_and_kept(recipe: Path, tmp_path: Path) -> None:
    folder, settings = tmp_path / "run", load_recipe(recipe, ["optimisation.steps=2"])
    train(settings, folder)
    for path in (folder / "metrics.json", *complete_checkpoints(folder / "checkpoints")):
        path.rename(tmp_path / path.name)
    (folder / "checkpoints").rmdir()  # killed before the first checkpoint
    data = tmp_path / "corpus.jsonl"
    whole = data.read_text()
    data.write_text(whole + whole)
    with pytest.raises(InputError, match="put back what has changed since the run began"):
        train(settings, folder, resume=True)
    assert (folder / "tokens-train" / "tokens.bin").is_file()
    data.write_text(whole)
    assert train(settings, folder, resume=True).folder == folder.resolve()


@needs_documents
def test_an_encoder_that_was_pre_trained_goes_below_another_head(
    recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(load_recipe(recipe, ["optimisation.steps=1", "optimisation.evaluate_every=1"]), tmp_path / "run")
    changes = [
        "task={name: extraction}",
        "data={train: synthetic, validation: synthetic, train_rows: 2, validation_rows: 1}",
        "model={from: %s}" % (tmp_path / "run"),
        "tokenizer={}",
        "task.max_source_tokens=61",
        "optimisation={steps: 1, learning_rate: 1.0e-30, log_every: 1, evaluate_every: 1, batch_size: 1}",
    ]
    train(load_recipe(recipe, changes), tmp_path / "next")
    from safetensors.torch import load_file

    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("run", "next"))
    encoder = [name for name in after if name.startswith("model.encoder.")]
    assert len(encoder) > 20
    assert all(torch.allclose(before[name], after[name], rtol=0, atol=1e-20) for name in encoder)
    assert "these weights are new and must be trained: scorer" in caplog.text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("task.mask_probability=0", "task.mask_probability is 0.0; it must be above 0"),
        ("task.mask_probability=1.5", "task.mask_probability is 1.5; it must be at most 1"),
        ("task.mask_share=0.95", "are more than 1 together"),
        ("task.random_share=-0.1", "task.random_share is -0.1; it must be at least 0"),
        ("task.max_tokens=2", "task.max_tokens is 2; it must be at least 3"),
        ("task.max_tokens=62", "task.max_tokens is 62 but the model has positions for 61 tokens"),
        ("task.text_unit=page", "text_unit is 'page'; choose"),
        ("task.global_tokens=all", "task.global_tokens is 'all'; choose 'first' or 'none'"),
        ("task.text_field=story", "has no field 'story'; it has text"),
        ("data.train=nowhere.txt", "'nowhere.txt' is no file, directory or pattern"),
        ("data.on_error=ignore", "data.on_error is 'ignore'; choose 'raise' or 'skip'"),
    ],
)
def test_mistakes_leave_nothing_behind(recipe: Path, tmp_path: Path, change: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        train(load_recipe(recipe, [change]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_empty_corpus_and_a_tokenizer_without_mask(recipe: Path, tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    for part, words in (("train", "there is no text to train a tokenizer on"), ("validation", "holds no text; name")):
        with pytest.raises(InputError, match=words):
            train(load_recipe(recipe, [f"data.{part}={tmp_path / 'empty.txt'}"]), tmp_path / "run")
        assert not (tmp_path / "run").exists()
    blind = train_tokenizer(TEXTS, 300)
    blind.mask_token = None
    with pytest.raises(InputError, match="has no mask_token"):
        _dataset(MaskedLM(), blind, tmp_path)
