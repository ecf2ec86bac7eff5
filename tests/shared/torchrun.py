"""Scripts in several processes, as torchrun starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def torchrun(processes: int, script: Path | list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """A script, or `["-m", module]`, in so many processes of one thread each."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return subprocess.run(
        [*command, *(script if isinstance(script, list) else [str(script)]), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
