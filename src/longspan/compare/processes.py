"""How the processes of cells are started. Imports nothing heavy, so that it can begin at once."""

from __future__ import annotations

import multiprocessing
import os
import threading
from functools import cache
from pathlib import Path
from typing import Any

from longspan.workers import start

PRELOADED = (
    *("longspan.compare.process", "longspan.models.language_model", "longspan.models.heads.token_classification"),
    *("transformers.trainer", "transformers.training_args", "torch.optim.adamw"),
)
"""What every cell imports; that takes longer than measuring a short row."""


@cache
def processes() -> Any:
    """How processes are started: from one that has imported everything and done nothing, where the system can.

    The first call begins to import there, and does not wait for it.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    from multiprocessing import forkserver

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    before, home = os.environ.get("PYTHONPATH"), str(Path(__file__).parents[2])
    try:  # it is to import this package, wherever this process found it
        os.environ["PYTHONPATH"] = os.pathsep.join([home, before] if before else [home])
        forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH")
        os.environ |= {} if before is None else {"PYTHONPATH": before}
    return context


def wait_until_ready(seconds: float | None) -> bool:
    """Wait until a process starts at once, as all is imported; whether that is so after so many seconds."""

    # Starting the first process waits for the imports without an end, so it waits in a thread.
    def start_one() -> None:
        first = processes().Process(target=_nothing)
        start(first)
        first.join()

    thread = threading.Thread(target=start_one, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _nothing() -> None:
    """What a process does that only shows that one can be started."""
