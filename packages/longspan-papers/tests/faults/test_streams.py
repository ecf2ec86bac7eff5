"""Standard streams that are closed, full, cut off or in a small encoding; what reaches a terminal."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forked import without_leaks
from longspan.characters import on_one_line
from longspan.cli import main

HOSTILE = (
    "Marmots \x1b]0;owned\x07 live in the \x1b[31mmountains\x1b[0m of the far north today.\n\n"
    "They \x9b2J sleep \x1b]8;;http://evil\x1b\\through\x1b]8;;\x1b\\ the winter in \u202edeep\u202c burrows.\n\n"
    "A whistle\x7f\x08\x85 warns \u2066of\u2069 danger \x1bP$q\x1b\\ and every one of them hides at once.\n"
)
PLAIN = "“Marmots” live – Grüße – in the mountains. They cost 5 € today… and żyją tam. 土拨鼠 sleep."
STEERS = set(map(chr, (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))))


def run(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a shell line in which LONGSPAN stands for the command."""
    command = command.replace("LONGSPAN", f"'{sys.executable}' -m longspan.cli")
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=os.environ | environment, capture_output=True, check=False
    )


EACH = """
import gc, json, os, sys
from forked import import_all
from longspan.cli import main
import_all()
gc.freeze()
for command in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        sys.exit(main(command))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(2, f"\\nexit {code}\\n".encode())
"""


