"""Subprocesses that work for this process.

`Worker` is a process that does tasks one after another; the server, `map` and `compare` use it. Tasks, progress and
results are sent as lines of JSON over its standard input and output. It runs a function with the name "module:name"
(see `command_of`), so it imports nothing of the calling script, and does not depend on the threads of this process.
Several workers are followed by as many threads of this process.

`run_python` and `run_bounded` run one call in a separate process, with bytes as input and output.

This module imports nothing large, so that such a process starts fast.
"""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from longspan.errors import InputError

SECONDS = 600
"""CPU time limit in seconds of a bounded process."""
NO_MEMORY = 3
"""Exit code of a bounded process that ran out of memory in Python."""
KILLED, TRIES = -9, 2
"""Exit code of a process that was killed from outside, and maximum number of attempts."""
STARTS, BROKEN_STARTS = 10, 2
"""Maximum number of a worker's processes that may end in a row before they take a task: by signals, or by
themselves."""
POLL = 0.2
"""Seconds between two calls of `tick` while a worker works."""


# A process for many tasks ---------------------------------------------------------------------------------------------


class WorkerEndedError(Exception):
    """The process ended.

    Attributes:
        code: exit code; negative for a signal.
        taken: whether it had taken the task.
    """

    def __init__(self, reason: str, code: int, *, taken: bool) -> None:
        super().__init__(reason)
        self.code = code
        self.taken = taken


