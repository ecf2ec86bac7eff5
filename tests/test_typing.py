"""What a type checker sees of the package, for those who write typed programs with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="mypy comes with the 'dev' extra")
pytestmark = pytest.mark.slow

SOURCES = sorted(Path(__file__).parents[1].glob("packages/*/src"))

SCRIPT = """\
from pathlib import Path

import torch
import longspan
from longspan.patterns import First, Window

reveal_type(longspan.lengthen)
reveal_type(longspan.attend)
reveal_type(longspan.summarize)
reveal_type(longspan.answer)

query = torch.zeros(1, 2, 30, 8)
output: torch.Tensor = longspan.attend(query, query, query, pattern=Window(4, 4) | First(1))
summary: longspan.Summary = longspan.summarize("A sentence. Another one.", sentences=1)
lines: list[str] = summary.text.splitlines()
found: longspan.DocumentAnswer = longspan.answer(Path("notes.txt"), "who?")
likely: float | None = found.probability
attention = longspan.MECHANISMS["longformer"]().build(width=64, heads=4)
config = longspan.LongspanConfig(hidden_size=8, num_attention_heads=2)
model: longspan.LongspanModel = longspan.LongspanModel(config)
"""

MISTAKES = """\
number: int = longspan.summarize("A sentence.")
longspan.summarize(3)
longspan.answer("A text.")
longspan.attend(query, query, query)
"""

# The types of PyTorch and transformers are beside the point, and reading them takes five times as long.
SETTINGS = "[mypy]\n[mypy-torch.*,transformers.*]\nfollow_imports = skip\n"


def check(folder: Path, text: str) -> tuple[int, str]:
    (folder / "mypy.ini").write_text(SETTINGS, encoding="utf-8")
    (folder / "script.py").write_text(text, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if SOURCES:
        environment["MYPYPATH"] = os.pathsep.join(map(str, SOURCES))
    options = ["--config-file", "mypy.ini", "--follow-imports=silent"]
    result = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--cache-dir", str(folder / "cache"), "script.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return result.returncode, result.stdout + result.stderr


def test_a_typed_program_passes_and_its_mistakes_are_found(tmp_path: Path) -> None:
    code, output = check(tmp_path, SCRIPT)
    assert code == 0, output
    assert len(re.findall(r'Revealed type is "def \(', output)) == 4, output
    code, output = check(tmp_path, SCRIPT + MISTAKES)
    assert code == 1
    first = SCRIPT.count("\n") + 1
    wrong = [int(line) for line in re.findall(r"script\.py:(\d+): error", output)]
    assert wrong == list(range(first, first + MISTAKES.count("\n"))), output
