"""Processes that do work for this one: starting them, ending them with it, and saying how one died.

Imports nothing heavy, so that such a process can begin at once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

from longspan.errors import InputError

RETRIES = (0.1, 0.5)
"""Seconds after which a process is started again that could not be."""
SECONDS = 600
"""Of processor time that a bounded process may take."""
NO_MEMORY = 3
"""Exit code of a bounded process where memory ran out in Python."""
KILLED, TRIES = -9, 2
"""The code of a process that was ended from outside, and how often that may happen."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def start(process: BaseProcess) -> None:
    """Start a process; Ctrl-C and SIGTERM have their effect when it has started.

    Between the fork and the moment at which the new process has read what it is to do, an exception in this one would
    leave it with half a message, of which it prints a traceback of its own. Where the process is forked from a server
    that has just been killed, multiprocessing starts another one, as soon as it can see that the first is gone.
    """
    with _signals_later():
        for pause in RETRIES:
            try:
                process.start()
            except (EOFError, ConnectionError):
                time.sleep(pause)
            else:
                return
        process.start()


def run_python(
    code: str, *arguments: str, data: bytes, timeout: float | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run code in a process of its own, which imports what this one does.

    Args:
        code: of Python.
        arguments: in `sys.argv[1:]`.
        data: its standard input.
        timeout: seconds after which it is ended.

    Raises:
        subprocess.TimeoutExpired: it took longer than `timeout`.
    """
    # -P: no module of the folder in which the user happens to stand.
    command = [sys.executable, "-P", "-c", code, *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(one or os.getcwd() for one in sys.path)}
    return subprocess.run(command, input=data, capture_output=True, check=False, timeout=timeout, env=environment)


def run_bounded(place: str, data: bytes, memory: int, *, name: str, does: str = "reads it") -> bytes | None:
    """What a function makes of some bytes in a process of its own, for a library that may abort the one it is in.

    A process that was killed from outside is started once more.

    Args:
        place: of the function, "module:name"; it takes the bytes and gives a text.
        data: what it is given.
        memory: bytes that the process may take, for `SECONDS` of processor time (Linux; other systems set no bound).
        name: of the file, for the error.
        does: what the process does with the file.

    Returns:
        The text, in UTF-8; None where the process was ended, by a limit or by a fault.

    Raises:
        InputError: the process was killed from outside each time.
        RuntimeError: the function raised something else than `MemoryError`.
    """
    code = f"from {__name__} import _bounded; _bounded()"
    for _ in range(TRIES):
        done = run_python(code, place, str(memory), str(SECONDS), data=data)
        if done.returncode != KILLED:
            break
    else:
        raise InputError(
            f"{name} cannot be read: the process that {does} was ended by SIGKILL {TRIES} times, as the system does "
            "when memory runs out; free some, or give a smaller file"
        )
    if done.returncode < 0 or done.returncode == NO_MEMORY:
        return None
    if done.returncode:
        raise RuntimeError(done.stderr.decode("utf-8", "replace"))
    return done.stdout


def take_at_most(**limits: int) -> None:
    """Bound this process by limits of the system, which Windows has not: `AS` bytes of addresses, `CPU` seconds, …"""
    with suppress(ImportError):
        import resource

        for name, most in limits.items():
            limit = getattr(resource, f"RLIMIT_{name}")
            hard = resource.getrlimit(limit)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            # One second more until the kernel kills, so that it is the limit which is seen and not a kill from outside.
            last = most + (name == "CPU")
            resource.setrlimit(limit, (most, last if hard == resource.RLIM_INFINITY else min(last, hard)))


def _bounded() -> None:
    """The process of `run_bounded`."""
    place, memory, seconds = sys.argv[1:]
    data = sys.stdin.buffer.read()
    module, _, name = place.partition(":")
    function = getattr(import_module(module), name)
    take_at_most(CORE=0, CPU=int(seconds), AS=int(memory))
    try:
        sys.stdout.buffer.write(function(data).encode())
        sys.stdout.flush()
    except MemoryError:
        os._exit(NO_MEMORY)


@contextmanager
def _signals_later() -> Iterator[None]:
    """Deliver signals of a block at its end; only the main thread has handlers to put off."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def remember(number: int, _: FrameType | None) -> None:
        arrived.append(number)

    # A handler that Python did not install reads as None, and could not be put back.
    before = {number: handler for number in SIGNALS if (handler := signal.getsignal(number)) is not None}
    try:
        for number in before:
            signal.signal(number, remember)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in dict.fromkeys(arrived):
            signal.raise_signal(number)


def end_with_parent() -> None:
    """End this process as soon as the one that started it has ended, in whatever way: a killed one stops nobody.

    Called once, by the process that is to end.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "called in a process that multiprocessing started"

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def how_it_died(code: int, log: Path) -> str:
    """Why a process left no result, by its exit code and its log."""
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        memory = ", as the system does when memory runs out" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{memory}"
    said = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"its process ended with code {code}: {lines[-1][:200] if lines else 'it said nothing'}"
