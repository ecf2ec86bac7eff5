"""The addresses of the server: the page, a JSON API, and `/v1/embeddings` as clients of OpenAI know it.

With `?background=true` a request is answered at once with the state of a job, which can be followed as server-sent
events, fetched and cancelled under `/jobs`. Without, the answer comes when it is there, and the job is cancelled when
whoever asked goes away. Errors are `{"detail": "one sentence"}`.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from importlib.resources import files
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, File, HTTPException, Request, Response, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException as AnyHTTPException

from longspan.characters import on_one_line
from longspan.errors import InputError
from longspan.serve.jobs import Job, Jobs, Models, QueueFullError
from longspan.serve.library import Library
from longspan.serve.limits import Limits
from longspan.serve.requests import (
    Answered,
    AnswerRequest,
    EmbeddingsRequest,
    EmbedRequest,
    JobState,
    SummaryRequest,
    Uploaded,
)
from longspan.version import __version__

STATIC = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "document.js": "text/javascript",
    "calls.js": "text/javascript",
    "api.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
PIECE = 1 << 20


def create_app(limits: Limits, models: Models | None = None) -> FastAPI:
    """The application, still without the guard that belongs before it (`longspan.serve.limits.Guard`)."""
    library, jobs = Library(limits), Jobs(limits, models)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        await jobs.start()
        try:
            yield
        finally:
            await jobs.stop()
            library.close()

    # FastAPI can send traces to an address in the environment; this server sends nothing.
    quiet: Any = {"telemetry": {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}}
    app = FastAPI(
        title="Longspan",
        version=__version__,
        description="Summaries, answers and vectors of documents of any length, on this machine.",
        lifespan=life,
        docs_url=None,  # FastAPI's own page loads its scripts from elsewhere
        redoc_url=None,
        **quiet,
    )
    _add_errors(app)
    _add_pages(app)
    _add_documents(app, library, jobs)
    _add_work(app, library, jobs)
    _add_embeddings(app, jobs)
    _add_jobs(app, jobs)
    return app


def _add_errors(app: FastAPI) -> None:
    """Every error as one sentence."""

    def said(request: Request, status: int, sentence: str, headers: Any = None) -> Response:
        if not request.url.path.startswith("/v1/"):
            return JSONResponse({"detail": sentence}, status, headers)
        kind = "invalid_request_error" if status < 500 else "server_error"
        error = {"message": sentence, "type": kind, "param": None, "code": None}
        return JSONResponse({"error": error}, status, headers)

    @app.exception_handler(AnyHTTPException)
    async def refused(request: Request, error: AnyHTTPException) -> Response:
        known = error.detail != HTTPStatus(error.status_code).phrase
        sentence = (
            error.detail if known else f"{request.method} {on_one_line(request.url.path)[:80]} is no request here"
        )
        return said(request, error.status_code, str(sentence), error.headers)

    @app.exception_handler(InputError)
    async def wrong(request: Request, error: InputError) -> Response:
        return said(request, 422, str(error))

    @app.exception_handler(QueueFullError)
    async def full(request: Request, error: QueueFullError) -> Response:
        sentence = f"too many requests are waiting; come again in {error.seconds} s"
        return said(request, 429, sentence, {"Retry-After": str(error.seconds)})

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body") or "the body"
        given = first.get("input")
        value = f"={on_one_line(repr(given))[:80]}" if isinstance(given, str | int | float) else ""
        return said(request, 422, f"{where}{value}: {first['msg'][:1].lower()}{first['msg'][1:]}")


def _add_pages(app: FastAPI) -> None:
    folder = files("longspan.serve") / "static"

    def page(name: str, kind: str) -> Response:
        return Response((folder / name).read_bytes(), media_type=f"{kind}; charset=utf-8")

    @app.get("/", include_in_schema=False)
    async def read() -> Response:
        return page("page.html", "text/html")

    @app.get("/docs", include_in_schema=False)
    async def describe() -> Response:
        return page("api.html", "text/html")

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        if name not in STATIC:
            raise HTTPException(404, "there is no such file")
        return page(name, STATIC[name])


def _add_documents(app: FastAPI, library: Library, jobs: Jobs) -> None:
    @app.post("/documents", status_code=201, response_model=Uploaded, tags=["documents"])
    async def upload(
        request: Request,
        file: Annotated[UploadFile, File(description="A .pdf, .docx, .epub, .html, .md, .txt or the like.")],
    ) -> Any:
        """Upload a document; it is read, and stays until it is deleted or the server ends."""
        new = library.new_file(file.filename or "document")
        try:
            with new.path.open("wb") as out:
                while piece := await file.read(PIECE):
                    await asyncio.to_thread(out.write, piece)
            source = library.add(new).source
            return JSONResponse(await _result(request, jobs, jobs.submit("read", {"document": source})), 201)
        except BaseException:  # refused, cancelled, or no place in the queue: nobody will ask for it
            library.discard(new)
            raise

    @app.get("/documents/{key}", tags=["documents"])
    async def content(request: Request, key: str) -> Any:
        """A document as it was read: its blocks, with the places of their sentences."""
        return JSONResponse(await _result(request, jobs, jobs.submit("content", {"document": _source(library, key)})))

    @app.delete("/documents/{key}", status_code=204, tags=["documents"])
    async def remove(key: str) -> None:
        """Delete a document."""
        _source(library, key)
        library.discard(library.get(key))


def _add_work(app: FastAPI, library: Library, jobs: Jobs) -> None:
    @app.post("/summarize", tags=["work"])
    async def summarize(request: Request, given: SummaryRequest, background: bool = False) -> Any:
        """Summarise a document or a text of any length: its best sentences, with their places."""
        keys = [] if given.document is None else [given.document]
        (document,) = _sources(library, keys, given.text)
        extent = {"sentences": given.sentences, "words": given.words, "length": given.length}
        arguments = {"document": document, "extent": extent, "query": given.query, "scores": given.scores}
        return await _begin(request, jobs, jobs.submit("summarize", arguments), background)

    @app.post("/answer", tags=["work"], responses={200: {"model": list[Answered]}})
    async def answer(request: Request, given: AnswerRequest, background: bool = False) -> Any:
        """The passages of documents that are most likely to answer each question, with their places."""
        questions = [given.question] if isinstance(given.question, str) else given.question
        if not questions:
            raise InputError("question=[] asks nothing; give a question")
        documents = _sources(library, given.documents, given.text)
        arguments = {"documents": documents, "questions": questions, "top": given.top, "threshold": given.threshold}
        return await _begin(request, jobs, jobs.submit("answer", arguments), background)

    @app.post("/embed", tags=["work"])
    async def embed(request: Request, given: EmbedRequest, background: bool = False) -> Any:
        """Vectors of length 1 of texts, or of whole documents; near vectors mean near meanings."""
        if bool(given.texts) == bool(given.documents):
            raise InputError("give texts or documents, one of the two")
        if given.texts:
            job = jobs.submit("embed_texts", {"texts": given.texts})
        else:
            documents = _sources(library, given.documents, None)
            job = jobs.submit("embed", {"documents": documents, "sentences": given.sentences})
        return await _begin(request, jobs, job, background)


def _add_embeddings(app: FastAPI, jobs: Jobs) -> None:
    @app.get("/v1/models", tags=["as OpenAI"])
    async def models() -> Any:
        """The one model that there is."""
        return {"object": "list", "data": [{"id": "longspan", "object": "model", "created": 0, "owned_by": "longspan"}]}

    @app.post("/v1/embeddings", tags=["as OpenAI"])
    async def embeddings(request: Request, given: EmbeddingsRequest) -> Any:
        """Vectors of texts, in the shape of OpenAI's API. Whatever model is named, the server's encoder answers."""
        texts = [given.input] if isinstance(given.input, str) else given.input
        if not texts:
            raise InputError("input=[] holds no text; give one")
        done = await _result(request, jobs, jobs.submit("embed_texts", {"texts": texts}))
        vectors = np.array(done["vectors"], dtype="<f4")
        if given.dimensions not in (None, vectors.shape[1]):
            raise InputError(f"dimensions={given.dimensions} is not to be had; leave it out or give {vectors.shape[1]}")
        coded = given.encoding_format == "base64"
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": base64.b64encode(vector.tobytes()).decode() if coded else vector.tolist(),
            }
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": done["tokens"], "total_tokens": done["tokens"]}
        return {"object": "list", "data": data, "model": "longspan", "usage": usage}


def _add_jobs(app: FastAPI, jobs: Jobs) -> None:
    @app.get("/jobs/{key}", response_model=JobState, tags=["jobs"])
    async def look(key: str) -> Any:
        """Where a job is, with its result once it is done."""
        return _state(jobs, _job(jobs, key), result=True)

    @app.delete("/jobs/{key}", response_model=JobState, tags=["jobs"])
    async def cancel(key: str) -> Any:
        """Cancel a job that waits or runs."""
        job = _job(jobs, key)
        jobs.cancel(job)
        return _state(jobs, job)

    @app.get("/jobs/{key}/events", response_class=StreamingResponse, tags=["jobs"])
    async def follow(key: str) -> Response:
        """Follow a job: server-sent events, each its state, until it is over."""
        job = _job(jobs, key)

        async def events() -> AsyncIterator[str]:
            async for _ in job.changes():
                yield f"data: {json.dumps(_state(jobs, job))}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")


# What they share ------------------------------------------------------------------------------------------------------


def _source(library: Library, key: str) -> dict[str, Any]:
    try:
        return library.get(key).source
    except KeyError:
        raise HTTPException(404, f"there is no document {on_one_line(key)[:60]!r}; upload it first") from None


def _sources(library: Library, keys: list[str], text: str | None) -> list[dict[str, Any]]:
    """What a worker is given: uploaded documents or a text."""
    if bool(keys) == (text is not None):
        raise InputError("give a document that was uploaded, or a text; one of the two")
    if text is not None:
        return [{"id": None, "name": "the text", "text": text}]
    return [_source(library, key) for key in dict.fromkeys(keys)]


def _job(jobs: Jobs, key: str) -> Job:
    try:
        return jobs.get(key)
    except KeyError:
        raise HTTPException(
            404, f"there is no job {on_one_line(key)[:60]!r}; finished ones are soon forgotten"
        ) from None


def _state(jobs: Jobs, job: Job, *, result: bool = False) -> dict[str, Any]:
    said = {"job": job.id, "state": job.state, "progress": job.progress, "doing": job.doing, "error": job.error}
    return {**said, "ahead": jobs.ahead(job), **({"result": job.result} if result else {})}


async def _begin(request: Request, jobs: Jobs, job: Job, background: bool) -> Any:
    return JSONResponse(_state(jobs, job), 202) if background else JSONResponse(await _result(request, jobs, job))


async def _result(request: Request, jobs: Jobs, job: Job) -> Any:
    """Wait for a job and give its result; it is cancelled when the one who asked is gone."""
    finished = asyncio.create_task(job.finished())
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait([finished, gone], return_when=asyncio.FIRST_COMPLETED)
    finally:
        finished.cancel()
        gone.cancel()
        if not job.over:
            jobs.cancel(job)
    if job.state != "done":
        raise HTTPException(job.status, job.error)
    return job.result


async def _gone(request: Request) -> None:
    """Returns when the one who asked has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
