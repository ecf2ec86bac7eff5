"""Recipes that extend another: what is taken over, what replaces it, and what cannot be extended."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from longspan.cli import main
from longspan.errors import InputError
from longspan.settings import to_plain
from longspan.training.recipe_file import load_recipe
from longspan.training.shipped import EXTENDS, KINDS, OWN, merged, read_recipe, recipe_folders, shipped_recipes
from longspan.training.train import train

SHIPPED = {name: yaml.safe_load(path.read_text(encoding="utf-8")) for name, path in shipped_recipes().items()}
EXTENDING = [name for name, data in SHIPPED.items() if EXTENDS in data]
BASE = """
name: base
about: The one that others extend.
published: {source: a paper}
task: {name: summarization, max_source_tokens: 96, max_target_tokens: 24}
data: {train: synthetic, validation: synthetic, train_rows: 8}
model:
  new: {hidden_size: 32, num_attention_heads: 4, num_hidden_layers: 2, decoder_layers: 1, intermediate_size: 48}
  attention: {mechanism: longformer, left_tokens: 8, right_tokens: 8}
tokenizer: {train: 400}
optimisation: {steps: 2, batch_size: 2, micro_batch_size: 1, log_every: 1, evaluate_every: 2, betas: [0.9, 0.98]}
generation: {max_tokens: 16}
"""


@pytest.fixture
def extends(tmp_path: Path) -> Any:
    """Writes `own` beside the base, and returns the file."""
    (tmp_path / "base.yaml").write_text(BASE, encoding="utf-8")

    def write(own: str, name: str = "own.yaml") -> Path:
        (tmp_path / name).write_text(own, encoding="utf-8")
        return tmp_path / name

    return write


def test_names_are_one_of_a_kind_and_folders_are_systems() -> None:
    names = Counter(path.stem for folder in recipe_folders() for path in folder.rglob("*.yaml"))
    assert max(names.values()) == 1
    assert {path.parent.parent for path in shipped_recipes().values()} == set(recipe_folders())


@pytest.mark.parametrize("name", EXTENDING)
def test_one_of_the_package_says_nothing_that_its_base_says(name: str) -> None:
    own, base = SHIPPED[name], SHIPPED[SHIPPED[name][EXTENDS]]
    assert EXTENDS not in base

    def repeated(base: Any, own: Any, path: str) -> list[str]:
        if not isinstance(own, dict) or not isinstance(base, dict):
            return [path] if own == base else []
        kind = KINDS.get(path.rpartition(".")[2], "")
        if kind in own and own[kind] != base.get(kind):
            return []
        return [one for key in own if key in base for one in repeated(base[key], own[key], f"{path}.{key}")]

    changes = {key: value for key, value in own.items() if key not in OWN}
    assert not repeated({key: value for key, value in base.items() if key not in OWN}, changes, "")


def test_mappings_merge_and_all_else_is_replaced(extends: Any) -> None:
    own = """
    name: own
    extends: base.yaml
    model: {attention: {left_tokens: 5}, new: {decoder_layers: 2, dropout: 0.0}}
    optimisation: {betas: [0.8], steps: null, epochs: 3}
    """
    data, base = read_recipe(extends(own)), yaml.safe_load(BASE)
    assert data["model"]["attention"] == {"mechanism": "longformer", "left_tokens": 5, "right_tokens": 8}
    assert data["model"]["new"] == {**base["model"]["new"], "decoder_layers": 2, "dropout": 0.0}
    assert data["optimisation"] == {**base["optimisation"], "betas": [0.8], "steps": None, "epochs": 3}
    assert data["data"] == base["data"]
    assert set(data) == {*base} - {"about", "published"}  # the recipe's own, and it says none
    assert data["name"] == "own"


def test_another_mechanism_stack_head_or_task_replaces_its_options() -> None:
    base = {
        "task": {"name": "summarization", "max_source_tokens": 8},
        "model": {"attention": {"mechanism": "longformer", "left_tokens": 8}, "new": {"stack": {"stack": "layers"}}},
        "smoke": {"model.attention": {"mechanism": "longformer", "left_tokens": 2}, "tokenizer.train": 300},
    }
    own: dict[str, Any] = {
        "task": {"name": "extraction"},
        "model": {"attention": {"mechanism": "poolingformer"}, "new": {"stack": "reversible"}},
        "smoke": {"model.attention": {"mechanism": "sinkhorn"}},
    }
    result = merged(base, own)
    assert result == {**own, "smoke": {**base["smoke"], **own["smoke"]}}
    same = merged(base, {"task": {"name": "summarization", "stemmer": False}, "model": {"attention": "full"}})
    assert same["task"] == {**base["task"], "stemmer": False}
    assert same["model"] == {**base["model"], "attention": "full"}
    assert merged(base, {"model": {"new": {"stack": {"stack": "universal"}}}})["model"]["new"] == {
        "stack": {"stack": "universal"}
    }
    assert base["model"]["new"] == {"stack": {"stack": "layers"}}  # what was merged into is as it was


def test_a_path_is_beside_the_file_and_a_name_is_of_the_package(extends: Any, monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "led-arxiv-4k").write_text("name: other\n", encoding="utf-8")
    assert read_recipe(extends("{name: own, extends: ./base.yaml}"))["tokenizer"] == {"train": 400}
    named = load_recipe(extends("{name: own, extends: led-arxiv-4k, model: {attention: {left_tokens: 128}}}"))
    whole = to_plain(load_recipe("led-arxiv-4k"))
    whole["model"]["attention"]["left_tokens"] = 128
    assert to_plain(named) == {**whole, "name": "own", "about": "", "published": None}


def test_changes_come_after_and_a_run_stores_what_comes_out(extends: Any, tmp_path: Path) -> None:
    file = extends("{name: own, extends: base.yaml, model: {attention: {left_tokens: 5}}}")
    recipe = load_recipe(file, ["model.attention.right_tokens=3", "optimisation.seed=7"])
    assert recipe.model.attention == {"mechanism": "longformer", "left_tokens": 5, "right_tokens": 3}
    train(recipe, tmp_path / "run")
    stored = yaml.safe_load((tmp_path / "run/recipe.yaml").read_text(encoding="utf-8"))
    assert stored == to_plain(recipe)
    assert EXTENDS not in stored
    assert load_recipe(tmp_path / "run/recipe.yaml") == recipe


def test_it_is_shown_with_what_it_extends_written_out(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["recipes", "transformer-xl-text8"]) == 0
    shown = capfd.readouterr().out
    assert shown.startswith(
        "# Extends transformer-xl-enwik8, whose keys are written out here.\nname: transformer-xl-text8\n"
    )
    (tmp_path / "mine.yaml").write_text(shown, encoding="utf-8")
    assert load_recipe(str(tmp_path / "mine.yaml")) == load_recipe("transformer-xl-text8")
    (tmp_path / "own.yaml").write_text("{name: own, extends: mine.yaml}", encoding="utf-8")
    assert main(["recipes", str(tmp_path / "own.yaml")]) == 0
    assert yaml.safe_load(capfd.readouterr().out)["data"] == read_recipe(tmp_path / "mine.yaml")["data"]


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (
            "extends: led-arxiv-4",
            "extends 'led-arxiv-4', which is no recipe of the package; did you mean 'led-arxiv-4k'",
        ),
        ("extends: qqqq", "extends 'qqqq', which is no recipe of the package; `longspan recipes` lists them"),
        (
            "extends: base",
            "extends 'base', which is no recipe of the package; for the file in the same folder write ./base",
        ),
        (
            "extends: gone.yaml",
            "extends 'gone.yaml', which is not a file in the same folder; give the name of a recipe",
        ),
        ("extends: ../", "extends '../', which is not a file in the same folder"),
        ("extends: own.yaml", "extends itself"),
        (
            "extends: two.yaml",
            "extends 'two.yaml', which itself extends 'base.yaml'; extend a recipe that is written in full",
        ),
        ("extends: cycle.yaml", "extends 'cycle.yaml', which itself extends 'own.yaml'"),
        ("extends: list.yaml", "extends 'list.yaml': this holds no mapping of keys to values"),
        ("extends: broken.yaml", "extends 'broken.yaml': this is not valid YAML at line 2"),
        ("extends: transformer-xl-text8", "which itself extends 'transformer-xl-enwik8'"),
        *(
            (f"extends: {value}", "; give the name of a recipe of the package")
            for value in ("3", "", "''", "[a]", "{a: b}")
        ),
        ('extends: "x\\0.yaml"', "holds NUL or a surrogate"),
        (f"extends: {'x' * 5000}.yaml", "which is not a file in the same folder"),
        ("extnds: base.yaml", "unknown key 'extnds'; did you mean 'extends'"),
        ("smoke: {extends: base.yaml}", "smoke.extends cannot be changed"),
        ("{extends: base.yaml, model: 3}", "model is 3"),
        ("{extends: base.yaml, model: {atention: full}}", "unknown key 'model.atention'; did you mean 'attention'"),
    ],
)
def test_what_cannot_be_extended_is_one_sentence(
    own: str, words: str, extends: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "base").write_text(BASE, encoding="utf-8")
    extends("{name: two, extends: base.yaml}", "two.yaml")
    extends("{name: cycle, extends: own.yaml}", "cycle.yaml")
    extends("[1, 2]", "list.yaml")
    extends("name: x\n  a: b: c\n", "broken.yaml")
    file = extends(f"{BASE}\n{own}" if "smoke" in own else own)
    with pytest.raises(InputError) as caught:
        load_recipe(file, smoke="smoke" in own)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert main(["train", str(file), "--output", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_the_command_line_does_not_say_what_is_extended(extends: Any) -> None:
    with pytest.raises(InputError, match="extends cannot be changed, as changes apply after it; write it in the file"):
        load_recipe(extends("{name: own, extends: base.yaml}"), ["extends=led-arxiv-4k"])


def test_a_name_is_not_taken_over(extends: Any) -> None:
    with pytest.raises(InputError, match="missing key 'name'"):
        load_recipe(extends("extends: base.yaml"))
