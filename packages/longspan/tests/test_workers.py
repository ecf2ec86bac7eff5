"""Processes that work for this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from longspan.workers import how_it_died, start


class Started(BaseProcess):
    """A process whose start is interrupted by a signal, and says how far it came."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__()
        self.number, self.whole = number, False

    def start(self) -> None:
        signal.raise_signal(self.number)
        self.whole = True


class Stopped(Exception):
    """What the handler of these tests raises, as those of commands do."""


def _stop(number: int, _: object) -> None:
    raise Stopped(number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_a_process_has_started(number: signal.Signals) -> None:
    before = signal.signal(number, _stop)
    process = Started(number)
    try:
        with pytest.raises(Stopped):
            start(process)
        assert process.whole
        assert signal.getsignal(number) is _stop
    finally:
        signal.signal(number, before)


def test_a_process_is_started_again_where_the_server_that_forks_it_was_killed() -> None:
    """As multiprocessing raises it then, and once more while it cannot see yet that the server is gone."""

    class Process(BaseProcess):
        def __init__(self, *failures: type[Exception]) -> None:
            self.failures = list(failures)

        def start(self) -> None:
            if self.failures:
                raise self.failures.pop(0)

    start(Process(EOFError, ConnectionResetError))
    with pytest.raises(BrokenPipeError):
        start(Process(EOFError, EOFError, BrokenPipeError))


def test_another_thread_starts_a_process_with_handlers_as_they_are() -> None:
    """Python lets only the main thread change them, so there is nothing to put off."""
    found = []

    class Looking(BaseProcess):
        def start(self) -> None:
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=start, args=(Looking(),))
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]


PARENT = """
import multiprocessing, sys, time
from longspan.workers import end_with_parent, start

def work(pipe):
    end_with_parent()
    pipe.send("begun")
    time.sleep(3600)

if __name__ == "__main__":
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=work, args=(there,))
    start(process)
    here.recv()
    print(process.pid, flush=True)
    time.sleep(3600)
"""


def test_a_process_ends_with_its_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT, encoding="utf-8")
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    os.kill(child, 0)  # it is there
    parent.kill()
    assert parent.communicate() == ("", None)  # the pipe closes when the child has ended, too


def test_how_it_died(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert how_it_died(-signal.SIGKILL, log) == (
        "its process was ended by SIGKILL, as the system does when memory runs out"
    )
    assert how_it_died(-signal.SIGTERM, log) == "its process was ended by SIGTERM"
    assert how_it_died(3, log) == "its process ended with code 3: it said nothing"
    log.write_text("Traceback\n\nValueError: no\n\n", encoding="utf-8")
    assert how_it_died(1, log) == "its process ended with code 1: ValueError: no"
