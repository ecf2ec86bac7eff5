"""Jobs in a queue, and the processes that do them: each can be cancelled and has a limit of time and memory.

What a person waits for goes first. Questions and short texts have a process of their own, so that none of them waits
for a book to be read; the other processes take them too where that one is busy, and before anything long. Two processes
rather than one that interrupts its work: a file that is parsed, or a model of someone else's, cannot be interrupted.

Each process is a `longspan.workers.Worker`, followed by a thread of its own; what it does is in
`longspan_documents.serve.worker`. To cancel a job that runs, its worker is closed, and another one starts at once.
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
"""Characters of what is read in about a second."""
STARTING = 300.0
"""Seconds in which a process that has started takes a job; one of a large model may be long in loading it."""
JOB_BYTES = 4096
"""What a finished job counts for, besides its result."""


@dataclass(frozen=True, kw_only=True)
class Models:
    """What reads, in the place of the bundled encoder, for answers, vectors and summaries about a topic, and how.

    Attributes:
        encoder: folder or Hub name of a sentence encoder.
        reranker: folder or Hub name of a cross-encoder, which reads the best passages of an answer again.
        device: where all of them compute, the bundled encoder too; None is the processor.
        dtype: of the weights of those two; None is float32.
        abbreviations: further words that no sentence of any document ends with.
        ocr: whether pages of files that are pictures, and images, are read by text recognition.
    """

    encoder: str | None = None
    reranker: str | None = None
    device: str | None = None
    dtype: str | None = None
    abbreviations: tuple[str, ...] = ()
    ocr: bool = False

    def command(self, limits: Limits) -> list[str]:
        """The command of a worker with these models."""
        return command_of("longspan_documents.serve.worker:ready", {"limits": asdict(limits), **asdict(self)})

    def check(self, limits: Limits) -> None:
        """Load them once, in a worker that is given nothing to do.

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
    """There are as many jobs waiting as the queue holds; come again after so many seconds."""

    def __init__(self, seconds: int) -> None:
        super().__init__(seconds)
        self.seconds = seconds


@dataclass(eq=False)
class Lane:
    """A worker and what it is given: one job at a time.

    Attributes:
        worker: does the jobs.
        quick: whether it takes nothing but what a person waits for.
        idle: whether it waits for a job.
        given: the job that it is to do next.
    """

    worker: Worker
    quick: bool
    idle: bool = True
    given: asyncio.Queue[Job] = field(default_factory=asyncio.Queue)


class Jobs:
    """The queue and its workers; `start` and `stop` belong around its use.

    Args:
        limits: of jobs, and of what is kept of them.
        models: that the workers load.
        folder: for the files of results.
    """

    def __init__(self, limits: Limits, models: Models | None, folder: Path) -> None:
        self.limits = limits
        self.folder = folder
        self._command = (models or Models()).command(limits)
        # The one for what is quick comes first: it is offered each job first.
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
        """End the workers, and every job with them."""
        for job in [*self._waiting, *self._running]:
            self.cancel(job, "the server ends", 503)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown()

    def submit(self, kind: str, arguments: dict[str, Any], characters: int, *, background: bool = False) -> Job:
        """Put a job into the queue.

        Args:
            kind: the name of a method of `JobRunner`.
            arguments: of that method.
            characters: of what is to be read, about.
            background: whether it can be asked for later; without, whoever submitted it waits, and takes its result.

        Raises:
            QueueFullError: too many wait already.
        """
        waiting, held = len(self._waiting), sum(job.characters for job in self._waiting)
        if waiting >= self.limits.queue or (waiting and held + characters > self.limits.waiting_characters):
            raise QueueFullError(max(1, min(60, round(waiting * self._usual_seconds / max(1, self.limits.workers)))))
        job = Job(kind, arguments, characters)
        if background:
            self._known[job.id] = job
        self._waiting.append(job)
        self._hand_out()
        return job

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return len(self._waiting)

    def ahead(self, job: Job) -> int:
        """How many jobs wait before this one."""
        return self._in_order().index(job) if job in self._waiting else 0

    def get(self, key: str) -> Job:
        """The job of this id; `KeyError` where there is none, or it was long ago."""
        return self._known[key]

    def cancel(self, job: Job, error: str = "the job was cancelled", status: int = 409) -> None:
        """End a job that waits or runs."""
        if job.over:
            return
        job.change(state="cancelled", error=error, status=status)
        if job in self._waiting:
            self._waiting.remove(job)
            self._keep(job)
        elif job in self._running:
            self._running[job].worker.close()

    def _in_order(self) -> list[Job]:
        """The jobs that wait, what a person waits for first."""
        return sorted(self._waiting, key=lambda job: not is_quick(job))

    def _hand_out(self) -> None:
        """Give jobs that wait to processes that wait."""
        for lane in self._lanes:
            fitting = (job for job in self._in_order() if is_quick(job) or not lane.quick)
            if lane.idle and (job := next(fitting, None)):
                self._waiting.remove(job)
                lane.idle = False
                lane.given.put_nowait(job)

    async def _work(self, lane: Lane) -> None:
        """Do one job after the other; whatever becomes of one, the next is done."""
        try:
            while True:
                with suppress(OSError):  # then the job says so
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
        """See to it that a job is over, and that the worker can take the next one."""
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
                sentence = f"what was asked for is not done: {reason}; give less text at once, or ask again"
            else:
                sentence = f"the process that does the work does not start ({error}); the terminal shows more"
            job.change(state="failed", error=sentence, status=500 if error.taken else 503)
        except OSError as error:
            sentence = f"the system starts no process for the work ({error.strerror}); ask again later"
            job.change(state="failed", error=sentence, status=503)
        except InputError as error:  # of the models
            job.change(state="failed", error=str(error), status=500)
        except Exception as error:  # no job ends the loop
            logging.getLogger(f"longspan.{__name__}").exception("a job failed")
            said = f"something went wrong ({type(error).__name__}); the terminal shows more"
            job.change(state="failed", error=said, status=500)
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
        """What a worker answers, which writes the result to a file."""
        loop = asyncio.get_running_loop()

        def hear(progress: dict[str, Any]) -> None:
            loop.call_soon_threadsafe(lambda: job.change(**progress))

        task = {"kind": job.kind, "arguments": job.arguments, "file": str(result)}
        limits = {"seconds": self.limits.seconds, "starting": STARTING}
        return await loop.run_in_executor(self._threads, partial(worker.do, task, hear, **limits))

    def _keep(self, job: Job) -> None:
        """Keep a job that is over for who asks later, and forget the oldest where the results are too large."""
        job.arguments = {}
        if job.id not in self._known:
            return
        self._finished[job.id] = job.size + JOB_BYTES
        while len(self._finished) > 1 and sum(self._finished.values()) > self.limits.result_bytes:
            oldest = self._known.pop(self._finished.popitem(last=False)[0])
            if oldest.result is not None:
                with suppress(OSError):  # Windows deletes no file that is being read; it goes with the folder
                    oldest.result.unlink(missing_ok=True)


def is_quick(job: Job) -> bool:
    """Whether a person waits for it: a question, whatever it is about, or little to read."""
    return job.kind == "answer" or job.characters <= QUICK
