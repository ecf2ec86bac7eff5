"""Run the command line several times, and kill each process half way through the N-th file that `torch.save` writes.

    python killed_run.py N,M train RECIPE --output DIR --resume

A checkpoint has three such files (optimizer, schedule, random states), written after the model and before the list
that completes it. Each run is a process of its own, forked from one that has imported everything; the exit codes are
printed, −9 for one that was killed.
"""

from __future__ import annotations

import os
import signal
import sys

import torch

from longspan.cli import main
from longspan.training import train  # noqa: F401 (imported once, for all runs)

real_save = torch.save
count = 0
number = 0


def save(value: object, file: str, *arguments: object, **options: object) -> None:
    """Write the file, cut it in half and die, when its turn has come."""
    global count
    count += 1
    real_save(value, file, *arguments, **options)  # pyright: ignore[reportArgumentType]
    if count == number:
        os.truncate(file, os.path.getsize(file) // 2)
        os.kill(os.getpid(), signal.SIGKILL)


torch.save = save  # pyright: ignore[reportAttributeAccessIssue]
for text in sys.argv[1].split(","):
    number = int(text)
    child = os.fork()
    if not child:
        os._exit(main(sys.argv[2:]))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
