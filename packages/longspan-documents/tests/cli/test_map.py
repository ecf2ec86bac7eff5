"""`longspan map`: its messages, its progress, and mistakes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="tables are read and written with pyarrow, of the 'map' extra")

from longspan.cli import main
from longspan_documents.cli import map as command
from longspan_documents.mapping.documents import Progress


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_a_job_and_the_same_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = lines(tmp_path / "rows.jsonl", {"text": "Bees dance. They live in hives."}, {"text": ""})
    call = ["map", "summarize", str(rows), "--output", str(tmp_path / "out"), "-n", "1", "--workers", "0"]
    assert main(call) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"[{tmp_path / 'out'}: 2 documents in 1 part, 1 document with an error]\n"
    assert main(call) == 0
    assert ": was finished already, nothing to do: 2 documents in 1 part" in capsys.readouterr().err
    assert main([*call, "--words", "9"]) == 2


def test_progress_in_a_log(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    told = command.Lines()
    progress = Progress(verb="embed", rows=10_000, done=2_500, per_second=2.0)
    told.report(progress)
    assert capsys.readouterr().err == "", "not at once"
    monkeypatch.setattr(command, "EVERY", 0.0)
    told.report(progress)
    told.end()
    assert capsys.readouterr().err == "embed: 2,500 of 10,000 documents, 2 a second, 62 min left\n"


class Terminal(io.StringIO):
    """A terminal that can be read."""

    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, told = Terminal(), command.Lines()
    monkeypatch.setattr("sys.stderr", terminal)
    told.said = float("-inf")
    told.report(Progress(verb="embed", rows=100, done=99, per_second=0.5))
    told.said = float("-inf")
    told.report(Progress(verb="embed", rows=100, done=100, per_second=0.0))
    told.end()
    first, second, cleared = terminal.getvalue().split("\r")[1:4]
    assert first == "embed: 99 of 100 documents, 0.5 a second, 2 s left"
    assert second == "embed: 100 of 100 documents, 0 a second".ljust(len(first))
    assert not cleared.strip()


def test_mistakes_are_refused(refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = lines(tmp_path / "rows.jsonl", {"text": "Bees dance.", "summary": "They do."})
    lines(tmp_path / "rows.csv", {"text": "Bees"})
    (tmp_path / "note.txt").write_text("Bees dance.")
    assert "--prefix map_" in refused("map", "summarize", rows, "--output", "out")
    assert "top is an option of answer" in refused("map", "summarize", rows, "--output", "out", "--top", 3)
    assert "save it as Parquet or JSON Lines" in refused("map", "embed", "rows.csv", "--output", "out")
    assert "is a table and" in refused("map", "embed", rows, "note.txt", "--output", "out")
    assert "is given twice" in refused("map", "embed", rows, "rows.jsonl", "--output", "out")
    assert "lies in the input" in refused("map", "embed", tmp_path, "--output", tmp_path / "out")
    assert "lies in the output" in refused("map", "embed", "note.txt", "--output", tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/note.txt").write_text("Bees dance.")
    assert "is not empty" in refused("map", "embed", "note.txt", "--output", "full")
    assert "verb is 'embedd', which cannot be mapped; did you mean 'embed'" in refused(
        "map", "embedd", rows, "--output", "out"
    )


def test_a_changed_file_of_abbreviations_is_another_job(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines(Path("rows.jsonl"), {"text": "Siehe Anm. Nichts gilt hier."})
    words = Path("words.txt")
    words.write_text("# of the court\nAnm.\n")
    call = ["map", "summarize", "rows.jsonl", "--output", "out", "--workers", "0", "--abbreviations", "words.txt"]
    assert main(call) == 0
    words.write_text("anm\n")  # the same word
    assert main(call) == 0
    words.write_text("Anm.\nAbb.\n")
    assert "its abbreviations is ['anm'], not ['abb', 'anm']" in refused(*call)
    assert "holds another job" in refused(*call[:-2])