class Worker:
    """A process that does one task after another; after it has ended, the next task starts a new one.

    As a context manager, it ends the process at the end. The process also ends when this process ends in any way. It
    leads a process group, so Ctrl-C in a terminal does not reach it, and processes that it starts are killed with it.
    One thread at a time may call the methods; any thread may call `close`.

    Args:
        command: starts the process, see `command_of`.
        log: file for the process's output; None for standard error of this process.
    """

    def __init__(self, command: Sequence[str], log: Path | None = None) -> None:
        self._command = command
        self._log = log
        self._lock = threading.Lock()  # protects `_process` and `_closed`
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._ready = False
        self._failures = 0

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The process id; None if no process has been started, or the last one has ended."""
        return self._process and self._process.pid

    def start(self) -> None:
        """Start the process unless it is running, without waiting until it is ready.

        Raises:
            OSError: the system cannot start a process.
            WorkerEndedError: the worker is closed.
        """
        with self._lock:
            if self._closed:
                raise WorkerEndedError("its worker is closed", 0, taken=False)
            if self._process is not None:
                return
            log = None if self._log is None else self._log.open("wb")
            try:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=_environment(),
                    process_group=0,
                )
            finally:
                if log is not None:
                    log.close()
            self._ready, self._lines = False, queue.SimpleQueue()
        threading.Thread(target=_read_lines, args=(self._process.stdout, self._lines), daemon=True).start()

    def wait_until_ready(self, seconds: float | None = None) -> None:
        """Wait until the process can take a task; starts it if necessary.

        Raises:
            InputError: raised by the function that prepares the process.
            TimeoutError: this takes longer than `seconds`.
            WorkerEndedError: the process ended before it was ready, `STARTS` or `BROKEN_STARTS` times.
            OSError: the system cannot start a process.
        """
        until = None if seconds is None else time.monotonic() + seconds
        while not self._ready:
            self.start()
            try:
                message = self._receive(until, taken=False)
            except WorkerEndedError as error:
                self._count_failure(error)
                continue
            if "refused" in message:
                raise InputError(message["refused"])
            self._ready = True

    def do(
        self,
        task: Any,
        hear: Callable[[dict[str, Any]], None] = lambda _: None,
        *,
        seconds: float | None = None,
        starting: float | None = None,
        tick: Callable[[], None] | None = None,
    ) -> Any:
        """Do a task. If a process ends before it has taken the task, another one gets it.

        Args:
            task: for the function that `command_of` names; JSON.
            hear: called with each progress report of the function, and with {} when the task is taken.
            seconds: time limit, after a process has taken the task.
            starting: time limit in seconds until a process has taken it.
            tick: called every `POLL` seconds meanwhile; an exception that it raises ends the task and its process.

        Returns:
            The result of the function.

        Raises:
            InputError: raised by the function, now or while the process was prepared.
            TimeoutError: a limit was reached; the process was ended.
            WorkerEndedError: the process ended, or no process takes the task, or the worker was closed.
            OSError: the system cannot start a process.
        """
        line = json.dumps(task).encode() + b"\n"
        until = None if starting is None else time.monotonic() + starting
        try:
            while True:
                self.wait_until_ready(None if until is None else max(0.0, until - time.monotonic()))
                try:
                    return self._follow(line, hear, until, seconds, tick)
                except WorkerEndedError as error:
                    if error.taken:
                        raise
                    self._count_failure(error)
        except (InputError, WorkerEndedError):
            raise
        except BaseException:  # the process is still working, or its output is invalid
            self._end()
            raise

    def close(self) -> None:
        """End the process permanently, even during a task; `do` raises `WorkerEndedError`."""
        with self._lock:
            self._closed = True
        self._kill()

    def _follow(
        self,
        line: bytes,
        hear: Callable[[dict[str, Any]], None],
        until: float | None,
        seconds: float | None,
        tick: Callable[[], None] | None,
    ) -> Any:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        with suppress(OSError, ValueError):  # it has ended: the end of its output follows
            process.stdin.write(line)
            process.stdin.flush()
        taken, last = False, {}
        while True:
            message = self._receive(until, taken=taken, tick=tick)
            if not taken:
                taken, self._failures = True, 0
                until = None if seconds is None else time.monotonic() + seconds
                hear({})
            if "progress" in message:
                hear(message["progress"])
            elif "over" not in message:
                last = message
            elif "refused" in last:
                raise InputError(last["refused"])
            elif "answer" in last and message["over"] == 0:
                return last["answer"]
            else:
                raise self._ended(message["over"], taken=True)

    def _receive(self, until: float | None, *, taken: bool, tick: Callable[[], None] | None = None) -> dict[str, Any]:
        """Returns the next message of the process; without one, the process has ended."""
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            try:
                line = self._lines.get(timeout=left if tick is None else min(POLL, POLL if left is None else left))
            except queue.Empty:
                if until is not None and time.monotonic() >= until:
                    raise TimeoutError from None
                if tick is not None:
                    tick()
                continue
            if line is None:
                process, self._ready = self._process, False
                assert process is not None
                code = process.wait()
                self._process = None
                _close_stdin(process)
                raise self._ended(code, taken=taken)
            message = json.loads(line)
            assert isinstance(message, dict), "a message is a JSON object"
            return message

    def _ended(self, code: int, *, taken: bool) -> WorkerEndedError:
        return WorkerEndedError(how_it_died(code, self._log), code, taken=taken)

    def _count_failure(self, error: WorkerEndedError) -> None:
        """Raise an error if too many processes have ended before they took a task, or the worker is closed."""
        self._failures += 1
        if self._closed or self._failures >= (STARTS if error.code < 0 else BROKEN_STARTS):
            self._failures = 0
            raise error

    def _kill(self) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            with suppress(ProcessLookupError):
                if hasattr(os, "killpg"):
                    os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.kill()
            process.wait()
        _close_stdin(process)  # also if it has ended by itself and its end has not been received

    def _end(self) -> None:
        """End the process; the next task starts another one."""
        self._kill()
        self._process, self._ready = None, False


def command_of(place: str, *arguments: Any, forks: bool = False) -> list[str]:
    """Returns the command of a worker.

    Args:
        place: "module:name" of a function, which is called with a function that reports progress (keyword arguments,
            JSON) and then `arguments`. It returns the function that does a task: JSON to JSON. An `InputError` of
            either is raised in the waiting process; any other exception ends the worker's process.
        *arguments: JSON. The system limits the length of a command.
        forks: whether each task runs in a new process, forked from the prepared one, if the system supports it;
            otherwise each runs in a newly started one.
    """
    # -P: do not import modules from the current directory. JSON without spaces is short.
    written = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    code = f"from {__name__} import _work; _work()"
    return [sys.executable, "-P", "-c", code, place, "forks" if forks else "stays", written]


def _environment() -> dict[str, str]:
    """Returns the environment of a Python process with the import path of this one."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def _read_lines(stream: BinaryIO, lines: queue.SimpleQueue[bytes | None]) -> None:
    with stream, suppress(OSError):
        for line in stream:
            lines.put(line)
    lines.put(None)


