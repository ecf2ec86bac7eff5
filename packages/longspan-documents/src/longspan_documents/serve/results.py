"""From jobs to responses: results are JSON files, which are streamed unchanged."""

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
    """Submit a job, with arguments as in `Jobs.submit`; returns its result, or immediately its state if it is in the
    background."""
    job = jobs.submit(kind, arguments, characters, background=background)
    if background:
        return JSONResponse(state_of(jobs, job), 202)
    return sent(await result_of(request, jobs, job), job.size)


async def result_of(request: Request, jobs: Jobs, job: Job) -> BinaryIO:
    """Wait for a job that is not in the background and open its result, which is deleted when it is closed.

    The job is cancelled if the client disconnects.

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
            with suppress(OSError):  # Windows cannot delete an open file; it is deleted with the folder
                job.result.unlink()


def sent(file: BinaryIO, size: int, before: bytes = b"", after: bytes = b"") -> Response:
    """Returns a JSON response with the content of a file between two texts."""

    def pieces() -> Iterator[bytes]:
        with file:
            yield before
            while piece := file.read(PIECE):
                yield piece
            yield after

    length = {"content-length": str(len(before) + size + len(after))}
    return StreamingResponse(pieces(), headers=length, media_type="application/json")


def state_of(jobs: Jobs, job: Job) -> dict[str, Any]:
    """Returns the state of a job, without its result."""
    state = {"job": job.id, "state": job.state, "progress": job.progress, "doing": job.doing, "error": job.error}
    return {**state, "ahead": jobs.ahead(job)}


def state_with_result(jobs: Jobs, job: Job) -> Response:
    """Returns the state of a job, with its result if it is done."""
    state = {**state_of(jobs, job), "result": None}
    if job.result is None:
        return JSONResponse(state)
    before, after = json.dumps(state).encode().rsplit(b"null", 1)
    return sent(job.result.open("rb"), job.size, before, after)


async def _gone(request: Request) -> None:
    """Returns when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
