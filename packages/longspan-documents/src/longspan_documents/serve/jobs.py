"""A queue of jobs and the processes that run them; each job can be cancelled and has limits of time and memory.

Interactive requests have priority. Questions and short texts have a separate process, so that they never wait for a
book to be read; the other processes also take them if that one is busy, before any long job. There are two kinds of
processes instead of one that interrupts its work, because parsing a file or running a foreign model cannot be
interrupted.

Each process is a `longspan.workers.Worker` with a thread that follows it; it runs `longspan_documents.serve.worker`. To
cancel a running job, its worker is closed, and a new one starts immediately.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from longspan.data.text.abbreviations import abbreviations_from
from longspan.errors import InputError
from longspan.workers import Worker, WorkerEndedError, command_of
from longspan_documents.serve.job import Job
from longspan_documents.serve.limits import Limits

QUICK = 1 << 16
"""Number of characters that are read in about a second."""
STARTING = 300.0
"""Seconds within which a started process must take a job; loading a large model may take long."""
JOB_BYTES = 4096
"""Size that a finished job counts in addition to its result."""


@dataclass(frozen=True, kw_only=True)
class Models:
    """Models that replace the bundled encoder for answers, vectors and summaries with a query, and reading options.

    Attributes:
        encoder: folder or Hub name of a sentence encoder.
        reranker: folder or Hub name of a cross-encoder, which reranks the best passages of an answer.
        device: of all models, including the bundled encoder; None is the CPU.
        dtype: of the weights of encoder and reranker; None is float32.
        abbreviations: further words that do not end a sentence.
        ocr: whether scanned pages and images are read by text recognition.
    """

    encoder: str | None = None
    reranker: str | None = None
    device: str | None = None
    dtype: str | None = None
    abbreviations: tuple[str, ...] = ()
    ocr: bool = False

    def command(self, limits: Limits) -> list[str]:
        """Returns the command of a worker with these models."""
        return command_of("longspan_documents.serve.worker:ready", {"limits": asdict(limits), **asdict(self)})

    def check(self, limits: Limits) -> None:
        """Load the models once, in a worker without a job.

        Raises:
            InputError: one of them cannot be loaded, or is of another kind, or an abbreviation is no word.
        """
        abbreviations_from(self.abbreviations)
        if replace(self, abbreviations=()) == Models():
            return
        with Worker(self.command(limits)) as worker:
            try:
                worker.wait_until_ready()
            except WorkerEndedError:
                named = " ".join(f"{name}={value}" for name, value in asdict(self).items() if value)
                raise InputError(f"{named} ended the process that loads them") from None


class QueueFullError(Exception):
    """The queue is full; the client should retry after `seconds`."""

    def __init__(self, seconds: int) -> None:
        super().__init__(seconds)
        self.seconds = seconds


@dataclass(eq=False)
class Lane:
    """A worker with its current job.

    Attributes:
        worker: runs the jobs.
        quick: whether it takes only interactive and short jobs.
        idle: whether it waits for a job.
        given: the next job.
    """

    worker: Worker
    quick: bool
    idle: bool = True
    given: asyncio.Queue[Job] = field(default_factory=asyncio.Queue)


class Jobs:
    """The queue and its workers; call `start` before its use, and `stop` afterwards.

    Args:
        limits: of jobs, and of stored results.
        models: that the workers load.
        folder: for the files of results.
    """

    def __init__(self, limits: Limits, models: Models | None, folder: Path) -> None:
        self.limits = limits
        self.folder = folder
        self._command = (models or Models()).command(limits)
        # The quick lane comes first: each job is offered to it first.
        kinds = [True] * bool(limits.workers) + [False] * limits.workers
        self._lanes = [Lane(Worker(self._command), quick) for quick in kinds]
        self._waiting: list[Job] = []
        self._known: dict[str, Job] = {}
        self._finished: OrderedDict[str, int] = OrderedDict()
        self._running: dict[Job, Lane] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._threads = ThreadPoolExecutor(max(1, len(kinds)), "worker")
        self._usual_seconds = 1.0

    async def start(self) -> None:
        """Start the workers; they load while the first requests come in."""
        self._tasks = [asyncio.create_task(self._work(lane)) for lane in self._lanes]

    async def stop(self) -> None:
        """Stop the workers, and with them every job."""
        for job in [*self._waiting, *self._running]:
            self.cancel(job, "the server ends", 503)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown()

    def submit(self, kind: str, arguments: dict[str, Any], characters: int, *, background: bool = False) -> Job:
        """Add a job to the queue.

        Args:
            kind: the name of a method of `JobRunner`.
            arguments: of that method.
            characters: approximate length of its texts.
            background: whether the result is stored for a later request; otherwise, the caller waits for the job and
                takes its result.

        Raises:
            QueueFullError: too many jobs are waiting already.
        """
        waiting, queued_characters = len(self._waiting), sum(job.characters for job in self._waiting)
        if waiting >= self.limits.queue or (
            waiting and queued_characters + characters > self.limits.waiting_characters
        ):
            raise QueueFullError(max(1, min(60, round(waiting * self._usual_seconds / max(1, self.limits.workers)))))
        job = Job(kind, arguments, characters)
        if background:
            self._known[job.id] = job
        self._waiting.append(job)
        self._hand_out()
        return job

    @property
    def waiting(self) -> int:
        """The number of waiting jobs."""
        return len(self._waiting)

    def ahead(self, job: Job) -> int:
        """Returns the number of waiting jobs before this one."""
        return self._in_order().index(job) if job in self._waiting else 0

    def get(self, key: str) -> Job:
        """Returns the job of this id.

        Raises:
            KeyError: there is none, or it is no longer stored.
        """
        return self._known[key]

    def cancel(self, job: Job, error: str = "the job was cancelled", status: int = 409) -> None:
        """End a waiting or running job."""
        if job.over:
            return
        job.change(state="cancelled", error=error, status=status)
        if job in self._waiting:
            self._waiting.remove(job)
            self._keep(job)
        elif job in self._running:
            self._running[job].worker.close()

    def _in_order(self) -> list[Job]:
        """Returns the waiting jobs, interactive ones first."""
        return sorted(self._waiting, key=lambda job: not is_quick(job))

    def _hand_out(self) -> None:
        """Assign waiting jobs to idle processes."""
        for lane in self._lanes:
            fitting = (job for job in self._in_order() if is_quick(job) or not lane.quick)
            if lane.idle and (job := next(fitting, None)):
                self._waiting.remove(job)
                lane.idle = False
                lane.given.put_nowait(job)

    async def _work(self, lane: Lane) -> None:
        """Run one job after another; a failed job does not stop the loop."""
        try:
            while True:
                with suppress(OSError):  # the job reports the error
                    lane.worker.start()
                job = await lane.given.get()
                begin = time.monotonic()
                await self._do(job, lane)
                self._usual_seconds += 0.2 * (time.monotonic() - begin - self._usual_seconds)
                lane.idle = True
                self._hand_out()
        finally:
            lane.worker.close()

    async def _do(self, job: Job, lane: Lane) -> None:
        """Run a job until it has ended, and the worker can take the next one."""
        if job.over:
            self._keep(job)
            return
        self._running[job] = lane
        job.change(state="running", doing="Starting")
        result = self.folder / f"{job.id}.json"
        try:
            answer = await self._answer(job, lane.worker, result)
            if "size" in answer:
                job.change(state="done", progress=1.0, doing="Done", result=result, size=answer["size"])
            else:
                job.change(state="failed", **answer)
        except TimeoutError:
            error = f"this took longer than {self.limits.seconds:g} seconds, the limit of this server; give less text"
            job.change(state="failed", error=error, status=504)
        except WorkerEndedError as error:
            reason = str(error) if "memory" in str(error) else f"{error}, most likely for want of memory"
            if error.taken:
                sentence = f"the request failed: {reason}; give less text at once, or try again"
            else:
                sentence = f"the process that does the work does not start ({error}); the terminal shows more"
            job.change(state="failed", error=sentence, status=500 if error.taken else 503)
        except OSError as error:
            sentence = f"the system starts no process for the work ({error.strerror}); ask again later"
            job.change(state="failed", error=sentence, status=503)
        except InputError as error:  # raised by the models
            job.change(state="failed", error=str(error), status=500)
        except Exception as error:  # no job ends the loop
            logging.getLogger(f"longspan.{__name__}").exception("a job failed")
            sentence = f"something went wrong ({type(error).__name__}); the terminal shows more"
            job.change(state="failed", error=sentence, status=500)
        finally:
            del self._running[job]
            if job.state != "done":
                if job.status not in (413, 422):
                    lane.worker.close()
                    lane.worker = Worker(self._command)
                with suppress(OSError):
                    result.unlink(missing_ok=True)
            self._keep(job)

    async def _answer(self, job: Job, worker: Worker, result: Path) -> dict[str, Any]:
        """Returns the response of a worker, which writes the result to a file."""
        loop = asyncio.get_running_loop()

        def hear(progress: dict[str, Any]) -> None:
            loop.call_soon_threadsafe(lambda: job.change(**progress))

        task = {"kind": job.kind, "arguments": job.arguments, "file": str(result)}
        limits = {"seconds": self.limits.seconds, "starting": STARTING}
        return await loop.run_in_executor(self._threads, partial(worker.do, task, hear, **limits))

    def _keep(self, job: Job) -> None:
        """Keep an ended job for later requests, and delete the oldest ones if their results are too large."""
        job.arguments = {}
        if job.id not in self._known:
            return
        self._finished[job.id] = job.size + JOB_BYTES
        while len(self._finished) > 1 and sum(self._finished.values()) > self.limits.result_bytes:
            oldest = self._known.pop(self._finished.popitem(last=False)[0])
            if oldest.result is not None:
                with suppress(OSError):  # Windows cannot delete an open file; it is deleted with the folder
                    oldest.result.unlink(missing_ok=True)


def is_quick(job: Job) -> bool:
    """Whether a job is interactive: a question on any document, or little to read."""
    return job.kind == "answer" or job.characters <= QUICK
