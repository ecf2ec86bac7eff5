"""Jobs in a queue, and the processes that do them: each can be cancelled and has a limit of time and memory.

A worker (`longspan.serve.worker`) reads a job as a line of JSON and writes lines of JSON: how far it is, then the
result or one sentence. To cancel one that runs, its process is ended; the next job gets a new one.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from longspan.errors import InputError
from longspan.serve.limits import Limits

State = Literal["waiting", "running", "done", "failed", "cancelled"]

FINISHED = 64
"""Jobs that are remembered with their results, for who asks later."""
LONGEST_LINE = 1 << 28
"""Bytes of a line from a worker."""


@dataclass(frozen=True, kw_only=True)
class Models:
    """What reads, in the place of the bundled encoder, for answers, vectors and summaries about a topic.

    Attributes:
        encoder: folder or Hub name of a sentence encoder.
        reranker: folder or Hub name of a cross-encoder, which reads the best passages of an answer again.
        device: where all of them compute, the bundled encoder too; None is the processor.
        dtype: of the weights of those two; None is float32.
    """

    encoder: str | None = None
    reranker: str | None = None
    device: str | None = None
    dtype: str | None = None

    def command(self, memory: int) -> list[str]:
        """The command of a worker with these models whose jobs take at most so many bytes."""
        return [sys.executable, "-m", "longspan.serve.worker", json.dumps({"memory": memory, **asdict(self)})]

    def check(self) -> None:
        """Load them once, in a worker that is given nothing to do.

        Raises:
            InputError: one of them cannot be loaded, or is of another kind.
        """
        if self == Models():
            return
        done = subprocess.run(self.command(0), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
        for line in done.stdout.splitlines():
            if "error" in (said := json.loads(line)):
                raise InputError(said["error"])
        if done.returncode:
            named = " ".join(f"{name}={value}" for name, value in asdict(self).items() if value is not None)
            raise InputError(f"{named} ended the process that loads them")


class QueueFullError(Exception):
    """There are as many jobs waiting as the queue holds; come again after so many seconds."""

    def __init__(self, seconds: int) -> None:
        super().__init__(seconds)
        self.seconds = seconds


@dataclass(eq=False)
class Job:
    """A piece of work.

    Attributes:
        kind: the name of a method of `longspan.serve.worker.Desk`.
        arguments: of that method.
        state: where it is.
        progress: from 0 to 1, about.
        doing: what is done just now, for people.
        result: of one that is done.
        error: one sentence, of one that failed or was cancelled.
        status: of HTTP, for the error.
    """

    kind: str
    arguments: dict[str, Any]
    id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    state: State = "waiting"
    progress: float = 0.0
    doing: str = "Waiting"
    result: Any = None
    error: str | None = None
    status: int = 200
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def over(self) -> bool:
        """Whether nothing will change any more."""
        return self.state in ("done", "failed", "cancelled")

    def change(self, **fields: Any) -> None:
        """Set some attributes, and wake whoever follows."""
        if not self.over:
            for name, value in fields.items():
                setattr(self, name, value)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def changes(self) -> AsyncIterator[None]:
        """Gives once at once, and then after every change until the job is over."""
        while True:
            changed = self._changed
            yield
            if self.over:
                return
            await changed.wait()

    async def finished(self) -> None:
        """Returns when the job is over."""
        async for _ in self.changes():
            pass


class Jobs:
    """The queue and its workers; `start` and `stop` belong around its use."""

    def __init__(self, limits: Limits, models: Models | None = None) -> None:
        self.limits = limits
        self._command = (models or Models()).command(limits.memory)
        self._known: OrderedDict[str, Job] = OrderedDict()
        self._queue: asyncio.Queue[Job] = asyncio.Queue()
        self._running: dict[Job, asyncio.subprocess.Process] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._usual_seconds = 1.0

    async def start(self) -> None:
        """Start the workers; they load while the first requests come in."""
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self.limits.workers)]

    async def stop(self) -> None:
        """End the workers, and every job with them."""
        for job in self._known.values():
            self.cancel(job)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def submit(self, kind: str, arguments: dict[str, Any]) -> Job:
        """Put a job into the queue.

        Raises:
            QueueFullError: too many wait already.
        """
        waiting = self.waiting
        if waiting >= self.limits.queue:
            raise QueueFullError(max(1, min(60, round(waiting * self._usual_seconds / max(1, self.limits.workers)))))
        job = Job(kind, arguments)
        self._known[job.id] = job
        self._forget()
        self._queue.put_nowait(job)
        return job

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return sum(job.state == "waiting" for job in self._known.values())

    def ahead(self, job: Job) -> int:
        """How many jobs wait before this one."""
        waiting = [one for one in self._known.values() if one.state == "waiting"]
        return waiting.index(job) if job in waiting else 0

    def get(self, key: str) -> Job:
        """The job of this id; `KeyError` where there is none, or it was long ago."""
        return self._known[key]

    def cancel(self, job: Job) -> None:
        """End a job that waits or runs."""
        if job.over:
            return
        job.change(state="cancelled", error="the job was cancelled", status=409)
        if job in self._running:
            with suppress(ProcessLookupError):
                self._running[job].kill()

    def _forget(self) -> None:
        over = [key for key, job in self._known.items() if job.over]
        for key in over[: max(0, len(over) - FINISHED)]:
            del self._known[key]

    async def _work(self) -> None:
        """Do one job after the other, in one process as long as it lives."""
        process = await self._new_process()
        try:
            while True:
                job = await self._queue.get()
                if job.over:
                    continue
                if process.returncode is not None:
                    process = await self._new_process()
                begin = time.monotonic()
                await self._do(job, process)
                self._usual_seconds += 0.2 * (time.monotonic() - begin - self._usual_seconds)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _new_process(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LONGEST_LINE,
        )

    async def _do(self, job: Job, process: asyncio.subprocess.Process) -> None:
        self._running[job] = process
        job.change(state="running", doing="Starting")
        try:
            async with asyncio.timeout(self.limits.seconds):
                await self._follow(job, process)
        except TimeoutError:
            error = f"this took longer than {self.limits.seconds:g} seconds, the limit of this server; give less text"
            job.change(state="failed", error=error, status=504)
        finally:
            del self._running[job]
            if job.state != "done" and job.status != 422:  # what was killed may be half way through a line
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    async def _follow(self, job: Job, process: asyncio.subprocess.Process) -> None:
        """Give the job to the process, and read what it says until it is done."""
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(ConnectionError):  # of a process that ended before
            process.stdin.write(json.dumps({"kind": job.kind, "arguments": job.arguments}).encode() + b"\n")
            await process.stdin.drain()
        while line := await process.stdout.readline():
            said = json.loads(line)
            if "result" in said:
                job.change(state="done", progress=1.0, doing="Done", result=said["result"])
                return
            if "error" in said:
                job.change(state="failed", error=said["error"], status=said["status"])
                return
            job.change(**said)
        error = "the process that worked on this ended, most likely for want of memory; give less text at once"
        job.change(state="failed", error=error, status=500)
