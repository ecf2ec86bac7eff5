"""How the processes of cells are started. Imports nothing heavy, so that it can begin at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from longspan.files import temporary_folder
from longspan.workers import start

PRELOADED = (
    *("longspan.compare.process", "longspan.models.language_model", "longspan.models.heads.token_classification"),
    *("transformers.trainer", "transformers.training_args", "torch.optim.adamw"),
)
"""What every cell imports; that takes longer than measuring a short row."""
SOCKET, LONGEST_ADDRESS = "pymp-12345678/listener-12345678", 103
"""A path as long as that of multiprocessing's socket in a folder; bytes of an address that every system takes."""


@cache
def processes() -> Any:
    """How processes are started: from one that has imported everything and done nothing, where the system can.

    The first call begins to import there, and does not wait for it.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    from multiprocessing import forkserver, resource_tracker, util

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    before, home = os.environ.get("PYTHONPATH"), str(Path(__file__).parents[2])
    # Where this process is killed, nobody removes the folder of its socket, unless it lies in one of ours, which the
    # next call removes. At an end multiprocessing's goes first, as its priority is higher.
    stack, place = ExitStack(), tempfile.tempdir
    folder = stack.enter_context(temporary_folder())
    util.Finalize(None, stack.close, exitpriority=-1000)
    # What is started has Ctrl-C blocked, which a terminal sends to it too, in the middle of its imports. The tracker
    # comes first, as starting it unblocks that.
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:  # it is to import this package, wherever this process found it
        os.environ["PYTHONPATH"] = os.pathsep.join([home, before] if before else [home])
        if len(os.fsencode(folder / SOCKET)) <= LONGEST_ADDRESS:
            tempfile.tempdir = str(folder)
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        tempfile.tempdir = place
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
