"""Scoring a trained model and a published one."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forked import forked
from installed import needs_documents
from longspan.cli import main
from longspan.data.summaries.rows import synthetic_rows
from longspan.errors import InputError
from longspan.tasks.summaries.base import texts_of
from longspan.tasks.summaries.summarization import Summarization
from longspan.training.evaluate import evaluate
from longspan.training.models import write_random
from longspan.training.recipe_file import load_recipe
from longspan.training.tokenizers import train_tokenizer
from longspan.training.train import train


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "papers.jsonl"
    rows = [{"id": row.id, "source": row.source, "target": row.reference} for row in synthetic_rows(3, seed=5)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture
def bart(tmp_path: Path) -> Path:
    """A published checkpoint: a tiny random one with its tokenizer."""
    tokenizer = train_tokenizer(texts_of(synthetic_rows(2, seed=0)), 400, max_tokens=256)
    return write_random("random-bart", tmp_path / "bart", tokenizer, seed=0)


def test_a_trained_model(tiny_recipe: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(load_recipe(tiny_recipe, ["optimisation.steps=1"]), tmp_path / "run")
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--data", str(data), "--limit", "2", "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert {"rouge1", "rouge2", "rougeL", "rougeLsum"} <= set(report["scores"])
    assert report["flavour"]
    assert (report["rows"], report["decoding"]["num_beams"]) == (2, 2)
    folder = tmp_path / "run" / "evaluation"
    assert json.loads((folder / "papers-validation.json").read_text()) == report
    lines = [json.loads(line) for line in (folder / "papers-validation.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == ["synthetic-5-0", "synthetic-5-1"]

    one = evaluate(tmp_path / "run", str(data), beams=1, max_tokens=5, output=tmp_path / "out")
    three = evaluate(tmp_path / "run", str(data), beams=1, max_tokens=5, batch_size=3, output=tmp_path / "out")
    assert one.predictions == three.predictions
    assert one.metrics_file.parent == tmp_path / "out"


def test_the_report_is_the_same_to_the_last_byte_every_time(
    bart: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """How long it took is said beside it, and kept in the result alone."""
    command = ["evaluate", str(bart), "--data", str(data), "--limit", "1", "--max-tokens", "4", "--json"]
    command += ["--output", str(tmp_path / "scores")]
    seen = []
    for _ in range(2):
        assert main(command) == 0
        out, err = capsys.readouterr()
        assert "predicted and scored in" in err
        seen.append((out, {path.name: path.read_bytes() for path in (tmp_path / "scores").iterdir()}))
    assert seen[0] == seen[1]
    report = json.loads(seen[0][0])
    assert "seconds" not in report
    predictions = seen[0][1]["papers-validation.jsonl"]
    assert report["files"] == {"papers-validation.jsonl": hashlib.sha256(predictions).hexdigest()}


KILLED = """
import os, sys
real, count = os.replace, 0
def replace(source, target, **options):
    global count
    real(source, target, **options)
    if "papers-validation" in str(target):
        os._exit(9)
os.replace = replace
from longspan.cli import main
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_killed_between_two_files_the_next_one_leaves_no_orphan(bart: Path, data: Path, tmp_path: Path) -> None:
    scores = tmp_path / "scores"
    command = ["evaluate", str(bart), "--data", str(data), "--limit", "1", "--max-tokens", "4"]
    command += ["--output", str(scores)]
    (tmp_path / "killed.py").write_text(KILLED)
    killed = forked(1, tmp_path / "killed.py", *command)
    assert killed.returncode == 9, killed.stderr
    assert [path.name for path in scores.glob("papers*")] == ["papers-validation.json"]
    assert main(command) == 0
    assert sorted(path.name for path in scores.iterdir()) == ["papers-validation.json", "papers-validation.jsonl"]


def test_a_published_checkpoint(bart: Path, data: Path) -> None:
    result = evaluate(bart, str(data), limit=1, beams=2, length_penalty=2.0, max_tokens=6)
    assert result.report["decoding"]["length_penalty"] == 2.0
    assert set(result.scores) == {"rouge1", "rouge2", "rougeL", "rougeLsum"}


