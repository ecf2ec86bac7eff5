"""The example of a package that adds to Longspan: all that it brings works as soon as its metadata are there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "letterbox"
LETTER = "stamp: blue\nDear Ada,\n\nThe engine is finished. It counts.\n"

pytestmark = pytest.mark.skipif(not EXAMPLE.is_dir(), reason="runs in a checkout, not from an installed package")
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run Python with the package installed, in an empty folder with a letter."""
    spec = spec_from_file_location("source_paths", ROOT / "tools" / "source_paths.py")
    assert spec is not None
    assert spec.loader is not None
    tool = module_from_spec(spec)
    spec.loader.exec_module(tool)
    metadata = tmp_path / "site"
    tool.write_metadata(EXAMPLE / "pyproject.toml", metadata)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "a.letter").write_text(LETTER, encoding="utf-8")
    paths = os.pathsep.join(map(str, (EXAMPLE / "src", metadata, os.environ.get("PYTHONPATH", ""))))

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path / "here",
            env=os.environ | {"PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )

    return call


def test_its_command_and_its_kind_of_file(run: Run) -> None:
    done = run("-m", "longspan", "salutations", "a.letter")
    assert (done.stdout, done.stderr, done.returncode) == ("a.letter: Ada\n", "", 0)
    listed = run("-m", "longspan", "--help")
    assert "salutations" in listed.stdout
    assert "Print to whom each letter is written." in listed.stdout
    passages = json.loads(run("-m", "longspan", "chunks", "a.letter", "--json").stdout)
    assert "stamp" not in json.dumps(passages)
    assert "The engine is finished." in json.dumps(passages)


def test_what_cannot_be_loaded_is_one_sentence(run: Run, tmp_path: Path) -> None:
    metadata = tmp_path / "site" / "broken-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text("[longspan.commands]\nlost = no_such_module:lost\n", encoding="utf-8")
    for arguments in (["lost"], ["--help"]):
        done = run("-m", "longspan", *arguments)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "the plugin 'lost' of package 'broken' cannot be loaded" in done.stderr
    assert run("-m", "longspan", "salutations", "a.letter").stdout == "a.letter: Ada\n"


def test_a_command_may_have_a_panel_of_its_own(run: Run, tmp_path: Path) -> None:
    metadata = tmp_path / "site" / "paneled-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: paneled\nVersion: 1.0\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text("[longspan.commands]\nown = paneled:own\n", encoding="utf-8")
    code = 'PANEL = "Postal service"\n\ndef own() -> None:\n    """Do nothing."""\n'
    (tmp_path / "site" / "paneled.py").write_text(code, encoding="utf-8")
    done = run("-m", "longspan", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.index("Documents") < done.stdout.index("Attention") < done.stdout.index("Postal service")


def test_its_function(run: Run) -> None:
    code = "from pathlib import Path; import longspan; print(longspan.salutation(Path('a.letter')), *dir(longspan))"
    done = run("-c", code)
    name, *public = done.stdout.split()
    assert name == "Ada"
    assert {"salutation", "summarize"} <= set(public)
    assert done.stderr == ""


@pytest.mark.slow
def test_its_verb_over_a_corpus(run: Run, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow comes with the 'map' extra")
    done = run("-m", "longspan", "map", "salutation", "a.letter", "--output", "found", "--workers", "0")
    assert done.returncode == 0, done.stderr
    (part,) = (tmp_path / "here" / "found").glob("[!_.]*.parquet")
    assert parquet.read_table(part).column("salutation").to_pylist() == ["Ada"]


@pytest.mark.slow
def test_its_recipe_and_its_task(run: Run, tmp_path: Path) -> None:
    assert "opening-small" in run("-m", "longspan", "recipes").stdout
    done = run("-m", "longspan", "train", "opening-small", "--smoke", "--output", "run")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "here" / "run" / "model.safetensors").is_file()
