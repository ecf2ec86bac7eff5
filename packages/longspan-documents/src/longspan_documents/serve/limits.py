"""Who may ask, and how much: every request passes `Guard` before anything else sees it.

A page of another site can send requests to an address on this machine from the browser of whoever reads it. So the
`Host` must be one of ours (a name that an attacker points to 127.0.0.1 is not), the `Origin`, where a browser gives
one, must be ours too, and nothing is ever allowed to other origins. Where other machines reach the server, a token is
asked for, as a cookie that the printed address sets or as `Authorization: Bearer`.
"""

from __future__ import annotations

import asyncio
import html
import ipaddress
import json
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from longspan.characters import counted
from longspan.errors import InputError
from longspan_documents.serve.problems import problem

MEBIBYTE = 1 << 20
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
"""What every answer says to the browser."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the server takes.

    Attributes:
        file_bytes: of one request, and so of one file.
        all_bytes: of all files together.
        documents: files at one time.
        seconds: of one job, once it runs.
        memory: bytes that one job may take on top of what its process has; where the system can tell (Linux).
        queue: jobs that wait; who comes next is asked to come again.
        workers: processes that read what is long at the same time; one more has what is short.
        texts: loose texts, documents or questions of one request.
        sentences: whose vectors one request gives.
        waiting_characters: of the loose texts of all jobs that wait.
        result_bytes: of one result, and of all that are kept for jobs in the background; the oldest are forgotten.
        silence: seconds without a byte, after which a request that is not complete is given up.
    """

    file_bytes: int = 50 * MEBIBYTE
    all_bytes: int = 1024 * MEBIBYTE
    documents: int = 1_000
    seconds: float = 600.0
    memory: int = 4096 * MEBIBYTE
    queue: int = 64
    workers: int = 1
    texts: int = 10_000
    sentences: int = 20_000
    waiting_characters: int = 256 * MEBIBYTE
    result_bytes: int = 256 * MEBIBYTE
    silence: float = 60.0


class TooMuchError(InputError):
    """What was asked for is more than the server does at once; 413 of HTTP."""


def check_count(count: int, most: int, what: str) -> None:
    """Refuse more things than one request may have.

    Raises:
        TooMuchError: there are more.
    """
    if count > most:
        raise TooMuchError(f"{what} has {count:,} entries, and this server takes at most {most:,} at once; send parts")


LONGEST_TOKEN = 1_000
"""Characters of a token; a cookie holds 4,096 bytes, and each character may take three of them."""


