"""A process that works, from the server's side: it is started, given jobs one by one, followed and ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from longspan.workers import how_it_died
from longspan_documents.serve.job import Job

TRIES = 6
"""Processes that a job is given to, where one ends before it has taken the job: that says nothing of the job."""

STARTING = 300.0
"""Seconds in which a process that has started takes a job; one of a large model may be long in loading it."""


class WorkerProcess:
    """`longspan_documents.serve.worker` as a process that is replaced where it has ended.

    Args:
        command: that starts it.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> asyncio.subprocess.Process:
        """The process that lives, started where there is none.

        Raises:
            OSError: the system starts no more processes.
        """
        if self._process is None or self._process.returncode is not None:
            # In a group of its own, so that a terminal's Ctrl-C reaches the server alone, which ends this process.
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, process_group=0
            )
        return self._process

    def kill(self) -> None:
        """End it, in the middle of whatever it does."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def end(self) -> None:
        """End it, and wait until it has ended."""
        self.kill()
        if self._process is not None:
            await self._process.wait()

    async def do(self, job: Job, result: Path, seconds: float) -> None:
        """Have a job done, whose result is written to a file; afterwards the job is over.

        Raises:
            TimeoutError: it takes longer than so many seconds, counted from when a process has taken it.
        """
        for _ in range(TRIES):
            try:
                process = await self.start()
            except OSError as error:
                said = f"the system starts no process for the work ({error.strerror}); ask again later"
                job.change(state="failed", error=said, status=503)
                return
            if job.over or await self._follow(job, process, result, seconds):
                return
            await process.wait()
        error = f"the process that does the work does not start ({self._death()}); the terminal shows more"
        job.change(state="failed", error=error, status=503)

    async def _follow(self, job: Job, process: asyncio.subprocess.Process, result: Path, seconds: float) -> bool:
        """Give the job to a process and read what it says until it is done; False where it ended before it took it."""
        assert process.stdin is not None
        assert process.stdout is not None
        given = {"kind": job.kind, "arguments": job.arguments, "file": str(result)}
        taken = False
        async with asyncio.timeout(STARTING) as clock:
            with suppress(ConnectionError):  # of a process that ended before
                process.stdin.write(json.dumps(given).encode() + b"\n")
                await process.stdin.drain()
            while line := await process.stdout.readline():
                said = json.loads(line)
                if not taken:
                    clock.reschedule(asyncio.get_running_loop().time() + seconds)
                taken = True
                if "size" in said:
                    job.change(state="done", progress=1.0, doing="Done", result=result, size=said["size"])
                    return True
                if "error" in said:
                    job.change(state="failed", error=said["error"], status=said["status"])
                    return True
                job.change(**said)
        await process.wait()
        if taken:
            death = self._death()
            reason = death if "memory" in death else f"{death}, most likely for want of memory"
            error = f"what was asked for is not done: {reason}; give less text at once, or ask again"
            job.change(state="failed", error=error, status=500)
        return taken or job.over

    def _death(self) -> str:
        code = (self._process and self._process.returncode) or 0
        return how_it_died(code, Path()) if code < 0 else f"its process ended with code {code}"
