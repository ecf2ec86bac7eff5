"""The engine of one machine: processes that each do one part after another, and outlive no document that ends them.

A worker says which row it begins. When its process ends, whatever ended it (the system, for memory; a fault in a
library; somebody's signal), another one does the part again; the row at which `TRIES` of them ended is left out of the
next attempt, and its error says how the last one ended.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from longspan.errors import InputError
from longspan.files import temporary_folder
from longspan.workers import end_with_parent, how_it_died, start
from longspan_documents.mapping.job import Job, Part
from longspan_documents.mapping.results import DamagedInputError, Desk, Done

TRIES = 3
"""Processes that a row may end before it is left out."""
STARTS, BROKEN_STARTS = 10, 2
"""Processes that may end one after another before one is ready: by signals, or by themselves."""
REFUSED, DAMAGED = "refused", "damaged"
"""What a worker says that has no result: of the job or its output, of the input of its part."""


@dataclass
class _Worker:
    """A process, as this one sees it."""

    process: Any
    connection: Connection
    log: Path
    ready: bool = False
    part: Part | None = None
    row: int | None = None


@dataclass(frozen=True)
class Damaged:
    """A part whose rows cannot be read; the sentence says why."""

    part: Part
    reason: str


@dataclass
class Crew:
    """Workers that do the parts of a job; a context, at whose end they have ended.

    Args:
        job: planned.
        folder: of the output.
        workers: how many.
        threads: of each.
    """

    job: Job
    folder: Path
    workers: int
    threads: int = 1
    _crew: list[_Worker] = field(default_factory=list)
    _ended_at: Counter[tuple[int, int | None]] = field(default_factory=Counter)
    """(part, row) → how many processes ended there."""
    _deadly: dict[int, dict[int, str]] = field(default_factory=dict)
    """Part → the rows that are left out, with the reason."""
    _failed_starts: int = 0

    def __enter__(self) -> Crew:
        self._temporary = temporary_folder()
        self._logs = self._temporary.__enter__()
        self._started = 0
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        for worker in self._crew:
            if kind is not None or worker.part is not None:
                worker.process.kill()
            worker.connection.close()  # one that waits for a part ends by this
        for worker in self._crew:
            worker.process.join()
        self._crew.clear()
        self._temporary.__exit__(None, None, None)

    def run(self, parts: Sequence[Part], report: Callable[[int], None] = lambda _: None) -> Iterator[Done | Damaged]:
        """Do parts, and yield each when it is on the disk.

        Args:
            parts: of the job.
            report: is told after every row how many rows are under way in parts that are not finished.

        Raises:
            InputError: no worker can start, or the output cannot be written.
        """
        left = deque(parts)
        busy = 0
        while left or busy:
            self._fill(min(self.workers, len(left) + busy))
            for worker in self._crew:
                if worker.ready and worker.part is None and left:
                    self._give(worker, left.popleft())
            for worker in self._speaking():
                given = worker.part
                result = self._heard(worker)
                if worker not in self._crew and given is not None:
                    left.appendleft(given)
                if result is not None:
                    yield result
            busy = sum(worker.part is not None for worker in self._crew)
            report(sum(worker.row or 0 for worker in self._crew if worker.part is not None))

    def wait_until_ready(self) -> None:
        """Return when all workers have loaded their models; errors as in `run`, which needs not be preceded by it."""
        while len(self._crew) < self.workers or not all(worker.ready for worker in self._crew):
            self._fill(self.workers)
            for worker in self._speaking():
                self._heard(worker)

    def _fill(self, wanted: int) -> None:
        while len(self._crew) < wanted:
            self._crew.append(self._start())

    def _speaking(self) -> list[_Worker]:
        """The workers from which something can be read, when there is one."""
        connections = wait([worker.connection for worker in self._crew])
        return [worker for worker in self._crew if worker.connection in connections]

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._started += 1
        log = self._logs / f"{self._started}.log"
        process = context.Process(target=work, args=(self.job, self.folder, log, theirs, self.threads))
        start(process)
        theirs.close()
        return _Worker(process, ours, log)

    def _give(self, worker: _Worker, part: Part) -> None:
        worker.part, worker.row = part, None
        order = {"part": [part.number, part.source, part.first, part.rows], "deadly": self._deadly.get(part.number, {})}
        with suppress(ConnectionError):  # it has ended: what waits to be read says so next
            worker.connection.send_bytes(json.dumps(order).encode())

    def _heard(self, worker: _Worker) -> Done | Damaged | None:
        """What comes of a worker's next message: a result, or nothing yet; one that has ended is buried."""
        try:
            said = json.loads(worker.connection.recv_bytes())
        except (EOFError, ConnectionError):
            self._bury(worker)
            return None
        if "row" in said:
            worker.row = said["row"]
            return None
        if "ready" in said:
            worker.ready, self._failed_starts = True, 0
            return None
        part, worker.part = worker.part, None
        if "rows" in said:
            assert part is not None
            return Done(part, said["rows"], said["errors"])
        if DAMAGED in said:
            assert part is not None
            return Damaged(part, said[DAMAGED])
        raise InputError(said[REFUSED])

    def _bury(self, worker: _Worker) -> None:
        """Note where a process ended, and why."""
        self._crew.remove(worker)
        worker.process.join()
        worker.connection.close()
        why = how_it_died(worker.process.exitcode, worker.log)
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= (STARTS if worker.process.exitcode < 0 else BROKEN_STARTS):
                raise InputError(
                    f"no worker can start: {why}; give fewer workers or more memory, and in a script of Python call "
                    "map_documents below `if __name__ == '__main__':`"
                )
            return
        if worker.part is None:
            return
        place = (worker.part.number, worker.row)
        self._ended_at[place] += 1
        if self._ended_at[place] < TRIES:
            return
        if worker.row is None:
            raise InputError(
                f"workers ended before the first row of {self.job.inputs[worker.part.source].path!r} from row "
                f"{worker.part.first + 1} on: {why}; give more memory, or get the file again"
            )
        self._deadly.setdefault(worker.part.number, {})[worker.row] = f"this document was left out, since {why}"


def work(job: Job, folder: Path, log: Path, connection: Connection, threads: int) -> None:
    """What a worker's process does: parts, until its driver has no more."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver, which ends this process
    with log.open("wb") as said:
        for stream in (1, 2):
            os.dup2(said.fileno(), stream)
    use_threads(threads)

    def tell(**said: Any) -> None:
        connection.send_bytes(json.dumps(said).encode())

    try:
        desk = Desk(job, folder)
    except InputError as error:
        tell(**{REFUSED: str(error)})
        return
    tell(ready=True)
    while True:
        try:
            order = json.loads(connection.recv_bytes())
        except EOFError:
            return
        deadly = {int(row): reason for row, reason in order["deadly"].items()}
        try:
            done = desk.do(Part(*order["part"]), lambda row: tell(row=row), deadly)
            tell(rows=done.rows, errors=done.errors)
        except DamagedInputError as error:
            tell(**{DAMAGED: str(error)})
        except InputError as error:
            tell(**{REFUSED: str(error)})


def use_threads(threads: int) -> None:
    """Let this process, which has computed nothing yet, compute with so many threads."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import torch

    torch.set_num_threads(threads)
