"""The model card of a trained model: what the Hub reads of it, what people do, and whose card stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from huggingface_hub import ModelCard

import longspan
from installed import needs_documents
from longspan.checkpoints.loading import load_tokenizer
from longspan.cli import main
from longspan.data.labelled import clean, read_labelled, synthetic_labelled
from longspan.models.card import MARK
from longspan.training.recipe_file import load_recipe
from longspan.training.train import train
from longspan.version import __version__

CLASSES = """
name: sure-words
about: Reviews from scratch.
task: {name: classification, max_tokens: 64, clean: true}
data: {train: reviews.jsonl, validation: synthetic, train_rows: 12, validation_rows: 5}
model:
  new: {hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16, init_std: 0.2}
  max_tokens: 64
tokenizer: {train: 400}
optimisation: {steps: 4, batch_size: 4, learning_rate: 1e-2, log_every: 1, evaluate_every: 2, report_to: none, seed: 3}
"""
TEXT = "Sooooo  it is!!! see http://a.b/c and www.x.org ... all in all it is splendid !!"


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("card")
    rows = [{"text": row.text, "label": row.label} for row in synthetic_labelled(12, seed=1)]
    (folder / "reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "sure.yaml").write_text(CLASSES.replace("reviews.jsonl", str(folder / "reviews.jsonl")))
    assert main(["train", str(folder / "sure.yaml"), "--output", str(folder / "run")]) == 0
    return folder / "run"


def test_the_card_of_a_run(classifier: Path) -> None:
    card, metrics = ModelCard.load(classifier / "README.md"), json.loads((classifier / "metrics.json").read_text())
    data: Any = card.data
    assert data.library_name == "longspan"
    assert data.pipeline_tag == "text-classification"
    scores = {result.metric_type: result for result in data.eval_results}
    assert scores["accuracy"].metric_value == metrics["best"]["eval_accuracy"]
    assert (scores["accuracy"].dataset_name, scores["accuracy"].dataset_split) == ("synthetic", "validation")
    assert data.model_name == "sure-words"
    for line in (
        "- Recipe: `sure-words`: Reviews from scratch.",
        "- Training data: reviews.jsonl, split `train`, at most 12 rows",
        "- Validation data: synthetic, split `validation`, at most 5 rows",
        "- Steps: 4",
        "- Optimisation: adamw, learning rate 0.01 (linear), batches of 4, float32, seed 3",
        f"Scores of the validation data after step {metrics['best_step']}, the best by `loss`:",
        f"| loss | {metrics['best']['eval_loss']:.4g} |",
    ):
        assert line in card.text.splitlines(), line
    assert f"longspan {__version__}, torch" in card.text
    assert f"transformers {transformers.__version__}" in card.text
    assert str(classifier.parent) not in card.content
    assert card.text.count("## How it was trained") == card.text.count("## How to load it") == 1


def test_a_classifier_has_its_accuracy_in_the_history(classifier: Path) -> None:
    history = json.loads((classifier / "metrics.json").read_text())["history"]
    logged = {entry["step"]: entry["eval_accuracy"] for entry in history if "eval_loss" in entry}
    assert list(logged) == [2, 4]
    for step, accuracy in logged.items():
        model = longspan.LongspanForSequenceClassification.from_pretrained(
            classifier / "checkpoints" / f"checkpoint-{step}"
        )
        pipe: Any = transformers.pipeline("text-classification", model, tokenizer=load_tokenizer(classifier))
        rows = read_labelled("synthetic", "validation", limit=5)
        right = sum(pipe(row.text, truncation=True, max_length=64)[0]["label"] == row.label for row in rows)
        assert accuracy == pytest.approx(100 * right / 5)


@needs_documents
def test_transformers_alone_reads_a_text_as_longspan_does(classifier: Path, tmp_path: Path) -> None:
    """What `task.clean` does goes with the tokenizer, to a folder without a recipe, too."""
    model = longspan.LongspanForSequenceClassification.from_pretrained(classifier)
    load_tokenizer(classifier).save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    plain: Any = transformers.pipeline("text-classification", str(tmp_path), top_k=None)
    ours = longspan.classify(TEXT, classifier)
    for text in (TEXT, clean(TEXT)):
        probabilities = {each["label"]: each["score"] for each in plain([text])[0]}
        assert probabilities == pytest.approx(ours.probabilities, abs=1e-5)
    assert longspan.classify(TEXT, tmp_path).probabilities == pytest.approx(ours.probabilities, abs=1e-5)
    assert "The tokenizer in this folder does that itself" in (classifier / "README.md").read_text()


def test_one_that_does_not_prepare_texts_is_said_to_need_it(classifier: Path, tmp_path: Path) -> None:
    """As where the tokenizer of the run is there already and lacks the step."""
    folder = tmp_path / "run"
    recipe = load_recipe(classifier / "recipe.yaml", ["optimisation.steps=2", "task.clean=false"])
    train(recipe, folder)
    assert "prepared" not in (folder / "README.md").read_text()
    cleaning = load_recipe(classifier / "recipe.yaml", ["optimisation.steps=2"])
    (tmp_path / "old").mkdir()
    (folder / "tokenizer").rename(tmp_path / "old/tokenizer")
    (tmp_path / "old/recipe.yaml").write_text((classifier / "recipe.yaml").read_text().replace("steps: 4", "steps: 2"))
    train(cleaning, tmp_path / "old", resume=True)
    assert "does **not** do that" in (tmp_path / "old/README.md").read_text()


def test_a_card_of_somebody_else_stays(classifier: Path, tmp_path: Path) -> None:
    """And a run that goes on writes its own anew."""
    short, longer = (
        load_recipe(classifier / "recipe.yaml", ["optimisation.schedule=constant", f"optimisation.steps={steps}"])
        for steps in (2, 4)
    )
    folder = train(short, tmp_path / "run").folder
    assert MARK in (folder / "README.md").read_text()
    train(longer, folder, resume=True)
    card = (folder / "README.md").read_text()
    assert "- Steps: 4\n" in card
    assert card.count("## How it was trained") == 1
    (folder / "README.md").write_text("mine\n")
    (folder / "metrics.json").unlink()
    train(longer, folder, resume=True)
    assert (folder / "README.md").read_text() == "mine\n"
