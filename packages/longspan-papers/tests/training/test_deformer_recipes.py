"""DeFormer's recipes: the paper's settings and rows, a run of each with `--smoke`, a student that is its teacher."""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan.cli import main
from longspan.errors import InputError
from longspan.models import LongspanForQuestionAnswering, LongspanForSequenceClassification
from longspan.training.recipe_file import load_recipe
from longspan.training.train import train

TINY = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 24}


@pytest.mark.parametrize(
    ("name", "lengths", "scores"),
    [("deformer-squad", (320, 25), {"f1": 87.1}), ("deformer-pairs", (120, 85), {"accuracy": 82.6})],
)
def test_the_settings_are_those_of_the_paper(name: str, lengths: tuple[int, int], scores: dict[str, float]) -> None:
    recipe = load_recipe(name)
    task, settings = recipe.task, recipe.optimisation
    first = task.max_question_tokens if name == "deformer-squad" else task.max_first_tokens
    assert (task.max_tokens, first) == lengths
    assert (settings.epochs, settings.batch_size, settings.learning_rate) == (3, 32, 5e-5)
    assert (settings.schedule, settings.warmup_fraction) == ("linear", 0.15)
    weights = task.distillation
    assert (weights.alpha, weights.beta, weights.gamma, weights.temperature) == (0.5, 0.2, 0.3, 2.0)
    assert recipe.model.stack == {"stack": "decomposed", "lower_layers": 9}
    assert recipe.published is not None
    assert recipe.published.scores == scores


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [("deformer-squad", LongspanForQuestionAnswering), ("deformer-pairs", LongspanForSequenceClassification)],
)
def test_smoke(name: str, kind: type, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert main(["train", name, "--smoke", "--output", str(folder)]) == 0
    assert "best checkpoint: step" in capsys.readouterr().out
    assert kind.from_pretrained(folder).config.stack["lower_layers"] == 3  # type: ignore[attr-defined]
    assert main(["evaluate", str(folder), "--data", "synthetic", "--limit", "4"]) == 0


@pytest.mark.slow
def test_a_student_starts_as_its_teacher_in_another_stack(tmp_path: Path) -> None:
    changes = [f"model.new={TINY}", "model.stack=null", "task.distillation=null"]
    train(load_recipe("deformer-squad", changes, smoke=True), tmp_path / "teacher")
    changes = [f"model.from={tmp_path / 'teacher'}", "model.new=null", "tokenizer.train=null"]
    changes += ["optimisation.learning_rate=1.0e-12", "model.attention=null"]
    train(load_recipe("deformer-squad", changes, smoke=True), tmp_path / "student")
    teacher, student = (
        LongspanForQuestionAnswering.from_pretrained(tmp_path / name) for name in ("teacher", "student")
    )
    assert student.config.stack == {"stack": "decomposed", "lower_layers": 3, "positions": "restart"}
    assert all((each - student.state_dict()[name]).abs().max() < 1e-6 for name, each in teacher.state_dict().items())
    deep = load_recipe("deformer-squad", [*changes, "model.stack={stack: decomposed, lower_layers: 9}"], smoke=True)
    with pytest.raises(InputError, match="lower_layers=9 is more than num_hidden_layers=4"):
        train(deep, tmp_path / "deep")
    assert not (tmp_path / "deep").exists()
