"""The same seed gives the same weights in every start of Python, whose sets have another order each time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forked import forked

DRAWN = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
import torch
from contract.forms import CONFIGS
for name, config in CONFIGS.items():
    torch.manual_seed(3)
    module = config.build(width=6, heads=2, causal=not config.bidirectional)
    values = b"".join(value.numpy().tobytes() for value in module.state_dict().values())
    print(name, hashlib.sha256(values).hexdigest())
"""


@pytest.mark.slow
def test_weights_do_not_depend_on_the_order_of_sets(tmp_path: Path) -> None:
    """Two orders that are given, and one that Python chose."""
    (tmp_path / "drawn.py").write_text(DRAWN)
    command = [sys.executable, str(tmp_path / "drawn.py"), str(Path(__file__).parents[1])]
    drawn = [
        subprocess.run(
            command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    ]
    chosen = forked(1, tmp_path / "drawn.py", *command[2:])
    assert chosen.returncode == 0, chosen.stderr
    assert drawn[0].count("\n") > 60
    assert drawn[0] == drawn[1] == chosen.stdout
