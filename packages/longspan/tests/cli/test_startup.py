"""Start-up: what the everyday commands load, and what that costs a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import longspan

NOTE = (
    "The cat sat on the mat. It was a warm day in June. Birds sang in the tall trees near the river. A dog ran past "
    "the old house. The cat did not move at all. In the evening, the rain came and everyone went home.\n"
)
HEAVY = (
    "transformers",
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.tensor",
    "sympy",
    "sklearn",
    "matplotlib",
)
COMMANDS = {
    "answer": ["answer", "note.txt", "what did the cat sit on?"],
    "mechanisms": ["mechanisms"],
}
RUN = """
import re, sys
sys.argv[0] = "longspan"
if sys.argv[1:]:
    from longspan.cli import main
    code = main(sys.argv[1:])
else:
    import torch
    code = 0
try:  # not getrusage, whose peak begins with that of the process that forked this one
    peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024
except OSError:
    peak = 0
print(peak, *sorted(sys.modules), file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture
def note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "note.txt"
    file.write_text(NOTE, encoding="utf-8")
    return file


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_loads_only_what_it_needs(name: str, note: Path) -> None:
    _, loaded = run(*COMMANDS[name])
    assert "torch" in loaded
    assert not [module for module in HEAVY if module in loaded]


@pytest.mark.slow
def test_an_index_is_asked_without_pytorch(note: Path) -> None:
    longspan.index(note, "index")
    _, loaded = run("answer", "--index", "index", "what did the cat sit on?")
    assert "numpy" in loaded
    assert not [module for module in ("torch", *HEAVY, "scipy", "bm25s") if module in loaded]


@pytest.mark.slow
def test_six_sentences_are_summarised_without_pytorch(note: Path) -> None:
    """Starting is importing: a short note takes half of the modules and of the memory of PyTorch alone."""
    (ours, loaded), (torch_alone, modules) = run("summarize", str(note)), run()
    assert not [module for module in ("torch", *HEAVY, "langdetect") if module in loaded]
    assert len(loaded) < len(modules) / 2
    assert ours < torch_alone / 2


def run(*arguments: str) -> tuple[float, set[str]]:
    """Peak megabytes and modules of `longspan` in a process of its own; without arguments, of PyTorch alone."""
    result = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, check=True, encoding="utf-8"
    )
    assert bool(result.stdout.strip()) == bool(arguments)
    megabytes, *modules = result.stderr.splitlines()[-1].split()
    return float(megabytes), set(modules)
