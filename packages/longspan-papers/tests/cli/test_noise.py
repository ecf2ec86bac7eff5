"""`longspan noise`: before and after, colours, JSON, single noises, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from longspan.cli import main
from longspan_papers.dialogue.reading import read_dialogues

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


def test_one_turn_and_one_word_are_said_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "short.txt").write_text("Ann: hi there\nBob: yes\n", encoding="utf-8")
    _, note = run(capsys, str(tmp_path / "short.txt"))
    assert note.strip() == "[turn 1 of 2; 1 speaker masked; 1 word hidden by 1 mask]"


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
    file.write_text('{"turns": []}\n')
    assert "has no dialogue with words" in refused("noise", file)


def test_the_encoding_of_subtitles_is_named_and_of_records_known(tmp_path: Path, refused: Callable[..., str]) -> None:
    film = tmp_path / "film.srt"
    film.write_bytes("1\n00:00:01,000 --> 00:00:02,000\nANN: Ça va, café crème?\n".encode("cp1252"))
    assert "name its encoding" in refused("noise", film)
    (dialogue,) = read_dialogues(film, encoding="cp1252")
    assert dialogue.text == "ANN: Ça va, café crème?"
    assert main(["noise", str(film), "--encoding", "cp1252"]) == 0
    for name in ("talks.jsonl.gz", "film.xml"):
        assert "whose encoding is known; leave it out" in refused("noise", tmp_path / name, "--encoding", "cp1252")


SPEECH = " ".join(f"This is sentence number {number} of a very long speech." for number in range(90))
TIMES = ("00:00:20,000 --> 00:00:40,000", "00:00:07,500 --> 00:00:41,000", "00:00:19,000 --> 00:00:18,000")
UNTIDY = {
    "one-speaker.txt": ("".join(f"Ann: I say sentence {number}. It is good.\n" for number in range(9)), 9, ("Ann",)),
    "no-marks.txt": ("".join(f"I say sentence number {number}.\n" for number in range(9)), 9, ()),
    "empty-turns.txt": ("Ann: We begin now.\nBob:\n\nAnn: \nBob: ...\nBob: That is fine.\n" * 3, 6, ("Ann", "Bob")),
    "long-turn.txt": (f"Ann: Hello to you.\nBob: {SPEECH}\nAnn: Thank you.\nBob: Please.\n", 4, ("Ann", "Bob")),
    "long-turn-alone.txt": (f"Bob: {SPEECH}\n", 1, ("Bob",)),
    "colons.txt": ("R2:D2: I repeat: beep.\nC:3PO: I see: it is 12:30.\n" * 3, 6, ("R2:D2", "C:3PO")),
    "windows.txt": ("Ann: We talk now.\r\nBob: Yes, that is fine.\r\n" * 3, 6, ("Ann", "Bob")),
    "old-mac.txt": ("Ann: We talk now.\rBob: Yes, that is fine.\r" * 3, 6, ("Ann", "Bob")),
    "overlap.txt": ("[00:20] Ann: We talk now.\n[00:07] Bob: Yes, that is fine.\n" * 3, 6, ("Ann", "Bob")),
    "overlap.srt": ("".join(f"1\r\n{time}\r\nANN: It is {time[6:8]}.\r\n\r\n" for time in TIMES), 3, ("ANN",)),
}
"""An untidy dialogue of each kind, with its turns and its speakers."""


@pytest.mark.parametrize("name", UNTIDY)
def test_untidy_dialogues_are_read_disturbed_and_summarised(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, turns, speakers = UNTIDY[name]
    file = tmp_path / name
    file.write_bytes(text.encode())
    (dialogue,) = read_dialogues(file)
    assert (len(dialogue.turns), dialogue.speakers) == (turns, speakers)
    assert not any("\r" in turn.line or "-->" in turn.line for turn in dialogue.turns)
    (record,) = json.loads(run(capsys, str(file), "--json", "--seed", "2")[0])
    assert record["target"] in dialogue.text
    assert main(["summarize", str(file), "--sentences", "1"]) == 0
    summary = capsys.readouterr().out.strip()
    words = summary.removeprefix(f"{summary.partition(': ')[0]}: ")
    assert words
    assert words in dialogue.text
    if name == "overlap.srt":  # sorted by when they begin, without their times
        assert [turn.text for turn in dialogue.turns] == ["It is 07.", "It is 19.", "It is 20."]
        assert "-->" not in summary


@pytest.mark.parametrize(
    ("name", "text"), [("empty.txt", ""), ("blank.txt", " \r\n"), ("wordless.srt", f"1\n{TIMES[0]}\n\n")]
)
def test_what_holds_no_words_is_refused(name: str, text: str, tmp_path: Path, refused: Callable[..., str]) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    for command in ("noise", "summarize"):
        assert any(words in refused(command, file) for words in ("is empty", "holds no text", "holds no subtitles"))


@pytest.mark.parametrize(
    "options", [["--only", "split", "--without", "split"], ["--without", "split", "--only", "merge", "--only", "split"]]
)
def test_a_noise_that_is_asked_for_and_left_out(
    options: list[str], tmp_path: Path, refused: Callable[..., str]
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("Anna: one two.\nBert: three four.\n", encoding="utf-8")
    assert "--only split and --without split contradict each other" in refused("noise", file, *options)
