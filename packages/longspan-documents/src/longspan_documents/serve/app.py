"""The addresses of the server: the page and a JSON API; `longspan_documents.serve.openai` has those that others
defined.

With `?background=true` a request is answered at once with the state of a job, which can be followed as server-sent
events, fetched and cancelled under `/jobs`. Without, the answer comes when it is there, and the job is cancelled when
whoever asked goes away. Errors are `{"detail": "one sentence"}`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from importlib.resources import files
from typing import Annotated, Any

from fastapi import FastAPI, File, HTTPException, Request, Response, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.routing import Match

from longspan.characters import mend, on_one_line
from longspan.errors import InputError, disk_reason
from longspan.options import Options, plain_values
from longspan.version import __version__
from longspan_documents.inference.verbs import Answer, Chunks, Embed, Summarize
from longspan_documents.serve.job import Job
from longspan_documents.serve.jobs import Jobs, Models, QueueFullError
from longspan_documents.serve.library import Library
from longspan_documents.serve.limits import Limits, TooMuchError, check_count
from longspan_documents.serve.openai import add_openai
from longspan_documents.serve.problems import WORK, declared, problem
from longspan_documents.serve.requests import (
    Answered,
    AnswerRequest,
    Chunked,
    ChunksRequest,
    Content,
    EmbeddedDocument,
    EmbeddedTexts,
    EmbedRequest,
    GivenText,
    Health,
    JobState,
    Problem,
    Summarized,
    SummaryRequest,
    Uploaded,
    options_in,
)
from longspan_documents.serve.results import PIECE, begin, result_of, state_of, state_with_result
from longspan_documents.text.kinds.table import kinds_in_words

STATIC = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "document.js": "text/javascript",
    "calls.js": "text/javascript",
    "api.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
BACKGROUND: dict[int | str, dict[str, Any]] = {
    202: {"model": JobState, "description": "With `background=true`: the state of the job."}
}
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "States of the job."}
}


def create_app(limits: Limits, models: Models | None = None) -> FastAPI:
    """The application, still without the guard that belongs before it (`longspan_documents.serve.limits.Guard`)."""
    library = Library(limits)
    jobs = Jobs(limits, models, library.results)

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
        redirect_slashes=False,
        **quiet,
    )
    _add_errors(app)
    _add_pages(app)
    _add_documents(app, library, jobs)
    _add_work(app, library, jobs)
    _add_jobs(app, jobs)
    add_openai(app, jobs, limits, reranks=models is not None and models.reranker is not None)
    return app


def _add_errors(app: FastAPI) -> None:
    """Every error as one sentence."""

    def said(request: Request, status: int, sentence: str, headers: Any = None) -> Response:
        return JSONResponse(problem(request.url.path, status, mend(sentence)[0]), status, headers)

    @app.exception_handler(AnyHTTPException)
    async def refused(request: Request, error: AnyHTTPException) -> Response:
        if (reason := disk_reason(error.__cause__)) is not None:
            return said(request, 507, f"this server cannot keep what was sent: {reason}; its owner can free some space")
        if error.status_code == 405:
            allowed = sorted({method for method in METHODS if _serves(app, request, method)})
            return said(request, 405, _no_request(request), {"Allow": ", ".join(allowed)})
        known = error.detail != HTTPStatus(error.status_code).phrase
        return said(request, error.status_code, str(error.detail if known else _no_request(request)), error.headers)

    @app.exception_handler(InputError)
    async def wrong(request: Request, error: InputError) -> Response:
        return said(request, 413 if isinstance(error, TooMuchError) else 422, str(error))

    @app.exception_handler(QueueFullError)
    async def full(request: Request, error: QueueFullError) -> Response:
        sentence = f"too many requests are waiting; come again in {error.seconds} s"
        return said(request, 429, sentence, {"Retry-After": str(error.seconds)})

    @app.exception_handler(OSError)
    async def unwritten(request: Request, error: OSError) -> Response:
        if (reason := disk_reason(error)) is not None:
            return said(request, 507, f"this server cannot keep what was sent: {reason}; its owner can free some space")
        logging.getLogger(f"longspan.{__name__}").error("a request failed", exc_info=error)
        return said(request, 500, f"something went wrong ({type(error).__name__}); the terminal shows more")

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:  # Starlette logs it
        return said(request, 500, f"something went wrong ({type(error).__name__}); the terminal shows more")

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if isinstance(own := first.get("ctx", {}).get("error"), InputError):
            return said(request, 422, str(own))
        if first["type"] == "json_invalid":
            reason, place = first["ctx"]["error"], first["loc"][-1]
            return said(request, 422, f"the body is no JSON: {reason[:1].lower()}{reason[1:]} (character {place})")
        where = on_one_line(".".join(str(part) for part in first["loc"] if part != "body"))[:80] or "the body"
        given = first.get("input")
        value = f"={on_one_line(repr(given))[:80]}" if isinstance(given, str | int | float) else ""
        return said(request, 422, f"{where}{value}: {first['msg'][:1].lower()}{first['msg'][1:]}")


METHODS = ("DELETE", "GET", "POST")


def _serves(app: FastAPI, request: Request, method: str) -> bool:
    """Whether the address of a request can be asked by a method; Starlette looks at one route of several."""
    scope = {**request.scope, "method": method}
    return any(route.matches(scope)[0] is Match.FULL for route in app.routes)


def _no_request(request: Request) -> str:
    return f"{request.method} {on_one_line(request.url.path)[:80]} is no request here"


def _add_pages(app: FastAPI) -> None:
    folder = files("longspan_documents.serve") / "static"

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
    work = declared(Problem, *WORK)

    @app.post("/documents", status_code=201, response_model=Uploaded, tags=["documents"], responses=work)
    async def upload(
        request: Request,
        file: Annotated[UploadFile, File(description=f"A document: {kinds_in_words()}.")],
    ) -> Any:
        """Upload a document; it is read, and stays until it is deleted or the server ends."""
        new = library.new_file(file.filename or "document")
        try:
            with new.path.open("wb") as out:
                while piece := await file.read(PIECE):
                    await asyncio.to_thread(out.write, piece)
            new = library.add(new)
            job = jobs.submit("read", {"document": new.source}, new.characters)
            with await result_of(request, jobs, job) as result:
                described = json.load(result)
            library.describe(new, described["characters"])
            return JSONResponse(described, 201)
        except BaseException:  # refused, cancelled, or no place in the queue: nobody will ask for it
            library.discard(new)
            raise

    @app.get("/documents/{key}", response_model=Content, tags=["documents"], responses=work)
    async def content(request: Request, key: str) -> Any:
        """A document as it was read: its blocks, with the places of their sentences."""
        source, characters = _source(library, key)
        return await begin(request, jobs, "content", {"document": source}, characters)

    refused = declared(Problem, 404, 422)

    # Where annotations are texts, FastAPI 0.115 takes None for the model of an answer, which a 204 has not.
    @app.delete("/documents/{key}", status_code=204, response_model=None, tags=["documents"], responses=refused)
    async def remove(key: str) -> None:
        """Delete a document."""
        _source(library, key)
        library.discard(library.get(key))


def _add_work(app: FastAPI, library: Library, jobs: Jobs) -> None:
    work = declared(Problem, *WORK) | BACKGROUND

    @app.post("/summarize", response_model=Summarized, tags=["work"], responses=work)
    async def summarize(request: Request, given: SummaryRequest, background: bool = False) -> Any:
        """Summarise a document or a text of any length: its best sentences, with their places."""
        keys = [] if given.document is None else [given.document]
        (document,), characters = _sources(library, keys, given)
        arguments = {"document": document, "options": _stated(given, Summarize), "scores": given.scores}
        return await begin(request, jobs, "summarize", arguments, characters, background=background)

    @app.post("/answer", response_model=list[Answered], tags=["work"], responses=work)
    async def answer(request: Request, given: AnswerRequest, background: bool = False) -> Any:
        """The passages of documents that are most likely to answer each question, with their places."""
        questions = [given.question] if isinstance(given.question, str) else given.question
        if not questions:
            raise InputError("question=[] asks nothing; give a question")
        check_count(len(questions), library.limits.documents, "question")
        documents, characters = _sources(library, given.documents, given)
        arguments = {"documents": documents, "questions": questions, "options": _stated(given, Answer)}
        return await begin(request, jobs, "answer", arguments, characters, background=background)

    @app.post("/embed", response_model=EmbeddedTexts | list[EmbeddedDocument], tags=["work"], responses=work)
    async def embed(request: Request, given: EmbedRequest, background: bool = False) -> Any:
        """Vectors of length 1 of texts, or of whole documents; near vectors mean near meanings."""
        if bool(given.texts) == bool(given.documents):
            raise InputError("give texts or documents, one of the two")
        check_count(len(given.texts), library.limits.texts, "texts")
        if given.texts:
            characters = sum(map(len, given.texts))
            return await begin(request, jobs, "embed_texts", {"texts": given.texts}, characters, background=background)
        documents, characters = _sources(library, given.documents, None)
        arguments = {"documents": documents, "options": _stated(given, Embed)}
        return await begin(request, jobs, "embed", arguments, characters, background=background)

    @app.post("/chunks", response_model=Chunked, tags=["work"], responses=work)
    async def chunks(request: Request, given: ChunksRequest, background: bool = False) -> Any:
        """Cut a document or a text into passages of whole sentences, with their places."""
        keys = [] if given.document is None else [given.document]
        (document,), characters = _sources(library, keys, given)
        arguments = {"document": document, "options": _stated(given, Chunks)}
        return await begin(request, jobs, "chunks", arguments, characters, background=background)


def _add_jobs(app: FastAPI, jobs: Jobs) -> None:
    known = declared(Problem, 404, 422)

    @app.get("/health", response_model=Health, tags=["jobs"], responses=declared(Problem))
    async def health() -> Any:
        """That the server answers; no token is asked for."""
        return {"status": "ok"}

    @app.get("/jobs/{key}", response_model=JobState, tags=["jobs"], responses=known)
    async def look(key: str) -> Any:
        """Where a job is, with its result once it is done."""
        return state_with_result(jobs, _job(jobs, key))

    @app.delete("/jobs/{key}", response_model=JobState, tags=["jobs"], responses=known)
    async def cancel(key: str) -> Any:
        """Cancel a job that waits or runs."""
        job = _job(jobs, key)
        jobs.cancel(job)
        return state_of(jobs, job)

    @app.get("/jobs/{key}/events", response_class=StreamingResponse, tags=["jobs"], responses=known | EVENTS)
    async def follow(key: str) -> Response:
        """Follow a job: server-sent events, each its state, until it is over."""
        job = _job(jobs, key)

        async def events() -> AsyncIterator[str]:
            async for _ in job.changes():
                yield f"data: {json.dumps(state_of(jobs, job))}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")


# What they share ------------------------------------------------------------------------------------------------------


def _stated(request: BaseModel, declared: type[Options]) -> dict[str, Any]:
    """The options of a request, as a worker is given them."""
    return plain_values(options_in(request, declared), "api")


def _source(library: Library, key: str) -> tuple[dict[str, Any], int]:
    """What a worker has to know of an uploaded document, and its characters."""
    try:
        upload = library.get(key)
    except KeyError:
        raise HTTPException(404, f"there is no document {on_one_line(key)[:60]!r}; upload it first") from None
    return upload.source, upload.characters


def _sources(library: Library, keys: list[str], given: GivenText | None) -> tuple[list[dict[str, Any]], int]:
    """What a worker is given, uploaded documents or a text, and the characters of all of it."""
    if bool(keys) == (given is not None and given.text is not None):
        raise InputError("give a document that was uploaded, or a text; one of the two")
    if given is not None and given.text is not None:
        return [given.source], len(given.text)
    check_count(len(keys), library.limits.documents, "documents")
    found = [_source(library, key) for key in dict.fromkeys(keys)]
    return [source for source, _ in found], sum(characters for _, characters in found)


def _job(jobs: Jobs, key: str) -> Job:
    try:
        return jobs.get(key)
    except KeyError:
        raise HTTPException(
            404, f"there is no job {on_one_line(key)[:60]!r}; finished ones are soon forgotten"
        ) from None
