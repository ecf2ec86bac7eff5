"""Processes that work for this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longspan.errors import InputError
from longspan.workers import STARTS, Worker, WorkerEndedError, command_of, how_it_died

TASKS = '''
"""What the workers of these tests do."""

import os, signal, subprocess, sys, time
from pathlib import Path

from longspan.errors import InputError

done = 0

def ready(report, *arguments):
    print("getting ready")
    if "refuse" in arguments:
        raise InputError("no such model")
    if "fail" in arguments:
        raise ValueError("broken")
    if "die" in arguments:
        os.kill(os.getpid(), signal.SIGKILL)

    def do(task):
        global done
        done += 1
        print("a library prints this")
        match task:
            case ["die", code]:
                os._exit(code) if code >= 0 else os.kill(os.getpid(), -code)
            case ["die once", file]:
                if not Path(file).exists():
                    Path(file).touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            case ["fail"]:
                raise ValueError("no such number")
            case ["refuse"]:
                raise InputError("this is no text")
            case ["wait"]:
                report(pid=os.getpid())
                time.sleep(3600)
            case ["start a process"]:
                report(pid=subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]).pid)
                time.sleep(3600)
            case ["read"]:
                return sys.stdin.read()
            case ["count", number]:
                for row in range(number):
                    report(row=row)
        return {"arguments": arguments, "task": task, "done": done, "pid": os.getpid()}

    return do
'''
MODES = pytest.mark.parametrize("forks", [False, True])
Make = Callable[..., Worker]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes workers, which are closed at the end."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/tasks_of_tests.py").write_text(TASKS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    made: list[Worker] = []

    def make_one(*arguments: str, forks: bool = False) -> Worker:
        command = command_of("tasks_of_tests:ready", *arguments, forks=forks)
        made.append(Worker(command, tmp_path / f"{len(made)}.log"))
        return made[-1]

    yield make_one
    for worker in made:
        worker.close()


def gone(pid: int) -> bool:
    """Whether a process has ended, or ends in a moment."""
    while True:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)  # whoever runs the tests ends them where this is never so


@MODES
def test_tasks_are_done_one_after_another(make: Make, forks: bool, tmp_path: Path) -> None:
    worker = make("ä", forks=forks)
    first, second = worker.do({"x": "€" * 100_000}), worker.do(["again"])
    assert first["task"] == {"x": "€" * 100_000}
    assert first["arguments"] == second["arguments"] == ["ä"]
    # A forked task finds the state in which the worker was made ready.
    assert (first["done"], second["done"]) == ((1, 1) if forks else (1, 2))
    assert (first["pid"] == worker.pid, second["pid"] == worker.pid) == (not forks, not forks)
    rows: list[dict[str, Any]] = []
    worker.do(["count", 3], rows.append)
    assert rows == [{}, {"row": 0}, {"row": 1}, {"row": 2}]
    assert worker.do(["read"]) == ""
    assert "a library prints this" in (tmp_path / "0.log").read_text() or forks


@pytest.mark.variant
@MODES
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (-9, "its process was ended by SIGKILL, as the system does when memory runs out"),
        (-11, "its process was ended by SIGSEGV"),
        (7, "its process ended with code 7: "),
        (0, "its process ended with code 0: "),
    ],
)
def test_what_ends_a_process_is_named_and_the_next_task_is_done(
    make: Make, forks: bool, code: int, reason: str
) -> None:
    worker = make(forks=forks)
    with pytest.raises(WorkerEndedError, match=reason) as caught:
        worker.do(["die", code])
    assert (caught.value.code, caught.value.taken) == (code, True)
    assert worker.do(["again"])["done"] == 1


@MODES
def test_an_exception_ends_the_process_and_its_last_line_is_told(make: Make, forks: bool) -> None:
    worker = make(forks=forks)
    with pytest.raises(WorkerEndedError, match="its process ended with code 1: ValueError: no such number"):
        worker.do(["fail"])
    assert worker.do(["again"])["done"] == 1


@MODES
def test_what_is_refused_is_raised_here_and_ends_nothing(make: Make, forks: bool) -> None:
    worker = make(forks=forks)
    with pytest.raises(InputError, match="this is no text"):
        worker.do(["refuse"])
    before = worker.pid
    assert worker.do(["again"])["done"] == (1 if forks else 2)
    assert worker.pid == before
    with pytest.raises(InputError, match="no such model"):
        make("refuse", forks=forks).do(["again"])


@pytest.mark.variant
def test_a_process_that_was_killed_before_a_task_tells_nothing_of_the_task(make: Make) -> None:
    worker = make()
    worker.wait_until_ready()
    for _ in range(STARTS + 1):  # one after another, none of them counts once a task was taken
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        assert worker.do(["again"])["done"] == 1


@pytest.mark.variant
@pytest.mark.parametrize(("how", "code"), [("die", -9), ("fail", 1)])
def test_one_that_never_gets_ready_is_an_error(make: Make, how: str, code: int) -> None:
    worker = make(how)
    for _ in range(2):
        with pytest.raises(WorkerEndedError) as caught:
            worker.do(["again"])
        assert (caught.value.code, caught.value.taken) == (code, False)


@pytest.mark.variant
@MODES
def test_limits_of_time_end_the_process_and_the_next_task_is_done(make: Make, forks: bool) -> None:
    worker = make(forks=forks)
    pids: list[int] = []
    with pytest.raises(TimeoutError):
        worker.do(["wait"], lambda progress: pids.extend(progress.values()), seconds=1.0)
    assert all(gone(pid) for pid in pids)
    assert worker.do(["again"])["done"] == 1
    with pytest.raises(TimeoutError):
        make(forks=forks).do(["again"], starting=0.0)


@MODES
def test_a_task_is_cancelled_from_another_thread(make: Make, forks: bool) -> None:
    worker = make(forks=forks)
    pids: list[int] = []

    def hear(progress: dict[str, int]) -> None:
        if progress:
            pids.append(progress["pid"])
            threading.Thread(target=worker.close).start()

    with pytest.raises(WorkerEndedError):
        worker.do(["wait"], hear)
    assert gone(pids[0])
    with pytest.raises(WorkerEndedError, match="closed"):
        worker.do(["again"])


def test_closing_one_whose_process_has_ended_leaves_no_open_pipe(make: Make) -> None:
    worker = make()
    worker.do(["first"])
    process = worker._process
    assert process is not None
    assert process.stdin is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    worker.close()
    assert process.stdin.closed


@MODES
def test_what_is_raised_meanwhile_leaves_no_process(make: Make, forks: bool) -> None:
    """As Ctrl-C does, and the handlers of commands."""
    worker, pids = make(forks=forks), list[int]()

    def tick() -> None:
        if pids:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        worker.do(["wait"], lambda progress: pids.extend(progress.values()), tick=tick)
    assert worker.pid is None
    assert gone(pids[0])


@MODES
def test_processes_that_a_task_has_started_end_with_it(make: Make, forks: bool) -> None:
    worker, pids = make(forks=forks), list[int]()

    def tick() -> None:
        if pids:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        worker.do(["start a process"], lambda progress: pids.extend(progress.values()), tick=tick)
    assert gone(pids[0])


PARENT = """
import os, signal, sys, threading, time
from longspan.workers import Worker, command_of

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell runs the tests in the background
worker = Worker(command_of("tasks_of_tests:ready", forks=sys.argv[1] == "True"))
if sys.argv[2] == "idle":
    print(worker.do(["again"])["pid"], worker.pid, flush=True)
    time.sleep(3600)
