"""`longspan data`: what is known of every data set, what is here, and the error for what is missing."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import longspan.data
import longspan.tasks
import longspan_documents.questions
import longspan_papers
from longspan.cli import main
from longspan.data.catalogue import KNOWN, THEIR_PAGE, known_name
from longspan.data.sources import Kind
from longspan.errors import InputError
from longspan.tasks import build_task
from longspan.training.shipped import read_recipe, shipped_recipes


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of data sets, and an empty current folder."""
    (tmp_path / "data").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def kinds() -> list[Kind[Any]]:
    """Every kind of data that the packages have."""
    packages = (longspan.data, longspan.tasks, longspan_documents.questions, longspan_papers)
    modules = [one.name for top in packages for one in pkgutil.walk_packages(top.__path__, f"{top.__name__}.")]
    values = [value for name in modules for value in vars(importlib.import_module(name)).values()]
    return list({id(value): value for value in values if isinstance(value, Kind)}.values())


@cache
def sources() -> list[tuple[str, str]]:
    """Recipe and source of data, for all that recipes read but for what is made up or made by a step before."""
    data = {name: read_recipe(file)["data"] for name, file in shipped_recipes().items()}
    every = [(name, one) for name, section in data.items() for one in section["train"] + section["validation"]]
    return [(name, one) for name, one in every if one != "synthetic" and not one.startswith("runs/")]


def plain(recipe: str) -> dict[str, Any]:
    """A recipe of the package as its file has it."""
    return read_recipe(shipped_recipes()[recipe])


def test_every_data_set_of_a_recipe_and_every_named_one_is_known() -> None:
    assert {one for _, one in sources() if known_name(one) is None} == set()
    named = {name: known for kind in kinds() for name, known in kind.named.items()}
    assert len(named) > 20
    for name, known in named.items():
        place = known_name(name)
        assert place is not None, name
        folders = {file.split("/")[0] for files in known.splits.values() for file in files}
        assert place.split("/")[0] in folders
        assert folders <= set(KNOWN)


def test_what_is_known_can_be_told() -> None:
    for name, known in KNOWN.items():
        assert known.page.startswith("https://"), name
        for words in (known.title, known.layout, known.size, known.licence):
            assert words, name
            assert not words.endswith("."), name
    assert sum(known.licence == THEIR_PAGE for known in KNOWN.values()) < 12
    aliases = [one for known in KNOWN.values() for one in known.names]
    assert len(aliases) == len(set(aliases))


@pytest.mark.parametrize("name", list(KNOWN))
@pytest.mark.parametrize("is_set", [True, False])
def test_a_missing_one_says_what_to_get_and_where_to_put_it(
    name: str, is_set: bool, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_set:
        monkeypatch.delenv("LONGSPAN_DATA")
    readers = {one: recipe for recipe, one in sources() if known_name(one) == name}
    source, recipe = next(iter(readers.items()), (name, "led-arxiv-4k"))
    task = build_task(plain(recipe)["task"])
    with pytest.raises(InputError) as error:
        task.read(source, "train", 1, on_error="raise")
    said, known = str(error.value), KNOWN[name]
    assert said.startswith(f"data={source!r} ")
    for words in (known.title, known.size, known.licence, known.page, f"LONGSPAN_DATA/{name} has {known.layout}"):
        assert words in said
    assert str(root) in said if is_set else "not set" in said
    assert "\n" not in said


def test_a_name_with_a_letter_wrong_gets_the_right_one(root: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'arxiv-dataset'"):
        build_task(plain("led-arxiv-4k")["task"]).read("arxiv-datset", "train", 1)


@pytest.mark.parametrize("recipe", ["longformer-hotpot-second", "bundled-denoising"])
def test_what_an_earlier_step_writes_is_said_to_be_that(recipe: str, root: Path) -> None:
    source = plain(recipe)["data"]["train"][0]
    with pytest.raises(InputError, match=r"runs/[\w-]+ is what an earlier step writes: do that first"):
        build_task(plain(recipe)["task"]).read(source, "train", 1)


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["data", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_list(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "qmsum").mkdir()
    Path("text8.zip").write_bytes(b"")
    rows = {row["name"]: row for row in listed(capsys)}
    assert list(rows) == list(KNOWN)
    assert {name: row["place"] for name, row in rows.items() if row["place"]} == {
        "qmsum": str(root / "qmsum"),
        "text8": "text8.zip",
    }
    assert rows["qmsum"]["names"] == ["qmsum-queries"]
    assert {"dialoglm-qmsum", "topics-small", "sentence-scorer"} <= set(rows["qmsum"]["recipes"])
    assert rows["squad-v1.1"]["recipes"] == ["deformer-squad"]
    assert "qmsum" not in {row["name"] for row in listed(capsys, "--missing")}
    assert [row["name"] for row in listed(capsys, "qmsum-queries", "hotpot/hotpot_train_v1.1.json")] == [
        "qmsum",
        "hotpot",
    ]
    assert main(["data", "MNLI"]) == 0
    known = KNOWN["MNLI"]
    assert capsys.readouterr().out.splitlines() == [
        "MNLI: missing",
        f"    {known.title}",
        f"    size: {known.size}; licence: {known.licence}",
        f"    {known.page}",
        f"    LONGSPAN_DATA/MNLI: {known.layout}",
        "    recipes: deformer-pairs",
    ]


def test_an_unknown_name(refused: Callable[..., str]) -> None:
    assert "data set 'qmsun' is unknown; did you mean 'qmsum'?" in refused("data", "qmsun")
