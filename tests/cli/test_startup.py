"""Start-up: what the everyday commands load, and what that costs a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
    "summarize": ["summarize", "note.txt"],
    "answer": ["answer", "note.txt", "what did the cat sit on?"],
    "mechanisms": ["mechanisms"],
}
RUN = """
import re, sys, time
sys.argv[0] = "longspan"
from longspan.cli import main
code = main(sys.argv[1:])
seconds = time.process_time()
try:  # not getrusage, whose peak begins with that of the process that forked this one
    peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024
except OSError:
    peak = 0
print(seconds, peak, *sorted(sys.modules), file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture
def note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "note.txt"
    file.write_text(NOTE, encoding="utf-8")
    return file


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_loads_only_what_it_needs(name: str, note: Path) -> None:
    _, _, loaded = run(*COMMANDS[name])
    assert "torch" in loaded
    assert not [module for module in HEAVY if module in loaded]


@pytest.mark.slow
def test_six_sentences_are_summarised_in_little_time_and_memory(note: Path) -> None:
    costs = [run("summarize", str(note)) for _ in range(3)]
    # Other processes make processor time longer, never shorter: the least of three is the nearest to the truth.
    assert min(seconds for seconds, _, _ in costs) < 2.5
    assert max(megabytes for _, megabytes, _ in costs) < 500


def run(*arguments: str) -> tuple[float, float, set[str]]:
    """Processor seconds, peak megabytes and modules of `longspan` in a process of its own."""
    result = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, check=True, encoding="utf-8"
    )
    assert result.stdout.strip()
    seconds, megabytes, *modules = result.stderr.splitlines()[-1].split()
    return float(seconds), float(megabytes), set(modules)