if sys.argv[2] == "Ctrl-C":
    worker.wait_until_ready()
    first = worker.pid
    signal.signal(signal.SIGINT, lambda number, frame: print("here"))
    os.killpg(0, signal.SIGINT)  # as a terminal does: to every process of the group
    worker.do(["again"])
    print(first == worker.pid)
    worker.close()
    sys.exit()
worker.do(["wait"], lambda progress: progress and print(progress["pid"], worker.pid, flush=True))
"""


@pytest.mark.variant
@MODES
@pytest.mark.parametrize("state", ["busy", "idle"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_process_ends_with_its_parent_however_that_ends(
    make: Make, forks: bool, state: str, number: signal.Signals, tmp_path: Path
) -> None:
    """The script is no module with a guard for `__main__`: nothing of it is imported by the worker."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT, encoding="utf-8")
    command = [sys.executable, str(script), str(forks), state]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(tmp_path / "t")}
    (tmp_path / "t").mkdir()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as parent:
        assert parent.stdout is not None
        processes = [int(pid) for pid in parent.stdout.readline().split()]
        for pid in processes if state == "busy" else processes[1:]:
            os.kill(pid, 0)  # it is there
        parent.send_signal(number)
        parent.wait()
    assert all(gone(pid) for pid in processes)
    assert list((tmp_path / "t").iterdir()) == []


@MODES
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="this system has no groups of processes")
def test_control_c_at_a_terminal_leaves_the_worker_alone(make: Make, forks: bool, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(forks), "Ctrl-C"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.stdout == "here\nTrue\n"


LOADER = """
import multiprocessing
from longspan.workers import Worker, command_of
from torch.utils.data import DataLoader

if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    with Worker(command_of("tasks_of_tests:ready", forks=True)) as worker:
        worker.wait_until_ready()
        print([batch.tolist() for batch in DataLoader([1, 2, 3], num_workers=1)])
        print(worker.do(["again"])["done"])
"""


@pytest.mark.variant
def test_this_process_may_fork_while_a_worker_is_there(make: Make, tmp_path: Path) -> None:
    """It has a thread that follows the worker."""
    (tmp_path / "script.py").write_text(LOADER)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert done.stdout == "[[1], [2], [3]]\n1\n"
    assert "Error" not in done.stderr


def test_another_thread_may_do_all_of_it(make: Make) -> None:
    worker, found = make(), list[Any]()
    thread = threading.Thread(target=lambda: found.append(worker.do(["again"])["done"]))
    thread.start()
    thread.join()
    assert found == [1]


def test_how_it_died(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert how_it_died(-signal.SIGKILL, log) == (
        "its process was ended by SIGKILL, as the system does when memory runs out"
    )
    assert how_it_died(-signal.SIGTERM, log) == "its process was ended by SIGTERM"
    assert how_it_died(3, log) == "its process ended with code 3: it said nothing"
    log.write_text("Traceback\n\nValueError: no\n\n", encoding="utf-8")
    assert how_it_died(1, log) == "its process ended with code 1: ValueError: no"
    assert how_it_died(3, None) == "its process ended with code 3"
