"""Exercises: right answers, rows that are the same everywhere, scores by hand, recipes and their twins, a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from longspan.cli import main
from longspan.errors import InputError
from longspan.settings import to_plain
from longspan.tasks.exercises.rows import ANSWERS
from longspan.tasks.exercises.task import Algorithmic, Stories
from longspan.training.recipe_file import load_recipe
from longspan.training.tokenizers import train_tokenizer

NAMES = ("copy", "reverse", "addition", "babi")


def test_answers_worked_out_by_hand() -> None:
    """17 + 5 = 22; written with the lowest digit first, 71 + 5 = 22; 99 + 1 = 100 is 99+1 = 001."""
    assert ANSWERS["copy"]("1207") == "1207"
    assert ANSWERS["reverse"]("1207") == "7021"
    assert ANSWERS["addition"]("71+5") == "22"
    assert ANSWERS["addition"]("99+1") == "001"


@pytest.mark.parametrize("algorithm", ANSWERS)
def test_rows_are_the_same_everywhere_and_tests_have_their_length(algorithm: str) -> None:
    task = Algorithmic(algorithm=algorithm, length=12, test_length=77)  # pyright: ignore[reportArgumentType]
    train = task.read("synthetic", "train", 300)
    assert list(train) == list(task.read("synthetic", "train", 300))
    assert train[7] == train[-293] == train[5:9][2]
    assert {len(row.text) for row in train} == set(range(3 if algorithm == "addition" else 1, 13))
    assert {len(row.text) for row in task.read("synthetic", "test", None)} == {77}
    texts = [{row.text for row in task.read("synthetic", split, 300)} for split in ("train", "validation")]
    assert texts[0] != texts[1]
    for row in train:
        assert row.answer == ANSWERS[algorithm](row.text)  # pyright: ignore[reportArgumentType]
    with pytest.raises(IndexError):
        _ = train[300]
    with pytest.raises(InputError, match="data='numbers' is not made up"):
        task.read("numbers", "train", None)


class Guesser(torch.nn.Module):
    """Says the labels, but for the first token of every second row."""

    device = torch.device("cpu")

    def forward(self, input_ids, attention_mask, labels):
        said = labels.clamp(min=0)
        said[1::2, 0] += 1
        return SimpleNamespace(logits=torch.nn.functional.one_hot(said, 300).float())


def test_scores_worked_out_by_hand() -> None:
    """Four answers of 12 digits each, of which two have one wrong: 46 of 48 characters, two of four answers."""
    task = Algorithmic(length=12, test_length=12)
    tokenizer = train_tokenizer(["0123456789"], 261)
    found = task.evaluate(Guesser(), tokenizer, task.read("synthetic", "test", 4), batch_size=4)
    assert found.scores == {"character_accuracy": pytest.approx(100 * 46 / 48), "sequence_accuracy": 50}
    assert [line["correct"] for line in found.lines] == [True, False, True, False]
    assert found.lines[0]["prediction"] == found.lines[0]["answer"]


def test_errors_are_means_over_tasks() -> None:
    rows = [SimpleNamespace(group=group) for group in ("qa1",) * 4 + ("qa2",) * 2 + ("qa3",) * 20]
    lines = [{"correct": correct} for correct in (*(True,) * 3, False, True, True, *(True,) * 19, False)]
    scores = Stories().group_scores(rows, lines)  # pyright: ignore[reportArgumentType]
    assert scores == {"error": pytest.approx((25 + 0 + 5) / 3), "failed_tasks": 1}


def test_bad_options_are_one_sentence() -> None:
    tokenizer = train_tokenizer(["0123456789"], 261)
    task = Algorithmic(max_tokens=20, length=40, test_length=40)
    with pytest.raises(InputError, match=r"the text of copy-0 has 42 tokens, more than task\.max_tokens=20"):
        task.features(task.read("synthetic", "test", 1)[0], tokenizer)
    with pytest.raises(InputError, match=r"task\.test_length=400 is more than the 98 characters"):
        load_recipe("sequential-copy", ["model.new.position_embedding=learned", "model.max_tokens=100"])


@pytest.mark.parametrize("name", NAMES)
def test_twins_differ_in_their_stack_alone(name: str) -> None:
    plain = []
    for kind in ("universal", "sequential"):
        data = to_plain(load_recipe(f"{kind}-{name}"))
        for key in ("name", "about", "published"):
            del data[key]
        stack = data["model"]["new"].pop("stack")
        assert (stack if isinstance(stack, str) else stack["stack"]) == kind
        # The one has positions in its steps, the other with its embeddings.
        positions = data["model"]["new"].pop("position_embedding")
        assert positions == ("none" if kind == "universal" else "sinusoidal")
        plain.append(data)
    assert plain[0] == plain[1]


@pytest.mark.parametrize("name", ["universal-addition", "universal-babi"])
def test_smoke(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert main(["train", name, "--smoke", "--output", str(folder)]) == 0
    assert "best checkpoint: step" in capsys.readouterr().out
    asked = ["--data", "synthetic", "--split", "test", "--limit", "2"]
    assert main(["evaluate", str(folder), *asked]) == 0
    assert "character_accuracy" in capsys.readouterr().out
