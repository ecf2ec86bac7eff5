"""`longspan recipes`, and recipes by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from longspan.cli import main
from longspan.errors import InputError
from longspan.training.recipe_file import load_recipe
from longspan.training.shipped import find_recipe, shipped_recipes

NAME = "poolingformer-arxiv-4k"


def test_the_list_names_every_recipe_with_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    out = capsys.readouterr().out
    systems: dict[str, list[str]] = {}
    for line in out.splitlines():
        indent = len(line) - len(line.lstrip())
        if indent == 0:
            systems[line] = []
        elif indent == 2:
            systems[[*systems][-1]].append(line.strip())
    expected: dict[str, list[str]] = {}
    for path in sorted(Path(__file__).parents[1].glob("packages/*/src/*/recipes/*/*.yaml"), key=lambda path: path.stem):
        expected.setdefault(path.parent.name, []).append(path.stem)
    assert len(expected) == 13
    assert systems == expected
    assert "arXiv test, row Poolingformer 4k (rouge1 47.86, rouge2 19.54, rougeL 42.35)" in out


def test_one_is_shown_as_it_is_and_trains_by_its_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", NAME]) == 0
    shown = capfd.readouterr().out
    assert shown == shipped_recipes()[NAME].read_text(encoding="utf-8")
    assert yaml.safe_load(shown)["name"] == NAME
    (tmp_path / "mine.yaml").write_text(shown, encoding="utf-8")
    assert load_recipe(str(tmp_path / "mine.yaml")) == load_recipe(NAME)


def test_a_name_means_the_package_and_a_path_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (NAME, "my-own", f"{NAME}.yaml"):
        Path(name).write_text("name: other\n", encoding="utf-8")
    assert find_recipe(NAME) == shipped_recipes()[NAME]
    assert find_recipe(f"{NAME}.yaml") == Path(f"{NAME}.yaml")
    assert find_recipe(f"./{NAME}") == Path(NAME)
    assert find_recipe(Path(NAME)) == Path(NAME)
    with pytest.raises(InputError, match=r"'my-own' is no recipe of the package; for the file here write \./my-own"):
        find_recipe("my-own")
    with pytest.raises(InputError, match=f"did you mean '{NAME}'"):
        find_recipe("poolingformer-arxiv-4")
    with pytest.raises(InputError, match=f"give the path of a .yaml file, or the name '{NAME}'"):
        load_recipe(f"recipes/{NAME}.yaml")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing-like-it"], "longspan recipes"),
        (["poolingformer-arxiv-4"], f"did you mean '{NAME}'"),
        (["../../etc/nothing-like-it"], "recipe '../../etc/nothing-like-it' is not a file"),
        ([NAME, "--schema"], "give one of them"),
    ],
)
def test_mistakes(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", *arguments]) == 2
    assert words in capsys.readouterr().err
