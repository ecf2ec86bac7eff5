"""The addresses, without workers: what is refused, what waits, and what the pages load."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longspan_documents.serve.limits import Guard, Limits
from longspan_documents.serve.requests import OpenAIProblem, Problem, SummaryRequest

STATIC = Path(__file__).parents[2] / "src/longspan_documents/serve/static"
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
        ("/summarize", b'{"text": ', 422, "the body is no JSON: expecting value (character 9)"),
        ("/summarize", [], 422, "the body: input should be a valid dictionary"),
        ("/answer", {"text": "y"}, 422, "question: field required"),
        ("/answer", {"text": "y", "question": []}, 422, "question=[] asks nothing"),
        ("/embed", {}, 422, "give texts or documents, one of the two"),
        ("/documents", {}, 422, "file: field required"),
        ("/nowhere", {}, 404, "POST /nowhere is no request here"),
    ]

    async def run() -> None:
        async with alive(QUIET) as app:
            for path, body, status, sentence in mistakes:
                answer = await call(app, "POST", path, body, {"content-type": "application/json"})
                assert (answer.status, answer.json["detail"].startswith(sentence)) == (status, True), answer.body
            mistakes_of_clients = [
                ("/v1/embeddings", {"input": []}, 422, "input=[] holds no text"),
                ("/v1/embeddings", {"input": [[1, 2]]}, 422, "input holds token numbers"),
                ("/v1/embeddings", {"input": [1, 2]}, 422, "input holds token numbers"),
                ("/v1/embeddings", {"input": "a", "dimensions": 0}, 422, "dimensions=0: input should be greater"),
                ("/v1/rerank", {"query": "a", "documents": ["b"]}, 404, "this server has no reranker; start it with"),
                ("/v1/rerank", {"query": "", "documents": ["b"]}, 422, "query=''"),
            ]
            for path, body, status, sentence in mistakes_of_clients:
                answer = await call(app, "POST", path, body)
                said = answer.json["error"]
                assert (answer.status, said["message"].startswith(sentence)) == (status, True), answer.body
                assert (said["type"], said["param"], said["code"]) == ("invalid_request_error", None, None)
            tokens = await call(app, "POST", "/v1/embeddings", {"input": [[1, 2]]})
            assert "check_embedding_ctx_length=False" in tokens.json["error"]["message"]  # LangChain's remedy

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


def test_more_than_one_request_may_have_is_413(alive: Any, call: Callable[..., Awaitable[Any]]) -> None:
    limits = replace(QUIET, texts=2, documents=2)
    too_much = [
        ("/embed", {"texts": ["a"] * 3}, "texts has 3 entries, and this server takes at most 2"),
        ("/embed", {"documents": ["a"] * 3}, "documents has 3 entries"),
        ("/answer", {"text": "a", "question": ["a"] * 3}, "question has 3 entries"),
        ("/answer", {"documents": ["a"] * 3, "question": "a"}, "documents has 3 entries"),
        ("/v1/embeddings", {"input": ["a"] * 3}, "input has 3 entries"),
    ]

    async def run() -> None:
        async with alive(limits) as app:
            for path, body, sentence in too_much:
                answer = await call(app, "POST", path, body)
                said = answer.json["error"]["message"] if path.startswith("/v1/") else answer.json["detail"]
                assert (answer.status, said.startswith(sentence)) == (413, True), said

    asyncio.run(run())


HALF = b'"\\ud83d"'
"""Half a character, as JSON can hold it."""


def test_halves_of_characters_are_mended_in_texts_and_refused_elsewhere(
    alive: Any, call: Callable[..., Awaitable[Any]]
) -> None:
    refused = [
        ("/summarize", b'{"text": "a", "length": %s}', "length"),
        ("/summarize", b'{"text": "a", %s: 1}', "the body"),
        ("/v1/embeddings", b'{"input": "a", "encoding_format": %s}', "encoding_format"),
    ]
    taken = [
        ("/summarize?background=true", b'{"text": %s}'),
        ("/embed?background=true", b'{"texts": [%s]}'),
    ]

    async def run() -> None:
        json_type = {"content-type": "application/json"}
        async with alive(QUIET) as app:
            for path, body, sentence in refused:
                answer = await call(app, "POST", path, body % HALF, json_type)
                said = answer.json["error"]["message"] if path.startswith("/v1/") else answer.json["detail"]
                assert (answer.status, said.startswith(sentence)) == (422, True), said
            for path, body in taken:
                assert (await call(app, "POST", path, body % HALF, json_type)).status == 202

    asyncio.run(run())
    given = SummaryRequest.model_validate({"text": "a\ud83d"})
    assert given.source["text"] == "a\ufffd"
    assert len(given.source["notes"]) == 1


def test_addresses_say_which_methods_they_take(alive: Any, call: Callable[..., Awaitable[Any]]) -> None:
    async def run() -> None:
        async with alive(QUIET) as app:
            for method, path, allowed in [
                ("PUT", "/documents/x", "DELETE, GET"),
                ("POST", "/jobs/x", "DELETE, GET"),
                ("GET", "/documents", "POST"),
                ("DELETE", "/v1/embeddings", "POST"),
                ("TRACE", "/", "GET"),
            ]:
                answer = await call(app, method, path)
                assert (answer.status, answer.headers["allow"]) == (405, allowed)
            assert (await call(app, "GET", "/health")).json == {"status": "ok"}
            listed = (await call(app, "GET", "/v1/models")).json["data"]
            assert (await call(app, "GET", f"/v1/models/{listed[0]['id']}")).json == listed[0]
            unknown = await call(app, "GET", "/v1/models/text/embedding")
            assert (unknown.status, unknown.json["error"]["type"]) == (404, "invalid_request_error")
            assert (await call(app, "POST", "/documents/", {})).status == 404  # no redirection that nobody declared

    asyncio.run(run())


def test_every_error_is_declared(alive: Any, call: Callable[..., Awaitable[Any]], form_of: Any) -> None:
    """What clients are generated from: the status, the type and the form of the body of every answer."""
    file = form_of("a.txt", b"Words.")

    async def run() -> None:
        guarded = replace(QUIET, queue=1, file_bytes=100_000)
        async with alive(guarded) as inner:
            app = Guard(inner, limits=guarded, token="secret")
            described = (await call(inner, "GET", "/openapi.json")).json
            key = {"authorization": "Bearer secret"}
            assert (await call(app, "POST", "/summarize?background=true", {"text": "A b."}, key)).status == 202
            seen = set()
            for path, methods in described["paths"].items():
                for method, operation in methods.items():
                    address = path.format(key="x", name="x")
                    bodies = {
                        "application/json": [b"{", b"[" * 100_000, b"{}", b'{"text": "a", "question": "b"}'],
                        "multipart/form-data": [file[0], b"torn"],
                    }
                    kinds = operation.get("requestBody", {}).get("content", {"": {}})
                    attempts = [(b"", {}), (b"", key | {"host": "evil.example"}), (b"x" * 200_000, key), (b"", key)]
                    for kind in kinds:
                        attempts += [
                            (body, key | ({**file[1]} if "form" in kind else {"content-type": kind}))
                            for body in bodies.get(kind, [])
                        ]
                    for body, headers in attempts:
                        answer = await call(app, method.upper(), address, body, headers)
                        seen.add(answer.status)
                        declared = operation["responses"][str(answer.status)]
                        if answer.status < 400:
                            continue
                        form = OpenAIProblem if path.startswith("/v1/") else Problem
                        form.model_validate(answer.json, extra="forbid")
                        assert answer.headers["content-type"] in declared["content"]
                        reference = declared["content"]["application/json"]["schema"]["$ref"]
                        assert reference == f"#/components/schemas/{form.__name__}"
                        assert {name.lower() for name in declared.get("headers", {})} <= set(answer.headers)
            assert seen >= {400, 401, 403, 404, 413, 422, 429}

    asyncio.run(run())
