"""The addresses, without workers: what is refused, what waits, and what the pages load."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from longspan.serve.limits import Limits

STATIC = Path(__file__).parents[2] / "src/longspan/serve/static"
QUIET = Limits(workers=0, queue=3)
"""Nobody works: what is asked for waits."""


def test_requests_that_hold_mistakes_get_one_sentence(alive: Any, call: Callable[..., Awaitable[Any]]) -> None:
    mistakes = [
        ("/summarize", {}, 422, "give a document that was uploaded, or a text; one of the two"),
        ("/summarize", {"document": "x", "text": "y"}, 422, "give a document that was uploaded, or a text"),
        ("/summarize", {"document": "../../etc/passwd"}, 404, "there is no document '../../etc/passwd'; upload it"),
        ("/summarize", {"text": "y", "sentences": 0}, 422, "sentences=0: input should be greater than or equal to 1"),
        ("/summarize", {"text": "y", "sentence": 2}, 422, "sentence=2: extra inputs are not permitted"),
        ("/summarize", {"text": 5}, 422, "text=5: input should be a valid string"),
        ("/summarize", b"{", 422, "the body: input should be a valid dictionary"),
        ("/answer", {"text": "y"}, 422, "question: field required"),
        ("/answer", {"text": "y", "question": []}, 422, "question=[] asks nothing"),
        ("/embed", {}, 422, "give texts or documents, one of the two"),
        ("/documents", {}, 422, "file: field required"),
        ("/nowhere", {}, 404, "POST /nowhere is no request here"),
    ]

    async def run() -> None:
        async with alive(QUIET) as app:
            for path, body, status, sentence in mistakes:
                answer = await call(app, "POST", path, body)
                assert (answer.status, answer.json["detail"].startswith(sentence)) == (status, True), answer.body
            for body in ({"input": []}, {"input": [[1, 2]]}):
                answer = await call(app, "POST", "/v1/embeddings", body)
                assert answer.status == 422
                assert answer.json["error"]["type"] == "invalid_request_error"

    asyncio.run(run())


def test_jobs_wait_are_cancelled_and_come_again_when_the_queue_is_full(
    alive: Any, call: Callable[..., Awaitable[Any]], form_of: Any
) -> None:
    async def run() -> None:
        async with alive(QUIET) as app:
            begun = [(await call(app, "POST", "/summarize?background=true", {"text": "A b."})) for _ in range(3)]
            assert [(one.status, one.json["state"], one.json["ahead"]) for one in begun] == [
                (202, "waiting", 0),
                (202, "waiting", 1),
                (202, "waiting", 2),
            ]
            for path, body, headers in [
                ("/answer", {"text": "A b.", "question": "c"}, {}),
                ("/documents", *form_of("a", b"A")),
            ]:
                full = await call(app, "POST", path, body, headers)
                assert full.status == 429
                assert 1 <= int(full.headers["retry-after"]) <= 60
            address = f"/jobs/{begun[0].json['job']}"
            following = asyncio.create_task(call(app, "GET", f"{address}/events"))
            await asyncio.sleep(0)
            assert (await call(app, "DELETE", address)).json["state"] == "cancelled"
            events = await following
            assert events.headers["content-type"].startswith("text/event-stream")
            assert events.body.decode().split("\n\n")[-2].startswith('data: {"job": ')
            assert '"state": "cancelled"' in events.body.decode().split("\n\n")[-2]
            assert (await call(app, "GET", address)).json["error"] == "the job was cancelled"
            assert (await call(app, "GET", f"/jobs/{begun[2].json['job']}")).json["ahead"] == 1
            assert (await call(app, "GET", "/jobs/x")).status == 404
            assert (await call(app, "POST", "/summarize?background=true", {"text": "A b."})).status == 202

    asyncio.run(run())


def test_uploads_of_who_goes_away_are_deleted_and_nothing_stays_at_the_end(
    alive: Any, call: Callable[..., Awaitable[Any]], form_of: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def run() -> None:
        async with alive(QUIET) as app:
            body, headers = form_of("../../../../etc/evil.txt", b"Words.")
            uploading = asyncio.create_task(call(app, "POST", "/documents", body, headers))
            while not (found := list(tmp_path.rglob("*.txt"))):
                await asyncio.sleep(0)
            assert [file.parent.parent for file in found] == [tmp_path]
            uploading.cancel()
            await asyncio.gather(uploading, return_exceptions=True)
            assert not list(tmp_path.rglob("*.txt"))
        assert not list(tmp_path.iterdir())

    asyncio.run(run())


def test_pages_load_only_what_is_there(alive: Any, call: Callable[..., Awaitable[Any]]) -> None:
    async def run() -> None:
        async with alive(QUIET) as app:
            for path in ("/", "/docs"):
                page = (await call(app, "GET", path)).body.decode()
                assert "<script>" not in page
                assert not re.search(r"\son\w+=|\sstyle=|https?://", page)
                loaded = re.findall(r'(?:src|href)="(/static/[^"]+)"', page)
                assert loaded
                for address in loaded:
                    assert (await call(app, "GET", address)).status == 200
            described = (await call(app, "GET", "/openapi.json")).json
            assert {"/summarize", "/answer", "/embed", "/v1/embeddings"} <= set(described["paths"])
            assert (await call(app, "GET", "/redoc")).status == 404
            assert (await call(app, "GET", "/static/..%2Fapp.py")).status == 404

    asyncio.run(run())
    for file in STATIC.iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text), file


def test_nothing_is_sent_to_who_collects_traces(
    alive: Any, call: Callable[..., Awaitable[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FastAPI refuses to start where it is to send them and cannot; this server does not even try."""
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")

    async def run() -> None:
        async with alive(QUIET) as app:
            assert (await call(app, "GET", "/")).status == 200

    asyncio.run(run())