def run_each(commands: list[str], line: str, folder: Path) -> list[tuple[int, list[str]]]:
    """Exit code and lines of errors of each command, in a process of its own with the streams that the shell line gives
    to COMMANDS; they are forked from one that has imported everything, which takes longer than all of them."""
    script = folder.parent / "each.py"
    script.write_text(EACH)
    python = shlex.join([sys.executable, str(script), json.dumps([shlex.split(command) for command in commands])])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        ["bash", "-c", line.replace("COMMANDS", python)], cwd=folder, env=environment, capture_output=True, check=False
    )
    *every, _ = re.split(r"^exit (-?\d+)\n", done.stderr.decode(), flags=re.MULTILINE)
    said = [without_leaks(errors).splitlines() for errors in every[::2]]
    errors = [[line for line in lines if line and not line.startswith("[")] for lines in said]
    return list(zip(map(int, every[1::2]), errors, strict=True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").write_text("Marmots live in the mountains. They sleep all winter. A whistle warns.")
    (folder / "plain.txt").write_text(PLAIN, encoding="utf-8")
    return folder


REFUSED = {
    "closed input": ("LONGSPAN summarize - <&-", "standard input is closed"),
    "closed input of answer": ("LONGSPAN answer - 'why?' <&-", "standard input is closed"),
    "closed output": ("LONGSPAN mechanisms >&-", "standard output is closed"),
    "closed output of help": ("LONGSPAN --help >&-", "standard output is closed"),
    "endless output of a pipe": ("yes | head -c 300000000 | LONGSPAN summarize -", "longer than 256 MiB"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line(case: str, folder: Path) -> None:
    command, says = REFUSED[case]
    done = run(command, folder)
    errors = [line for line in done.stderr.decode().splitlines() if not line.startswith("[")]
    assert done.returncode == 2, done
    assert len(errors) == 1, errors
    assert errors[0].startswith("error: ")
    assert says in errors[0]
    assert sorted(path.name for path in folder.iterdir()) == ["a.txt", "plain.txt"]


WRITING = [
    "generate MODEL 'a b' --max-tokens 3",
    "generate MODEL 'a b' --max-tokens 3 --json",
    "generate MODEL 'a b' --max-tokens 3 --beams 2",
    "answer a.txt 'what warns?'",
    "embed a.txt plain.txt",
    "importance a.txt --json",
    "plan MODEL --no-time",
    "noise a.txt",
    "recipes",
    "draw 'window(3)' --tokens 8 --out ../pattern.png",
    "summarize a.txt",
    "mechanisms",
    "mechanisms --json",
    "--version",
]


@pytest.mark.slow
def test_a_full_disk_and_a_reader_who_has_gone(folder: Path, made_checkpoints: dict[str, Path]) -> None:
    """Behind standard output: one sentence for the disk, silence for the reader, and never a word about the model."""
    commands = [command.replace("MODEL", shlex.quote(str(made_checkpoints["writer"]))) for command in WRITING]
    before = sorted(folder.iterdir())
    full = "error: standard output cannot be written (no space left on device); send it elsewhere"
    for command, found in zip(commands, run_each(commands, "COMMANDS > /dev/full", folder), strict=True):
        assert (command, found) == (command, (2, [full]))
    for command, (code, errors) in zip(commands, run_each(commands, "COMMANDS | true", folder), strict=True):
        assert (command, code in {0, 1}, errors) == (command, True, [])
    assert sorted(folder.iterdir()) == before


@pytest.mark.slow
def test_what_works_without_a_stream(folder: Path) -> None:
    assert run("LONGSPAN mechanisms 2>&- | head -1 && exit ${PIPESTATUS[0]}", folder).returncode in {0, 1}
    assert run("LONGSPAN summarize missing.txt 2>&-", folder).returncode == 2
    full = run("LONGSPAN mechanisms >/dev/full", folder)
    assert full.returncode == 2
    assert full.stderr.decode().splitlines()[-1].endswith("(no space left on device); send it elsewhere")
    closed = run("LONGSPAN summarize a.txt -n 1 <&-", folder)
    assert (closed.returncode, closed.stdout.decode().count("\n")) == (0, 1)


@pytest.mark.slow
def test_a_pipe_of_the_shell_is_read(folder: Path) -> None:
    for command in ("LONGSPAN summarize <(cat a.txt) -n 1", "cat a.txt | LONGSPAN summarize /dev/stdin -n 1"):
        done = run(command, folder)
        assert done.returncode == 0, done.stderr
        assert done.stdout.decode().strip() in (folder / "a.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_an_encoding_without_all_characters(encoding: str, folder: Path) -> None:
    done = run("LONGSPAN summarize plain.txt -n 9; LONGSPAN summarize 'ż\ufffd.txt'", folder, PYTHONIOENCODING=encoding)
    text = done.stdout.decode(encoding)
    for part in ("Marmots", "live", "in the mountains", "zyja tam", "sleep", "5 EUR", "today..."):
        assert part in text.replace("…", "..."), text
    assert ("Grüße" if encoding != "ascii" else "Gru") in text
    assert b"Traceback" not in done.stderr
    assert done.stderr.decode(encoding).splitlines()[-1].startswith("error: z?.txt does not exist")


@pytest.mark.parametrize("verb", [["summarize"], ["answer"]])
@pytest.mark.parametrize("suffix", [".txt", ".md", ".html"])
def test_nothing_of_a_document_steers_a_terminal(
    verb: list[str], suffix: str, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"bad\x1b[31m\n\u202ename{suffix}"
    path.write_text(f"<html><p>{HOSTILE}" if suffix == ".html" else HOSTILE, encoding="utf-8")
    monkeypatch.setenv("NO_COLOR", "1")
    question = ["-q", "where do \x1b[1mmarmots live?", "-q", "why?"] if verb == ["answer"] else ["-n", "9"]
    assert main([*verb, str(path), *question]) == 0
    out, err = capsys.readouterr()
    assert "mountains" in out
    assert not STEERS & set(out + err)
    assert all(line.startswith(("[", "note:")) for line in err.splitlines())
    assert main([*verb, str(path), *question, "--json"]) == 0
    out = capsys.readouterr().out
    assert not STEERS & set(out)
    record = json.loads(out)[0]
    asked = verb == ["answer"]
    assert (record["passages"][0] if asked else record)["file"] == (on_one_line(str(path)) if asked else str(path))
    if suffix == ".txt":
        said = [passage["quote"] for passage in record["passages"]] if asked else record["sentences"]
        assert all(HOSTILE[one["start"] : one["end"]].split() == one["text"].split() for one in said)


@pytest.mark.slow
def test_a_real_terminal_gets_colours_of_ours_alone(tmp_path: Path, on_a_terminal: Callable[..., str]) -> None:
    (tmp_path / "a.txt").write_text(HOSTILE, encoding="utf-8")
    command = [sys.executable, "-m", "longspan.cli", "answer", "a.txt", "where do marmots live?", "--threshold", "0"]
    text = on_a_terminal(command, cwd=tmp_path, env=os.environ | {"TERM": "xterm-256color"})
    for sequence in ("\x1b]", "\x1bP", "\x9b", "\x07", "\u202e", "\x1b[31m", "\x7f", "\x08"):
        assert sequence not in text
    assert "owned" in text or "through" in text or "warns" in text


HALVES = {
    "a.html": ("<html><p>Marmots live &#xD83D; in the mountains. They sleep.</html>", 1),
    "a.md": ("Marmots live &#55357; in the *mountains*. They sleep &#xDE00;.", 2),
    "a.txt": (b"\xff\xfe" + "Marmots live in the mountains. They sleep.".encode("utf-16-le"), 0),
}


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("verb", ["summarize", "answer"])
def test_half_characters_of_a_document_are_replaced_with_a_note(
    verb: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    data, count = HALVES[name]
    (tmp_path / name).write_bytes(data.encode() if isinstance(data, str) else data)
    assert main([verb, str(tmp_path / name), *(["why?"] if verb == "answer" else ["-n", "9"])]) == 0
    assert "Marmots" in capsys.readouterr().out
    notes = [record.getMessage() for record in caplog.records if "broken character" in record.getMessage()]
    assert len(notes) == bool(count)
    if count:
        assert notes[0].startswith(f"note: {tmp_path / name}: {count} broken")


def test_half_characters_of_a_text_are_replaced_with_a_note() -> None:
    import longspan

    text = "Marmots live \ud83d in the mountains. They sleep all winter."
    summary = longspan.summarize(text, 2)
    assert "live \ufffd in" in summary.text
    assert "1 broken character was" in (summary.note or "")
    found = longspan.answer(text, "why?")
    assert "live \ufffd in" in found.passages[0].text
    assert "1 broken character was" in (found.note or "")


@pytest.mark.parametrize("verb", ["train", "tokenizer"])
def test_rows_with_half_characters_are_counted_by_skip(
    verb: str, tmp_path: Path, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from longspan.data.corpus.sources import Corpus
    from longspan.data.summaries.readers import read_rows

    rows = [{"document": f"word {n} of it", "summary": "a b"} for n in range(5)]
    path = tmp_path / "a.jsonl"
    lines = [json.dumps(row) for row in rows]
    lines.insert(2, '{"document": "cut \\ud83d here", "summary": "a b"}')
    path.write_text("\n".join(lines))
    if verb == "train":
        assert len(list(read_rows(path, on_error="skip"))) == 5
    else:
        assert len(list(Corpus(source=str(path), on_error="skip").texts())) == 5
    assert "1 corrupt record was skipped; the first: " in caplog.text
    assert "line 3" in caplog.text


@pytest.mark.parametrize("name", [r"a$\frac{$.txt", "$x^$", "a_{b$\\bad$", "\x1b[1m\n$$.txt"])
def test_file_names_are_no_formulas_in_pictures(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / name
    path.write_text(r"It costs $5 or $\frac{6$ today. Marmots live in the mountains. They sleep $_ all winter.")
    picture = tmp_path / "p.svg"
    for command in (["summarize", str(path)], ["answer", str(path), r"does $\frac{ cost?", "--threshold", "0"]):
        assert main([*command, "--picture", str(picture)]) == 0, capsys.readouterr().err
        assert picture.stat().st_size > 1000
        picture.unlink()


def test_streams_are_as_they_were_afterwards(monkeypatch: Any) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["--version"]) == 0
    assert stream.errors == "strict"


def test_every_command_writes_through_the_one_door() -> None:
    import longspan.cli as package

    folder = Path(str(package.__file__)).parent
    for file in folder.glob("*.py"):
        if file.name not in {"terminal.py", "demo.py"}:
            source = file.read_text(encoding="utf-8")
            for door in ("typer.echo(", "print(json", " print(", ".write("):
                assert door not in source.replace("Console().print(", ""), f"{file.name}: {door}"
