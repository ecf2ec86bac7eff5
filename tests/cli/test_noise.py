"""`longspan noise`: before and after, colours, JSON, single noises, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from longspan.cli import main

TALK = "".join(
    f"{name}: This is what I say, number {number}. It is all true. Do you mind?\n"
    for number, name in enumerate(("Ann", "Bob", "R2:D2") * 8)
)


@pytest.fixture
def talk(tmp_path: Path) -> str:
    file = tmp_path / "talk.txt"
    file.write_bytes(TALK.replace("\n", "\r\n").encode())
    return str(file)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    assert main(["noise", *arguments]) == 0
    return capsys.readouterr()


def test_before_and_after(talk: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, note = run(capsys, talk, "--seed", "3")
    before, after = out.split("== after ==\n")
    assert "[start] " in after
    assert "[MASK" in after
    assert "[MASK" not in before
    assert set(before.strip().split("\n")[1:]) <= set(TALK.split("\n"))
    assert " of 24; " in note
    assert run(capsys, talk, "--seed", "3") == (out, note)


def test_json_and_single_noises(talk: str, capsys: pytest.CaptureFixture[str]) -> None:
    (record,) = json.loads(run(capsys, talk, "--json", "--only", "permute", "--only", "speakers")[0])
    assert record["split"] is None
    assert record["merged"] is None
    assert record["hidden"] == []
    assert len(record["masked"]) > 0
    assert record["target"] in TALK
    (record,) = json.loads(run(capsys, talk, "--json", "--without", "split", "--without", "permute")[0])
    assert record["merged"] is not None
    assert record["order"] == sorted(record["order"])
    (record,) = json.loads(run(capsys, talk, "--json", "--setting", "script")[0])
    assert "[MASK_SPEAKER]" not in record["source"]


def test_a_terminal_gets_colours(
    talk: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[7;" in run(capsys, talk)[0]


def test_a_file_of_several_and_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "talks.jsonl"
    file.write_text("".join(json.dumps({"dialogue": f"Ann: {name}.\nBob: Yes."}) + "\n" for name in "abc"))
    assert "Ann: c." in run(capsys, str(file), "--dialogue", "3", "--around", "9")[0]
    lines = tmp_path / "lines.txt"
    lines.write_text("Who is there?\nNobody.\n")
    assert "nobody is named" in run(capsys, str(lines))[1]


def test_what_is_refused(tmp_path: Path, talk: str, refused: Callable[..., str]) -> None:
    file, dots = tmp_path / "talks.jsonl", tmp_path / "dots.txt"
    file.write_text('{"dialogue": "A: b."}\n')
    dots.write_text("...\n")
    assert "--dialogue 2 is more than" in refused("noise", file, "--dialogue", 2)
    assert "is one dialogue" in refused("noise", talk, "--dialogue", 2)
    assert "noise 'colour' is unknown" in refused("noise", talk, "--only", "colour")
    assert "has no turn with words" in refused("noise", dots)
    assert "does not exist" in refused("noise", tmp_path / "none.txt")
