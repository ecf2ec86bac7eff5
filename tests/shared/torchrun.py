"""Scripts in several processes, as torchrun starts them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
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


def machines(commands: Sequence[Sequence[str]]) -> list[tuple[int, str]]:
    """`longspan …` on as many machines as there are commands, one process each: its exit code and standard error."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    started = []
    for rank, command in enumerate(commands):
        place = ["--nnodes", str(len(commands)), "--node-rank", str(rank), "--master-addr", "127.0.0.1"]
        place += ["--master-port", str(port), "-m", "longspan.cli"]
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *place, *command],
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        )
    errors = [process.communicate()[1] for process in started]
    return [(process.returncode, said) for process, said in zip(started, errors, strict=True)]
