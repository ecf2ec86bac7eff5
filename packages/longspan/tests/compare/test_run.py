"""A whole comparison with processes of its own: one that dies, one that refuses, going on, and what is written."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from longspan.compare.probes import PROBES
from longspan.compare.report import _table, write_report
from longspan.compare.run import compare, in_gaps
from longspan.compare.settings import Comparison
from longspan.errors import InputError

pytestmark = pytest.mark.slow

PLUGIN = """
import os, signal
from dataclasses import dataclass
from typing import ClassVar
import longspan
from longspan.attention import LongformerConfig

@dataclass(frozen=True, kw_only=True)
class DyingConfig(LongformerConfig):
    mechanism: ClassVar[str] = "dying"
    causal: ClassVar[bool] = True

    def build(self, **sizes):
        os.kill(os.getpid(), signal.SIGKILL)

longspan.register(DyingConfig)
"""


@pytest.fixture
def dying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A mechanism of another package, whose process dies; as it is installed, the processes of cells know it too."""
    home = tmp_path / "packages"
    (home / "dying-1.0.dist-info").mkdir(parents=True)
    (home / "dying_package.py").write_text(PLUGIN, encoding="utf-8")
    (home / "dying-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: dying\nVersion: 1.0\n")
    (home / "dying-1.0.dist-info" / "entry_points.txt").write_text("[longspan.plugins]\nit = dying_package\n")
    monkeypatch.syspath_prepend(str(home))
    return "dying"


def test_a_comparison_with_one_that_dies_and_one_that_refuses(
    dying: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    comparison = Comparison(
        mechanisms=("linear", dying, "fusion"),
        task="duplication",
        tokens=40,
        lengths=(24,),
        steps=2,
        rows=2,
        held_out=3,
        options={"fusion": {"left_tokens": 8}},
    )
    monkeypatch.setattr("longspan.compare.probes.made_up.Duplication.forms", ("causal",))
    folder = tmp_path / "run"
    record = compare(comparison, folder, said.append)
    assert record["steps"] == 2
    report = write_report(folder)
    states = {(each["cell"]["mechanism"], each["cell"]["kind"]): each["status"] for each in report.data["results"]}
    assert states[("linear", "quality")] == "done"
    assert states[(dying, "speed")] == states[(dying, "quality")] == "failed"
    assert states[("fusion", "quality")] == "refused"
    assert any("its process was ended by SIGKILL" in line for line in said)
    assert any("has no causal form" in line for line in said)

    rows = list(csv.DictReader((folder / "cells.csv").read_text(encoding="utf-8").splitlines()))
    trained = [row for row in rows if row["kind"] == "quality"]
    assert [(row["mechanism"], row["status"]) for row in trained] == [
        ("linear", "done"),
        (dying, "failed"),
        ("fusion", "refused"),
    ]
    assert float(trained[0]["score"]) >= 0
    assert "torch" in trained[0]["machine"]
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"<script|https?://(?!www\.w3\.org)", page)
    assert page.count("<figure>") == len(list((folder / "plots").glob("*.png"))) >= 4
    assert (folder / "table.md").read_text(encoding="utf-8").count("\n") == 5

    # Once more: what is done or refused is not run again, what failed is.
    said.clear()
    files = {file: file.stat().st_mtime_ns for file in (folder / "cells").iterdir()}
    compare(comparison, folder, said.append)
    assert {line.split(",")[0] for line in said} == {dying}
    kept = [file for file, before in files.items() if file.stat().st_mtime_ns == before]
    assert all("dying" in file.name for file in set(files) - set(kept))
    assert (folder / "report.html").read_text(encoding="utf-8") == page

    with pytest.raises(InputError, match="contains a comparison with tokens=40, not 48"):
        compare(Comparison(mechanisms=("linear",), task="duplication", tokens=48, steps=2), folder)


def test_documents_are_made_where_a_killed_run_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where they cannot be had, nothing is left."""
    known: list[bool] = []

    def prepare(folder: Path) -> dict[str, str]:
        known.append((folder / "comparison.json").is_file())
        raise InputError("there are no documents")

    monkeypatch.setattr(PROBES["matching"], "prepare", prepare)
    with pytest.raises(InputError, match="there are no documents"):
        compare(Comparison(mechanisms=("full",), task="matching", tokens=512, steps=2), tmp_path / "run")
    assert known == [True]
    assert not (tmp_path / "run").exists()


def test_lengths_are_measured_far_apart_first() -> None:
    assert in_gaps([512, 1024, 2048, 4096, 8192]) == [512, 8192, 2048, 1024, 4096]
    assert in_gaps([7]) == [7]
    assert in_gaps([]) == []


def test_whatever_a_table_holds_is_text() -> None:
    markup = _table(["mechanism", "<i>", *"abcdefg"], [["<b>", *"1234567", "&"]])
    assert re.findall(r"<(?!/?(?:table|thead|tbody|tr|th|td)\b)", markup) == []
    assert "&lt;b&gt;" in markup


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear", encoding="utf-8")
    with pytest.raises(InputError, match="holds no comparison"):
        compare(Comparison(mechanisms=("linear",), steps=1), tmp_path)
    (tmp_path / "comparison.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="cannot be read"):
        write_report(tmp_path)
    (tmp_path / "comparison.json").write_text(json.dumps([1]), encoding="utf-8")
    with pytest.raises(InputError, match="is damaged"):
        compare(Comparison(mechanisms=("linear",), steps=1), tmp_path)
