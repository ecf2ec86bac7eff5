"""The endpoints of the server: the page and a JSON API; `longspan_documents.serve.openai` has those of other vendors'
APIs.

With `?background=true`, a request returns the state of a job immediately; the job can be followed as server-sent
events, fetched and cancelled under `/jobs`. Without it, the response is the result, and the job is cancelled if the
client disconnects. Errors are `{"detail": "one sentence"}`.
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
from longspan.options import Options
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
    Health,
    JobState,
    Problem,
    Summarized,
    SummaryRequest,
    TextRequest,
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
    """Create the application, without its middleware (`longspan_documents.serve.limits.Guard`)."""
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
        docs_url=None,  # FastAPI's own page loads scripts from other servers
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
    """Return every error as one sentence."""

    def error_response(request: Request, status: int, sentence: str, headers: Any = None) -> Response:
        return JSONResponse(problem(request.url.path, status, mend(sentence)[0]), status, headers)

    @app.exception_handler(AnyHTTPException)
    async def refused(request: Request, error: AnyHTTPException) -> Response:
        if (reason := disk_reason(error.__cause__)) is not None:
            return error_response(
                request, 507, f"this server cannot keep what was sent: {reason}; its owner can free some space"
            )
        if error.status_code == 405:
            allowed = sorted({method for method in METHODS if _serves(app, request, method)})
            return error_response(request, 405, _no_request(request), {"Allow": ", ".join(allowed)})
        known = error.detail != HTTPStatus(error.status_code).phrase
        return error_response(
            request, error.status_code, str(error.detail if known else _no_request(request)), error.headers
        )

    @app.exception_handler(InputError)
    async def wrong(request: Request, error: InputError) -> Response:
        return error_response(request, 413 if isinstance(error, TooMuchError) else 422, str(error))

    @app.exception_handler(QueueFullError)
    async def full(request: Request, error: QueueFullError) -> Response:
        sentence = f"too many requests are waiting; come again in {error.seconds} s"
        return error_response(request, 429, sentence, {"Retry-After": str(error.seconds)})

    @app.exception_handler(OSError)
    async def unwritten(request: Request, error: OSError) -> Response:
        if (reason := disk_reason(error)) is not None:
            return error_response(
                request, 507, f"this server cannot keep what was sent: {reason}; its owner can free some space"
            )
        logging.getLogger(f"longspan.{__name__}").error("a request failed", exc_info=error)
        return error_response(request, 500, f"something went wrong ({type(error).__name__}); the terminal shows more")

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:  # Starlette logs it
        return error_response(request, 500, f"something went wrong ({type(error).__name__}); the terminal shows more")

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if isinstance(input_error := first.get("ctx", {}).get("error"), InputError):
            return error_response(request, 422, str(input_error))
        if first["type"] == "json_invalid":
            reason, place = first["ctx"]["error"], first["loc"][-1]
            return error_response(
                request, 422, f"the body is no JSON: {reason[:1].lower()}{reason[1:]} (character {place})"
            )
        where = on_one_line(".".join(str(part) for part in first["loc"] if part != "body"))[:80] or "the body"
        value_given = first.get("input")
        value = f"={on_one_line(repr(value_given))[:80]}" if isinstance(value_given, str | int | float) else ""
        return error_response(request, 422, f"{where}{value}: {first['msg'][:1].lower()}{first['msg'][1:]}")


METHODS = ("DELETE", "GET", "POST")


def _serves(app: FastAPI, request: Request, method: str) -> bool:
    """Whether the path of a request supports a method; Starlette checks only one of several routes."""
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
        """Upload a document; it is read, and kept until it is deleted or the server ends."""
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
        except BaseException:  # rejected, cancelled, or the queue is full: nobody will use it
            library.discard(new)
            raise

    @app.get("/documents/{key}", response_model=Content, tags=["documents"], responses=work)
    async def content(request: Request, key: str) -> Any:
        """A document as it was read: its blocks, with the positions of their sentences."""
        source, characters = _source(library, key)
        return await begin(request, jobs, "content", {"document": source}, characters)

    refused = declared(Problem, 404, 422)

    # With postponed annotations, FastAPI 0.115 uses None as the response model, which a 204 must not have.
    @app.delete("/documents/{key}", status_code=204, response_model=None, tags=["documents"], responses=refused)
    async def remove(key: str) -> None:
        """Delete a document."""
        _source(library, key)
        library.discard(library.get(key))


def _add_work(app: FastAPI, library: Library, jobs: Jobs) -> None:
    work = declared(Problem, *WORK) | BACKGROUND

    @app.post("/summarize", response_model=Summarized, tags=["work"], responses=work)
    async def summarize(request: Request, body: SummaryRequest, background: bool = False) -> Any:
        """Summarise a document or a text of any length: its best sentences, with their positions."""
        keys = [] if body.document is None else [body.document]
        (document,), characters = _sources(library, keys, body)
        arguments = {"document": document, "options": _stated(body, Summarize), "scores": body.scores}
        return await begin(request, jobs, "summarize", arguments, characters, background=background)

    @app.post("/answer", response_model=list[Answered], tags=["work"], responses=work)
    async def answer(request: Request, body: AnswerRequest, background: bool = False) -> Any:
        """The passages of documents that are most likely to answer each question, with their positions."""
        questions = [body.question] if isinstance(body.question, str) else body.question
        if not questions:
            raise InputError("question=[] asks nothing; give a question")
        check_count(len(questions), library.limits.documents, "question")
        documents, characters = _sources(library, body.documents, body)
        arguments = {"documents": documents, "questions": questions, "options": _stated(body, Answer)}
        return await begin(request, jobs, "answer", arguments, characters, background=background)

    @app.post("/embed", response_model=EmbeddedTexts | list[EmbeddedDocument], tags=["work"], responses=work)
    async def embed(request: Request, body: EmbedRequest, background: bool = False) -> Any:
        """Unit vectors of texts, or of whole documents; texts with similar meanings have similar vectors."""
        if bool(body.texts) == bool(body.documents):
            raise InputError("give texts or documents, one of the two")
        check_count(len(body.texts), library.limits.texts, "texts")
        if body.texts:
            characters = sum(map(len, body.texts))
            return await begin(request, jobs, "embed_texts", {"texts": body.texts}, characters, background=background)
        documents, characters = _sources(library, body.documents, None)
        arguments = {"documents": documents, "options": _stated(body, Embed)}
        return await begin(request, jobs, "embed", arguments, characters, background=background)

    @app.post("/chunks", response_model=Chunked, tags=["work"], responses=work)
    async def chunks(request: Request, body: ChunksRequest, background: bool = False) -> Any:
        """Split a document or a text into passages of whole sentences, with their positions."""
        keys = [] if body.document is None else [body.document]
        (document,), characters = _sources(library, keys, body)
        arguments = {"document": document, "options": _stated(body, Chunks)}
        return await begin(request, jobs, "chunks", arguments, characters, background=background)


def _add_jobs(app: FastAPI, jobs: Jobs) -> None:
    known = declared(Problem, 404, 422)

    @app.get("/health", response_model=Health, tags=["jobs"], responses=declared(Problem))
    async def health() -> Any:
        """Check that the server responds; needs no token."""
        return {"status": "ok"}

    @app.get("/jobs/{key}", response_model=JobState, tags=["jobs"], responses=known)
    async def look(key: str) -> Any:
        """The state of a job, with its result if it is done."""
        return state_with_result(jobs, _job(jobs, key))

    @app.delete("/jobs/{key}", response_model=JobState, tags=["jobs"], responses=known)
    async def cancel(key: str) -> Any:
        """Cancel a waiting or running job."""
        job = _job(jobs, key)
        jobs.cancel(job)
        return state_of(jobs, job)

    @app.get("/jobs/{key}/events", response_class=StreamingResponse, tags=["jobs"], responses=known | EVENTS)
    async def follow(key: str) -> Response:
        """Follow a job: server-sent events with its states, until it ends."""
        job = _job(jobs, key)

        async def events() -> AsyncIterator[str]:
            async for _ in job.changes():
                yield f"data: {json.dumps(state_of(jobs, job))}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")


# Helpers --------------------------------------------------------------------------------------------------------------


def _stated(request: BaseModel, declared: type[Options]) -> dict[str, Any]:
    """Returns the options of a request as plain data for a worker."""
    return options_in(request, declared).to_plain("api")


def _source(library: Library, key: str) -> tuple[dict[str, Any], int]:
    """Returns an uploaded document as plain data for a worker, and its number of characters."""
    try:
        upload = library.get(key)
    except KeyError:
        raise HTTPException(404, f"there is no document {on_one_line(key)[:60]!r}; upload it first") from None
    return upload.source, upload.characters


def _sources(library: Library, keys: list[str], text_request: TextRequest | None) -> tuple[list[dict[str, Any]], int]:
    """Returns uploaded documents or a text as plain data for a worker, and their number of characters."""
    if bool(keys) == (text_request is not None and text_request.text is not None):
        raise InputError("give a document that was uploaded, or a text; one of the two")
    if text_request is not None and text_request.text is not None:
        return [text_request.source], len(text_request.text)
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
