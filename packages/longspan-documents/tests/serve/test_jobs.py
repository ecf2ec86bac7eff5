"""Jobs and the loop that does them, with workers that are a few lines of Python: they take jobs, and die as asked."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longspan.workers import STARTS
from longspan_documents.serve.job import Job
from longspan_documents.serve.jobs import JOB_BYTES, QUICK, Jobs, QueueFullError
from longspan_documents.serve.limits import Limits

pytestmark = pytest.mark.slow  # workers are processes, if small ones

WORKER = """
import json, os, sys, time
from pathlib import Path
def say(**said):
    print(json.dumps(said), flush=True)
say(ready=True)
for line in sys.stdin.buffer:
    job = json.loads(line)
    kind, given = job["kind"], job["arguments"]
    if kind == "die before":
        os.kill(os.getpid(), 9)
    say(taken=True)
    if kind == "die":
        os.kill(os.getpid(), 9)
    if kind == "babble":
        print("x" * given["letters"], flush=True)
    while kind == "wait" and not Path(given["until"]).exists():
        time.sleep(0.01)
    Path(job["file"]).write_text(json.dumps("r" * given.get("letters", 0)))
    say(answer={"size": given.get("letters", 0) + 2})
    say(over=0)
"""
LIMITS = Limits(workers=1, seconds=600)

Test = Callable[[Jobs], Awaitable[None]]


def run(test: Test, folder: Path, limits: Limits = LIMITS) -> None:
    """Run a test between the start and the end of jobs whose workers are the program above."""

    class Program:
        def command(self, _: Limits) -> list[str]:
            return [sys.executable, "-S", "-c", WORKER]

    async def all_of_it() -> None:
        jobs = Jobs(limits, Program(), folder)  # type: ignore[arg-type]  # of models, only the command is asked for
        await jobs.start()
        try:
            await test(jobs)
        finally:
            await jobs.stop()

    asyncio.run(all_of_it())


async def done(jobs: Jobs, kind: str, characters: int = QUICK + 1, **arguments: Any) -> Job:
    job = jobs.submit(kind, arguments, characters, background=True)
    await job.finished()
    return job


def test_no_job_ends_the_loop(tmp_path: Path) -> None:
    """A line that is no JSON, one that is longer than any buffer, and a process that ends: the next job is done."""

    async def test(jobs: Jobs) -> None:
        for kind, letters in (("babble", 10), ("babble", 1 << 20), ("die", 0)):
            failed = await done(jobs, kind, letters=letters)
            assert (failed.state, failed.status) == ("failed", 500)
            assert (await done(jobs, "echo", letters=3)).state == "done"
        assert "SIGKILL" in str(failed.error)

    run(test, tmp_path)


def test_a_worker_that_was_killed_before_a_job_says_nothing_of_the_job(tmp_path: Path) -> None:
    async def test(jobs: Jobs) -> None:
        assert (await done(jobs, "echo")).state == "done"
        for lane in jobs._lanes:
            lane.worker.start()
            assert lane.worker.pid is not None
            os.kill(lane.worker.pid, signal.SIGKILL)
        for characters in (1, QUICK + 1):
            assert (await done(jobs, "echo", characters)).state == "done"
        never = await done(jobs, "die before")
        assert (never.state, never.status) == ("failed", 503)
        assert "does not start" in str(never.error)

    assert STARTS > 1
    run(test, tmp_path)


def test_a_job_that_is_cancelled_before_its_process_has_started_is_not_done(tmp_path: Path) -> None:
    async def test(jobs: Jobs) -> None:
        never = tmp_path / "never"
        job = jobs.submit("wait", {"until": str(never)}, QUICK + 1, background=True)
        assert jobs.waiting == 0  # it is handed out, and nobody has begun
        jobs.cancel(job)
        assert (await done(jobs, "echo")).state == "done"
        job = jobs.submit("wait", {"until": str(never)}, QUICK + 1, background=True)
        while job.state == "waiting":
            await asyncio.sleep(0)
        jobs.cancel(job)  # its process may have started, or not
        assert (await done(jobs, "echo")).state == "done"

    run(test, tmp_path)


def test_what_a_person_waits_for_goes_first(tmp_path: Path) -> None:
    async def test(jobs: Jobs) -> None:
        long = jobs.submit("wait", {"until": str(tmp_path / "long")}, QUICK + 1)
        longer = jobs.submit("wait", {"until": str(tmp_path / "longer")}, QUICK + 1)
        assert (await done(jobs, "echo", QUICK)).state == "done"
        assert (await done(jobs, "echo", 0)).state == "done"
        assert (long.over, longer.state) == (False, "waiting")
        # The process for what is quick is busy now: the other takes the next one, before what is long.
        busy = jobs.submit("wait", {"until": str(tmp_path / "busy")}, 1)
        short = jobs.submit("echo", {}, 1)
        assert (jobs.ahead(short), jobs.ahead(longer)) == (0, 1)
        (tmp_path / "long").touch()
        await short.finished()
        assert (longer.over, busy.over) == (False, False)
        for name in ("longer", "busy"):
            (tmp_path / name).touch()
        await longer.finished()

    run(test, tmp_path)


def test_results_are_kept_by_their_bytes_and_what_was_given_is_not(tmp_path: Path) -> None:
    limits = replace(LIMITS, result_bytes=3 * (JOB_BYTES + 1_002))

    async def test(jobs: Jobs) -> None:
        finished = [await done(jobs, "echo", letters=1_000) for _ in range(5)]
        assert all(job.arguments == {} for job in finished)
        for job in finished[:2]:
            with pytest.raises(KeyError):
                jobs.get(job.id)
        assert [jobs.get(job.id) for job in finished[2:]] == finished[2:]
        assert sorted(tmp_path.iterdir()) == sorted(job.result for job in finished[2:] if job.result)
        small = [await done(jobs, "echo") for _ in range(100)]
        assert jobs.get(small[-1].id) is small[-1]
        assert sum(job.size + JOB_BYTES for job in jobs._known.values()) <= limits.result_bytes

    run(test, tmp_path, limits)


def test_jobs_that_wait_are_bounded_by_what_they_hold(tmp_path: Path) -> None:
    limits = replace(LIMITS, workers=0, waiting_characters=100)

    async def test(jobs: Jobs) -> None:
        jobs.submit("echo", {}, 1_000)  # the only one is taken, whatever it holds
        with pytest.raises(QueueFullError):
            jobs.submit("echo", {}, 1)

    run(test, tmp_path, limits)


def test_a_system_that_starts_no_process_fails_the_job_and_not_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(jobs: Jobs) -> None:
        assert (await done(jobs, "echo")).state == "done"
        start = subprocess.Popen

        def refuse(*_: Any, **__: Any) -> Any:
            raise BlockingIOError(11, "Resource temporarily unavailable")

        monkeypatch.setattr(subprocess, "Popen", refuse)
        await done(jobs, "die")  # after it, none can be started
        failed = await done(jobs, "echo")
        assert (failed.state, failed.status) == ("failed", 503)
        assert str(failed.error).startswith("the system starts no process for the work (Resource temporarily")
        monkeypatch.setattr(subprocess, "Popen", start)
        assert (await done(jobs, "echo")).state == "done"

    run(test, tmp_path)


def test_a_result_stays_a_file_of_json(tmp_path: Path) -> None:
    async def test(jobs: Jobs) -> None:
        job = await done(jobs, "echo", letters=5)
        assert job.result is not None
        assert json.loads(job.result.read_text()) == "rrrrr"
        assert job.size == job.result.stat().st_size

    run(test, tmp_path)