def check_token(token: str) -> str:
    """The token itself.

    Raises:
        InputError: no header can hold it, or it is none.
    """
    if not token.isascii() or not token.isprintable() or token != token.strip() or not 0 < len(token) <= LONGEST_TOKEN:
        raise InputError(
            f"token={token[:40]!r} cannot be sent by browsers and clients; give 1 to {LONGEST_TOKEN:,} letters, digits "
            "and signs of ASCII, without spaces at the ends"
        )
    return token


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware: checks host, origin, token and size, and adds `HEADERS` to every answer.

    Args:
        app: what is guarded.
        limits: `file_bytes` of them.
        hosts: names by which the server may be called, besides addresses of this machine.
        any_address: whether every numeric address may be called by, as where the server listens on all of them; a
            numeric one cannot be an attacker's name for it.
        token: what must be known, or None.
        cookie: name of the cookie that holds the token.
    """

    def __init__(
        self,
        app: Any,
        *,
        limits: Limits,
        hosts: Collection[str] = (),
        any_address: bool = False,
        token: str | None = None,
        cookie: str = "longspan",
    ) -> None:
        self.app = app
        self.limits = limits
        self.hosts = {"localhost", *(host.lower().strip("[]") for host in hosts)}
        self.any_address = any_address
        self.token = token
        self.cookie = cookie

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer the request, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # no web sockets here
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refused = self._refusal(scope, headers)
        if refused is not None:
            await _answer(send, scope["path"], *refused)
            return
        await self.app(scope, *self._measured(scope, receive, send))

    def _refusal(self, scope: Any, headers: dict[str, str]) -> tuple[Any, ...] | None:
        """Status, sentence or page, and further headers of a request that is refused; None for one that passes."""
        host = headers.get("host", "")
        if not self._is_ours(host):
            return 403, f"this server does not answer to the host {host!r}; open the address that it printed"
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return 403, f"requests of pages from {origin!r} are refused; use the page that this server gives"
        navigates = headers.get("sec-fetch-mode") == "navigate" and scope["method"] == "GET"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not navigates:
            return 403, "requests of other sites are refused; use the page that this server gives"
        if headers.get("content-length", "0").isdecimal() and self._too_large(int(headers.get("content-length", "0"))):
            return 413, self.too_large
        return None if self.token is None else self._without_token(scope, headers, self.token)

    def _is_ours(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        if name in self.hosts or is_loopback(name):
            return True
        try:
            return self.any_address and bool(ipaddress.ip_address(name))
        except ValueError:
            return False

    def _without_token(self, scope: Any, headers: dict[str, str], token: str) -> tuple[Any, ...] | None:
        """What is said to a request that does not know the token, or gives it in the address and gets the cookie."""
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        # Not by http.cookies, which gives up at the first cookie, be it another program's, that it cannot read.
        cookies = (pair.strip().partition("=") for pair in headers.get("cookie", "").split(";"))
        kept = next((value for name, _, value in cookies if name == self.cookie), "")
        if scope["path"] == "/health" or scope["path"].startswith("/static/"):  # the same for everyone, and nobody's
            return None
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _equal(bearer.strip(), token):
            return None
        if scope["path"] == "/" and _equal(given, token):
            cookie = f"{self.cookie}={quote(token, safe='')}; Path=/; HttpOnly; SameSite=Lax"
            return 303, "", {"location": "/", "set-cookie": cookie}
        if _equal(kept, quote(token, safe="")):
            return None
        wrong = bool(given or bearer or kept)
        sentence = f"the token is {'wrong' if wrong else 'missing'}; open the address that `longspan serve` printed"
        if scope["method"] == "GET" and scope["path"] == "/":
            return 401, _TOKEN_PAGE.format(sentence=html.escape(sentence[0].upper() + sentence[1:])), {}
        return 401, f"{sentence}, or send `Authorization: Bearer TOKEN`", {"www-authenticate": "Bearer"}

    @property
    def too_large(self) -> str:
        """The sentence for a request that is too large."""
        size = self.limits.file_bytes
        most = f"{size >> 20} MiB" if size >= MEBIBYTE else counted(size, "byte")
        return f"the file is too large: this server takes at most {most} at once; cut it into parts"

    def _too_large(self, size: int) -> bool:
        return size > self.limits.file_bytes + 64 * 1024  # what multipart puts around a file

    def _measured(self, scope: Any, receive: Any, send: Any) -> tuple[Any, Any]:
        """The two ends of the request: what comes in is counted and comes in time, what goes out has our headers."""
        came = 0
        refused = complete = False

        async def counted_receive() -> Any:
            nonlocal came, complete
            try:
                async with asyncio.timeout(None if complete else self.limits.silence):
                    message = await receive()
            except TimeoutError:
                return {"type": "http.disconnect"}
            complete = not message.get("more_body", False)
            came += len(message.get("body", b""))
            if self._too_large(came):
                raise ValueError("the body is too large")  # what the parser of forms makes of it is replaced below
            return message

        async def guarded_send(message: Any) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and self._too_large(came):
                refused = True
                await _answer(send, scope["path"], 413, self.too_large)
            elif not refused:
                if message["type"] == "http.response.start":
                    own = {name for name, _ in message.get("headers", [])}
                    more = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in own]
                    message = {**message, "headers": [*message.get("headers", []), *more]}
                await send(message)

        return counted_receive, guarded_send


def _equal(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode(), token.encode())


async def _answer(send: Any, path: str, status: int, said: str, more: dict[str, str] | None = None) -> None:
    """An answer of the guard itself: a page where it begins as one, else JSON."""
    is_page = said.startswith("<!")
    body = (said if is_page else json.dumps(problem(path, status, said)) if said else "").encode()
    kind = "text/html; charset=utf-8" if is_page else "application/json"
    headers = {**HEADERS, "content-type": kind, "content-length": str(len(body)), **(more or {})}
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


_TOKEN_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>Longspan: token</title>
<link rel="icon" href="/static/icon.svg"><link rel="stylesheet" href="/static/page.css"></head>
<body><main class="token"><h1>Longspan</h1><p>{sentence}.</p>
<form method="get" action="/"><label>Token <input name="token" type="password" autocomplete="off" autofocus></label>
<button>Open</button></form></main></body></html>
"""
