"""HotpotQA's recipes: the paper's settings and rows, and both stages through the commands, from rows to scores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longspan.checkpoints.loading import load_tokenizer
from longspan.cli import main
from longspan.models import LongspanForMultiHop
from longspan.training.recipe_file import load_recipe
from longspan_papers.hotpotqa.features import MARKS

BASE, LARGE = {"joint_f1": 64.4}, {"answer_f1": 81.3, "evidence_f1": 88.3, "joint_f1": 73.2}
PAPER = {
    "longformer-hotpot": BASE,
    "longformer-hotpot-second": BASE,
    "longformer-hotpot-large": LARGE,
    "longformer-hotpot-large-second": LARGE,
}


@pytest.mark.parametrize("name", PAPER)
def test_the_settings_are_those_of_the_paper(name: str) -> None:
    recipe = load_recipe(name)
    task, settings = recipe.task, recipe.optimisation
    assert (task.max_tokens, task.global_on, task.kept_paragraphs, task.relevance_above) == (4096, "marks", 5, -3.0)
    assert task.least_paragraphs == (2 if name.endswith("second") else 0)  # the paper keeps what is above, and no more
    assert (settings.epochs, settings.batch_size, settings.learning_rate, settings.warmup_steps) == (5, 32, 3e-5, 1000)
    assert recipe.published is not None
    assert recipe.published.scores == PAPER[name]
    # The second stage is trained on what evaluating the first one writes.
    first = name.removesuffix("-second")
    assert all(source.startswith(f"runs/{first}/evaluation/") == (name != first) for source in recipe.data.train)


def test_two_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert main(["train", "longformer-hotpot", "--smoke", "--output", str(first)]) == 0
    assert main(["evaluate", str(first), "--data", "synthetic", "--limit", "6"]) == 0
    written = first / "evaluation" / "synthetic-validation"
    kept, predictions = (Path(f"{written}-{name}.json") for name in ("kept", "predictions-hotpotqa"))
    assert str(kept) in capsys.readouterr().out
    assert all(2 <= len(record["context"]) <= 4 for record in json.loads(kept.read_text(encoding="utf-8")))
    assert json.loads(predictions.read_text(encoding="utf-8")).keys() == {"answer", "sp"}
    files = [f"data.train=[{kept}]", f"data.validation=[{kept}]"]
    assert main(["train", "longformer-hotpot-second", "--smoke", "--output", str(second), *files]) == 0
    assert main(["evaluate", str(second), "--data", str(kept), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out.split("model: ")[-1].split("\n", 1)[1])["scores"]
    assert {"joint_f1", "answer_f1", "evidence_f1", "paragraphs_found"} <= scores.keys()
    known = load_tokenizer(second)
    assert LongspanForMultiHop.from_pretrained(second).config.vocab_size == len(known)
    assert len(set(known.convert_tokens_to_ids(list(MARKS)))) == len(MARKS)


@pytest.mark.parametrize("name", ["longformer-hotpot-large", "two-facts-small"])
def test_smoke(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", name, "--smoke", "--output", str(tmp_path / "run")]) == 0
    assert "best checkpoint: step" in capsys.readouterr().out
