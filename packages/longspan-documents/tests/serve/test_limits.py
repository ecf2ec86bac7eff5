"""The guard: hosts, origins, tokens and sizes, on an application that says what it got."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import pytest

from longspan.errors import InputError
from longspan_documents.serve.limits import HEADERS, Guard, Limits, check_token, is_loopback

LIMITS = Limits(file_bytes=1_000)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Says how many bytes came; what it is told of a body that is too large, it takes for a damaged one."""
    size, status = 0, 200
    try:
        more = True
        while more:
            message = await receive()
            size, more = size + len(message["body"]), message["more_body"]
    except ValueError:
        status = 400
    await send({"type": "http.response.start", "status": status, "headers": [(b"cache-control", b"max-age=5")]})
    await send({"type": "http.response.body", "body": str(size).encode()})


def test_hosts_and_origins_are_ours(call: Callable[..., Awaitable[Any]]) -> None:
    guard = Guard(echo, limits=LIMITS, hosts=["box.example"])
    passes = [
        {"host": "127.0.0.1:8765"},
        {"host": "localhost:8765", "origin": "http://localhost:8765"},
        {"host": "[::1]:8765"},
        {"host": "BOX.example", "origin": "https://BOX.example"},
        {"host": "127.0.0.1:1", "sec-fetch-site": "same-origin"},
        {"host": "127.0.0.1:1", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
    ]
    refused = [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "10.0.0.5"},
        {"host": ""},
        {"host": "[::1"},
        {"host": "127.0.0.1:1", "origin": "http://evil.example"},
        {"host": "127.0.0.1:1", "origin": "http://127.0.0.1:2"},
        {"host": "127.0.0.1:1", "origin": "null"},
        {"host": "127.0.0.1:1", "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"host": "127.0.0.1:1", "sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
    ]

    async def run() -> None:
        for headers in passes:
            answer = await call(guard, "GET", "/", headers=headers)
            assert answer.status == 200, headers
            assert {**HEADERS, "cache-control": "max-age=5"}.items() <= answer.headers.items()
        for headers in refused:
            answer = await call(guard, "GET", "/", headers=headers)
            assert answer.status == 403, headers
            assert "detail" in answer.json
            assert "access-control-allow-origin" not in answer.headers
        navigates = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
        assert (await call(guard, "POST", "/", headers=navigates)).status == 403

    asyncio.run(run())


def test_a_server_for_all_answers_to_numbers_but_not_to_other_names(call: Callable[..., Awaitable[Any]]) -> None:
    guard = Guard(echo, limits=LIMITS, any_address=True)

    async def status(host: str) -> int:
        return (await call(guard, "GET", "/", headers={"host": host})).status

    async def run() -> None:
        assert [await status(host) for host in ("10.0.0.5:80", "[fe80::1]:80", "evil.example")] == [200, 200, 403]

    asyncio.run(run())


def test_a_token_is_asked_for_and_kept_in_a_cookie(call: Callable[..., Awaitable[Any]]) -> None:
    guard = Guard(echo, limits=LIMITS, token="secret", cookie="longspan-80")

    async def run() -> None:
        missing = await call(guard, "POST", "/summarize")
        assert missing.status == 401
        assert missing.json["detail"].startswith("the token is missing;")
        assert missing.headers["www-authenticate"] == "Bearer"
        wrong = await call(guard, "POST", "/summarize", headers={"authorization": "Bearer secre"})
        assert (wrong.status, wrong.json["detail"].partition(";")[0]) == (401, "the token is wrong")
        assert (await call(guard, "GET", "/documents/x?token=secret")).status == 401  # only the page's address sets it
        page = await call(guard, "GET", "/?token=<b>")
        assert page.status == 401
        assert page.body.startswith(b"<!DOCTYPE html>")
        assert b"The token is wrong" in page.body
        assert b"<b>" not in page.body
        known = await call(guard, "GET", "/?token=secret")
        assert (known.status, known.headers["location"]) == (303, "/")
        assert known.headers["set-cookie"] == "longspan-80=secret; Path=/; HttpOnly; SameSite=Lax"
        for headers in ({"cookie": "a=b; longspan-80=secret"}, {"authorization": "Bearer secret"}):
            assert (await call(guard, "POST", "/summarize", headers=headers)).status == 200

    asyncio.run(run())


@pytest.mark.parametrize("token", ["a+b", "a&b=c", "a#b", "100%", "a%2Bb", "two words", 'a";b', "a,b\\c"])
def test_a_token_of_any_signs_lets_its_owner_in(call: Callable[..., Awaitable[Any]], token: str) -> None:
    guard = Guard(echo, limits=LIMITS, token=check_token(token), cookie="longspan-80")

    async def run() -> None:
        known = await call(guard, "GET", f"/?token={quote(token, safe='')}")
        assert known.status == 303
        cookie = known.headers["set-cookie"].partition(";")[0]
        others = 'theme={"dark": [1, 2]}; a[b]=c; '  # of another program at this host, which no strict reader takes
        for headers in ({"cookie": others + cookie}, {"authorization": f"Bearer {token}"}):
            assert (await call(guard, "POST", "/summarize", headers=headers)).status == 200
        assert (await call(guard, "POST", "/summarize", headers={"cookie": cookie + "x"})).status == 401

    asyncio.run(run())


@pytest.mark.parametrize("token", ["", " a", "a\n", "a\x00", "schlüssel", "\udcff", "x" * 1_001])
def test_a_token_that_no_header_holds_is_refused(token: str) -> None:
    with pytest.raises(InputError, match=r"^token='"):
        check_token(token)


def test_health_needs_no_token_and_v1_has_its_own_form(call: Callable[..., Awaitable[Any]]) -> None:
    guard = Guard(echo, limits=LIMITS, token="secret")

    async def run() -> None:
        assert (await call(guard, "GET", "/health")).status == 200
        refused = await call(guard, "POST", "/v1/embeddings")
        assert refused.json["error"]["message"].startswith("the token is missing")

    asyncio.run(run())


def test_a_request_that_breaks_off_is_given_up(call: Callable[..., Awaitable[Any]]) -> None:
    """A body that never ends: whoever reads it learns that nobody is there any more."""
    guard = Guard(echo, limits=Limits(silence=0.0))
    heard: list[Any] = []

    async def silent() -> Any:
        await asyncio.Event().wait()

    async def listen(_: Any, receive: Any, __: Any) -> None:
        heard.append(await receive())

    guard.app = listen
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": [(b"host", b"127.0.0.1")]}
    asyncio.run(guard(scope, silent, None))
    assert heard == [{"type": "http.disconnect"}]


def test_what_is_too_large_is_refused_before_and_while_it_comes(call: Callable[..., Awaitable[Any]]) -> None:
    guard = Guard(echo, limits=LIMITS)
    body = b"x" * 100_000

    async def run() -> None:
        for headers in ({"content-length": "100000"}, {}, {"content-length": "5"}):
            answer = await call(guard, "POST", "/", body, headers)
            assert answer.status == 413
            assert "at most 1,000 bytes" in answer.json["detail"]
        assert (await call(guard, "POST", "/", body[:60_000])).body == b"60000"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("host", "near"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("box", False)]
)
def test_what_only_this_machine_reaches(host: str, near: bool) -> None:
    assert is_loopback(host) is near