def _close_stdin(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with suppress(OSError):  # its unread input is discarded
        process.stdin.close()


# In that process ------------------------------------------------------------------------------------------------------

Say = Callable[..., None]


def _work() -> None:
    """The main function of a `Worker`'s process."""
    place, mode, written = sys.argv[1:]
    # Output of libraries must not mix with results, and they must not read tasks.
    orders, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def say(**message: Any) -> None:
        out.write(json.dumps(message).encode() + b"\n")
        out.flush()

    forks = mode == "forks" and hasattr(os, "fork")
    # If tasks are forked, the main thread reads them: a forked process has no other thread.
    tasks = iter(orders.readline, b"") if forks else _tasks_until_the_end(orders)
    try:
        do = _function(place)(lambda **progress: say(progress=progress), *json.loads(written))
    except InputError as error:
        say(refused=str(error))
        return
    say(ready=True)
    for task in tasks:
        say(taken=True)
        if forks:
            say(over=_in_a_fork(lambda task=task: _answer(do, task, say), orders))
        else:
            _answer(do, task, say)
            say(over=0)
            if mode == "forks":
                return


def _function(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _answer(do: Callable[[Any], Any], task: bytes, say: Say) -> None:
    try:
        say(answer=do(json.loads(task)))
    except InputError as error:
        say(refused=str(error))


def _tasks_until_the_end(orders: BinaryIO) -> Iterator[bytes]:
    """Yield tasks; a thread ends this process during one if the parent has ended."""
    lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    idle = threading.Event()

    def listen() -> None:
        _read_lines(orders, lines)
        if not idle.is_set():
            _end_group()

    def tasks() -> Iterator[bytes]:
        while True:
            idle.set()
            line = lines.get()
            if line is None:
                return
            idle.clear()
            yield line

    threading.Thread(target=listen, daemon=True).start()
    return tasks()


def _end_group() -> None:
    """End this process and those that it has started."""
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _in_a_fork(do: Callable[[], None], orders: BinaryIO) -> int:
    """Run a function in a forked process; returns its exit code. Both processes end if the parent has ended."""
    reading, writing = os.pipe()
    lifeline, lifeline_end = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            os.close(lifeline_end)
            threading.Thread(target=lambda: (os.read(lifeline, 1), os._exit(1)), daemon=True).start()
            do()
            code = 0
        except BaseException:  # noqa: BLE001 the exit code reports it
            traceback.print_exc()
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    for descriptor in (writing, lifeline):
        os.close(descriptor)
    # The child has ended if its pipe is closed; the parent has ended if `orders` is readable, since it sends one task
    # at a time.
    ended, _, _ = select.select([reading, orders], [], [])
    if reading not in ended:
        _end_group()
    for descriptor in (reading, lifeline_end):
        os.close(descriptor)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# A process for one call -----------------------------------------------------------------------------------------------


def run_python(
    code: str, *arguments: str, data: bytes, timeout: float | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run code in a separate process with the import path of this one.

    Args:
        code: Python code.
        *arguments: in `sys.argv[1:]`.
        data: its standard input.
        timeout: seconds after which it is ended.

    Raises:
        subprocess.TimeoutExpired: it took longer than `timeout`.
    """
    # -P: do not import modules from the current directory.
    command = [sys.executable, "-P", "-c", code, *arguments]
    return subprocess.run(command, input=data, capture_output=True, check=False, timeout=timeout, env=_environment())


def run_bounded(place: str, data: bytes, memory: int, *, name: str, does: str = "reads it") -> bytes | None:
    """Call a function on bytes in a separate process, for a library that may crash its process.

    A process that was killed from outside is started once more.

    Args:
        place: "module:name" of the function, from bytes to text.
        data: its argument.
        memory: limit of the process's memory in bytes; CPU time is limited to `SECONDS` (both only on Linux).
        name: of the file, for the error.
        does: description of the work, for the error.

    Returns:
        The text, in UTF-8; None if the process was ended by a limit or a crash.

    Raises:
        InputError: the process was killed from outside each time.
        RuntimeError: the function raised another exception than `MemoryError`.
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
    """Limit the resources of this process (not on Windows): `AS` bytes of address space, `CPU` seconds, …"""
    with suppress(ImportError):
        import resource

        for name, most in limits.items():
            limit = getattr(resource, f"RLIMIT_{name}")
            hard = resource.getrlimit(limit)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            # The kernel kills one second later, so that the limit is reported and not a kill from outside.
            last = most + (name == "CPU")
            resource.setrlimit(limit, (most, last if hard == resource.RLIM_INFINITY else min(last, hard)))


def _bounded() -> None:
    """The main function of the process of `run_bounded`."""
    place, memory, seconds = sys.argv[1:]
    data = sys.stdin.buffer.read()
    function = _function(place)
    take_at_most(CORE=0, CPU=int(seconds), AS=int(memory))
    try:
        sys.stdout.buffer.write(function(data).encode())
        sys.stdout.flush()
    except MemoryError:
        os._exit(NO_MEMORY)


def how_it_died(code: int, log: Path | None) -> str:
    """Returns the reason why a process ended without a result, from its exit code and its log, if it has one."""
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        memory = ", as the system does when memory runs out" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{memory}"
    if log is None:
        return f"its process ended with code {code}"
    output = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f"its process ended with code {code}: {lines[-1][:200] if lines else 'it said nothing'}"
