"""From jobs to answers: results are files of JSON, which are sent as they are, piece by piece."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, BinaryIO

from fastapi import HTTPException, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from longspan_documents.serve.job import Job
from longspan_documents.serve.jobs import Jobs

PIECE = 1 << 20
"""Bytes that are read at once."""


async def begin(
    request: Request, jobs: Jobs, kind: str, arguments: dict[str, Any], characters: int, *, background: bool = False
) -> Response:
    """Have something done; arguments as in `Jobs.submit`. The answer is the result, or at once the state of the job."""
    job = jobs.submit(kind, arguments, characters, background=background)
    if background:
        return JSONResponse(state_of(jobs, job), 202)
    return sent(await result_of(request, jobs, job), job.size)


async def result_of(request: Request, jobs: Jobs, job: Job) -> BinaryIO:
    """Wait for a job that is not in the background and open its result, which is deleted as soon as it is closed.

    The job is cancelled when the one who asked is gone.

    Raises:
        HTTPException: it failed or was cancelled.
    """
    finished = asyncio.create_task(job.finished())
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait([finished, gone], return_when=asyncio.FIRST_COMPLETED)
        jobs.cancel(job)
        if job.result is None:
            raise HTTPException(job.status, job.error)
        return job.result.open("rb")
    finally:
        finished.cancel()
        gone.cancel()
        jobs.cancel(job)
        if job.result is not None:
            with suppress(OSError):  # Windows deletes no file that is open; it goes with the folder
                job.result.unlink()


def sent(file: BinaryIO, size: int, before: bytes = b"", after: bytes = b"") -> Response:
    """An answer of JSON that is a file's content between two texts."""

    def pieces() -> Iterator[bytes]:
        with file:
            yield before
            while piece := file.read(PIECE):
                yield piece
            yield after

    length = {"content-length": str(len(before) + size + len(after))}
    return StreamingResponse(pieces(), headers=length, media_type="application/json")


def state_of(jobs: Jobs, job: Job) -> dict[str, Any]:
    """Where a job is, without its result."""
    said = {"job": job.id, "state": job.state, "progress": job.progress, "doing": job.doing, "error": job.error}
    return {**said, "ahead": jobs.ahead(job)}


def state_with_result(jobs: Jobs, job: Job) -> Response:
    """Where a job is, with its result once it is done."""
    state = {**state_of(jobs, job), "result": None}
    if job.result is None:
        return JSONResponse(state)
    before, after = json.dumps(state).encode().rsplit(b"null", 1)
    return sent(job.result.open("rb"), job.size, before, after)


async def _gone(request: Request) -> None:
    """Returns when the one who asked has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
