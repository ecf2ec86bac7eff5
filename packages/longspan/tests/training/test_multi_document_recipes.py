"""WikiHop's and TriviaQA's recipes: the paper's settings and rows, and a smoke run of each up to an answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import longspan
from longspan.cli import main
from longspan.errors import InputError
from longspan.models import LongspanForCandidateScoring, LongspanForQuestionAnswering
from longspan.training.evaluate import evaluate
from longspan.training.recipe_file import load_recipe
from longspan.training.train import train

STORY = "the fame of karl is old . nobody knows more , but the pond of anna is deep and full of carps ."


@pytest.mark.parametrize(
    ("name", "epochs", "warmup", "scores"),
    [
        ("longformer-wikihop", 15, 200, {"accuracy": 75.0}),
        ("longformer-wikihop-large", 5, 200, {"accuracy_test": 81.9, "accuracy_dev": 77.6}),
        ("longformer-triviaqa", 5, 1000, {"f1": 75.2}),
        ("longformer-triviaqa-large", 5, 1000, {"f1_test": 77.3, "f1_dev": 77.79, "exact_match_dev": 73.08}),
    ],
)
def test_the_settings_are_those_of_the_paper(name: str, epochs: int, warmup: int, scores: dict[str, float]) -> None:
    recipe = load_recipe(name)
    task, settings = recipe.task, recipe.optimisation
    assert (settings.epochs, settings.batch_size, settings.learning_rate) == (epochs, 32, 3e-5)
    assert (settings.schedule, settings.warmup_steps) == ("linear", warmup)
    assert task.max_tokens == 4096
    assert recipe.published is not None
    assert recipe.published.scores == scores
    assert recipe.model.source == f"allenai/longformer-{'large' if 'large' in name else 'base'}-4096"
    if "wikihop" in name:
        assert (task.max_pieces, settings.evaluate_every) == (1 if "large" in name else None, 250)
    else:
        assert (task.max_question_tokens, task.max_words, task.max_answers, task.n_best) == (55, 4096, 64, 20)
        assert (task.loss, task.global_question, task.max_windows) == ("any_span", True, 1)


def smoke(name: str, folder: Path) -> Path:
    assert main(["train", name, "--smoke", "--output", str(folder)]) == 0
    assert main(["evaluate", str(folder), "--data", "synthetic", "--limit", "4"]) == 0
    return folder


@pytest.mark.slow
def test_wikihop_from_the_recipe_to_a_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = smoke("longformer-wikihop", tmp_path / "run")
    assert LongspanForCandidateScoring.from_pretrained(folder).config.global_tokens == "question"
    assert len(json.loads((folder / "evaluation/synthetic-validation-predictions-wikihop.json").read_text())) == 4
    (tmp_path / "a.txt").write_text(STORY)
    (tmp_path / "b.txt").write_text(STORY * 3)
    asked = ["choose", str(tmp_path / "a.txt"), str(tmp_path / "b.txt"), "fame karl", "--model", str(folder)]
    capsys.readouterr()
    assert main([*asked, "-c", "old", "-c", "deep", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pieces"] > 1
    assert sum(found["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    again = longspan.choose([STORY, STORY * 3], "fame karl", ["old", "deep"], folder)
    assert str(again) == found["answer"]
    assert again.probabilities == pytest.approx(found["probabilities"], abs=1e-5)
    assert main([*asked, "-c", "deep"]) == 0
    assert capsys.readouterr().out == "1.00  deep\n"
    for more, message in (
        (["-c", "a", "-c", "a"], "candidate 'a' is given twice"),
        (["-c", " "], "candidate ' ' is blank"),
        ([], "Missing option"),
    ):
        assert main([*asked, *more]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(InputError, match=r"candidates=\[\] gives nothing to choose from"):
        longspan.choose(STORY, "fame karl", [], folder)
    row = {"query": "fame karl", "candidates": ["old", "deep"], "supports": [STORY]}
    (tmp_path / "asked.json").write_text(json.dumps([row]))
    assert main(["evaluate", str(folder), "--data", str(tmp_path / "asked.json")]) == 0
    assert "no scores: the data has no labels\n" in capsys.readouterr().out


@pytest.mark.slow
def test_triviaqa_from_the_recipe_to_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = smoke("longformer-triviaqa", tmp_path / "run")
    assert LongspanForQuestionAnswering.from_pretrained(folder).config.global_tokens == "question"
    (tmp_path / "a.txt").write_text(STORY)
    asked = ["answer", str(tmp_path / "a.txt"), "what is the fame of karl", "--model", str(folder), "--json"]
    capsys.readouterr()
    assert main(asked) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["short"] is None or found["short"]["quote"]["text"] in STORY
    with pytest.raises(InputError, match="is a LongspanForQuestionAnswering, which does not choose among candidates"):
        longspan.choose(STORY, "fame karl", ["old"], folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["longformer-wikihop-large", "longformer-triviaqa-large"])
def test_the_large_ones_smoke(name: str, tmp_path: Path) -> None:
    smoke(name, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.usefixtures("data_folder")
def test_the_official_samples_train_and_are_scored(tmp_path: Path) -> None:
    """Format only: two rows of WikiHop, five questions of TriviaQA over ten pages."""
    for name, data, ids in (
        ("longformer-wikihop", "wikihop-sample", {"WH_dev_0", "WH_dev_1"}),
        ("longformer-triviaqa", "triviaqa-sample", {"tc_33", "tc_40"}),
    ):
        changes = [f"data.train={data}", f"data.validation={data}", "data.train_rows=2", "optimisation.steps=1"]
        changes += ["task.max_tokens=1024", "model.new.num_hidden_layers=1"]
        folder = tmp_path / name
        recipe = load_recipe(name, changes, smoke=True)
        train(recipe, folder)
        result = evaluate(folder, data)
        assert {line["id"] for line in result.lines} == ids
        assert json.loads(result.files[0].read_text(encoding="utf-8")).keys() == ids