def test_a_full_disk_leaves_the_last_scores(
    bart: Path, data: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["evaluate", str(bart), "--data", str(data), "--limit", "1", "--output", str(small_disk / "scores")]
    assert main([*command, "--max-tokens", "4"]) == 0
    before = {path.name: path.read_bytes() for path in (small_disk / "scores").iterdir()}
    (small_disk / "mine").write_bytes(bytes(shutil.disk_usage(small_disk).free))
    capsys.readouterr()
    assert main([*command, "--max-tokens", "5"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert "the disk is full" in err
    assert {path.name: path.read_bytes() for path in (small_disk / "scores").iterdir()} == before


def _no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()


def _another_tokenizer(folder: Path) -> None:
    train_tokenizer(texts_of(synthetic_rows(2, seed=0)), 500).save_pretrained(folder)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_no_tokenizer, "has no tokenizer.json"),
        (_another_tokenizer, "use the tokenizer of this model"),
    ],
)
def test_a_wrong_tokenizer_is_one_sentence(
    damage: Callable[[Path], None], words: str, bart: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(bart)
    capsys.readouterr()
    assert main(["evaluate", str(bart), "--data", str(data)]) == 2
    error = capsys.readouterr().err.splitlines()[-1]  # after the progress bar of loading
    assert error.startswith("error: ")
    assert words in error
    assert not (bart / "evaluation").exists()


def test_two_sources_of_one_name_keep_their_scores(bart: Path, data: Path, tmp_path: Path) -> None:
    rows = data.read_text().splitlines(keepends=True)
    for place, kept in (("a", rows[:1]), ("b", rows[:2])):
        (tmp_path / place).mkdir()
        (tmp_path / place / "validation.jsonl").write_text("".join(kept))
    first, second, again = (
        evaluate(bart, str(tmp_path / place / "validation.jsonl"), max_tokens=4) for place in ("a", "b", "a")
    )
    assert first.metrics_file.name == "validation-validation.json"
    assert second.metrics_file.name.startswith("validation-validation-")
    assert again.metrics_file == first.metrics_file
    for result, count in ((again, 1), (second, 2)):
        assert json.loads(result.metrics_file.read_text())["rows"] == count
        assert len(result.predictions_file.read_text().splitlines()) == count


def test_a_place_that_cannot_be_written_is_known_before_anything_is_predicted(
    bart: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Summarization, "evaluate", lambda *_, **__: pytest.fail("predicted first"))
    (tmp_path / "file").write_text("here before")
    with pytest.raises(InputError, match="is a file; give a folder"):
        evaluate(bart, str(data), output=tmp_path / "file")
    (tmp_path / "out" / "papers-validation.json").mkdir(parents=True)
    with pytest.raises(InputError, match="is no file, so the scores cannot be written"):
        evaluate(bart, str(data), output=tmp_path / "out")
    assert (tmp_path / "file").read_text() == "here before"


EXTRACTION = """
name: extraction
task: {name: extraction}
data: {train: synthetic, validation: synthetic, train_rows: 2, validation_rows: 1}
model:
  new: {hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16}
tokenizer: {train: 300}
optimisation: {steps: 1, batch_size: 1, log_every: 1, evaluate_every: 1}
"""


@needs_documents
def test_a_model_that_scores_sentences(data: Path, tmp_path: Path) -> None:
    (tmp_path / "extraction.yaml").write_text(EXTRACTION)
    train(load_recipe(tmp_path / "extraction.yaml"), tmp_path / "run")
    result = evaluate(tmp_path / "run", str(data))
    assert len(result.predictions) == 3
    assert all(result.predictions)
    assert result.report["decoding"] is None
    assert "stemmer" in result.report["flavour"]
    with pytest.raises(InputError, match="beams is set, but a model for 'extraction' does not generate"):
        evaluate(tmp_path / "run", str(data), beams=2)


def test_mistakes(tiny_recipe: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        evaluate(tmp_path / "none", str(data))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text(tiny_recipe.read_text())
    with pytest.raises(InputError, match="has not ended; finish it"):
        evaluate(tmp_path / "run", str(data))
