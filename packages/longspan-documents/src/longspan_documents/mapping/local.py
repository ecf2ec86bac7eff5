"""The engine of one machine: worker processes that each compute one part after another.

A worker reports each row that it begins. If its process ends for any reason (out of memory, a crash in a library, a
signal), another one computes the part again. A row at which `TRIES` processes have ended is skipped in the next
attempt, and its error states how the last one ended.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from longspan.errors import InputError
from longspan.files import temporary_folder
from longspan.workers import Worker, WorkerEndedError, command_of
from longspan_documents.mapping.job import Job, Part, saved_job
from longspan_documents.mapping.results import DamagedInputError, Done, PartRunner

TRIES = 3
"""Number of processes that may end at a row before it is skipped."""


@dataclass(frozen=True)
class Damaged:
    """A part whose rows cannot be read, and the error."""

    part: Part
    reason: str


@dataclass(frozen=True)
class _Begun:
    """A row of a part that a worker begins; None before the first."""

    part: Part
    row: int | None


class Crew:
    """A context manager for workers that compute the parts of a job.

    Args:
        job: planned, and saved in the folder.
        folder: of the output.
        workers: number of workers.
        threads: number of threads of each.
    """

    def __init__(self, job: Job, folder: Path, workers: int, threads: int = 1) -> None:
        self.job = job
        self.folder = folder
        self._counts = workers, threads
        self._ended_at: Counter[tuple[int, int | None]] = Counter()
        """(part, row) → number of processes that ended there."""
        self._deadly: dict[int, dict[int, str]] = {}
        """Part → rows that are skipped, with the reason."""

    def __enter__(self) -> Crew:
        self._stack = ExitStack()
        logs = self._stack.enter_context(temporary_folder())
        count, threads = self._counts
        command = command_of(f"{__name__}:ready", str(self.folder), threads)
        self._workers = [self._stack.enter_context(Worker(command, logs / f"{number}.log")) for number in range(count)]
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, parts: Sequence[Part], report: Callable[[int], None] = lambda _: None) -> Iterator[Done | Damaged]:
        """Compute parts, and yield each when it is on disk.

        Args:
            parts: of the job.
            report: called after every row with the number of rows that are finished in unfinished parts.

        Raises:
            InputError: no worker can start, or the output cannot be written.
        """
        left, begun = deque(parts), dict[Part, int | None]()
        events: SimpleQueue[Done | Damaged | _Begun | BaseException] = SimpleQueue()
        for worker in self._workers[: len(parts)]:
            Thread(target=self._follow, args=(worker, left, events), daemon=True).start()
        waiting = len(parts)
        while waiting:
            event = events.get()
            if isinstance(event, BaseException):
                raise event
            if isinstance(event, _Begun):
                begun[event.part] = event.row
            else:
                del begun[event.part]
                waiting -= 1
                yield event
            report(sum(row or 0 for row in begun.values()))

    def wait_until_ready(self) -> None:
        """Wait until all workers have loaded their models; errors as in `run`. Calling it before `run` is optional."""
        for worker in self._workers:
            worker.start()
        for worker in self._workers:
            worker.wait_until_ready()

    def _follow(self, worker: Worker, left: deque[Part], events: SimpleQueue[Any]) -> None:
        """Compute parts with one worker while there are any; results and exceptions become events."""
        try:
            while left:
                try:
                    part = left.popleft()
                except IndexError:  # another worker has taken it
                    return
                while (result := self._attempt(worker, part, events)) is None:
                    pass
                events.put(result)
        except BaseException as error:  # noqa: BLE001 raised in the thread that waits for events
            events.put(error)

    def _attempt(self, worker: Worker, part: Part, events: SimpleQueue[Any]) -> Done | Damaged | None:
        """Compute a part; returns None if the process ended and the part must be computed again."""
        row: int | None = None

        def hear(progress: dict[str, Any]) -> None:
            nonlocal row
            row = progress.get("row")
            events.put(_Begun(part, row))

        order = {"part": [part.number, part.source, part.first, part.rows], "deadly": self._deadly.get(part.number, {})}
        try:
            answer = worker.do(order, hear)
        except WorkerEndedError as error:
            if not error.taken:
                raise InputError(f"no worker can start: {error}; give fewer workers or more memory") from None
            self._note_death(part, row, str(error))
            return None
        if "damaged" in answer:
            return Damaged(part, answer["damaged"])
        return Done(part, answer["rows"], answer["errors"])

    def _note_death(self, part: Part, row: int | None, reason: str) -> None:
        self._ended_at[part.number, row] += 1
        if self._ended_at[part.number, row] < TRIES:
            return
        if row is None:
            raise InputError(
                f"workers ended before the first row of {self.job.inputs[part.source].path!r} from row "
                f"{part.first + 1} on: {reason}; give more memory, or get the file again"
            )
        self._deadly.setdefault(part.number, {})[row] = f"this document was left out, since {reason}"


def ready(report: Callable[..., None], folder: str, threads: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Load the models in a worker's process; returns the function that computes a part."""
    use_threads(threads)
    job = saved_job(Path(folder))
    assert job is not None, f"{folder} holds the job: it is written before any worker starts"
    runner = PartRunner(job, Path(folder))

    def do(order: dict[str, Any]) -> dict[str, Any]:
        deadly = {int(row): reason for row, reason in order["deadly"].items()}
        try:
            done = runner.do(Part(*order["part"]), lambda row: report(row=row), deadly)
        except DamagedInputError as error:
            return {"damaged": str(error)}
        return {"rows": done.rows, "errors": done.errors}

    return do


def use_threads(threads: int) -> None:
    """Set the number of threads of this process, which has computed nothing yet."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import torch

    torch.set_num_threads(threads)
