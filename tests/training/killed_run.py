"""Run the command line and kill the process half way through the N-th file that `torch.save` writes.

    python killed_run.py N train RECIPE --output DIR --resume

A checkpoint has three such files (optimizer, schedule, random states), written after the model and before the list
that completes it.
"""

from __future__ import annotations

import os
import signal
import sys

import torch

from longspan.cli import main

number = int(sys.argv.pop(1))
real_save = torch.save
count = 0


def save(value: object, file: str, *arguments: object, **options: object) -> None:
    """Write the file, cut it in half and die, when its turn has come."""
    global count
    count += 1
    real_save(value, file, *arguments, **options)  # pyright: ignore[reportArgumentType]
    if count == number:
        os.truncate(file, os.path.getsize(file) // 2)
        os.kill(os.getpid(), signal.SIGKILL)


torch.save = save  # pyright: ignore[reportAttributeAccessIssue]
sys.exit(main(sys.argv[1:]))
