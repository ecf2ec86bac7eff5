"""Access control and limits: every request passes through `Guard` first.

A page of another site can send requests to a local address from its reader's browser. So `Host` must be a name of this
server (a name that an attacker resolves to 127.0.0.1 is not), `Origin`, if a browser sends it, must be this server too,
and other origins are never allowed. If other machines can reach the server, a token is required, as a cookie that the
printed address sets or as `Authorization: Bearer`.
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
"""Headers of every response."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of the server.

    Attributes:
        file_bytes: size of one request, and so of one file.
        all_bytes: total size of all files.
        documents: number of files.
        seconds: running time of one job.
        memory: bytes that one job may allocate in addition to its process; only on Linux.
        queue: number of waiting jobs; further requests are rejected.
        workers: number of processes for long jobs; there is one more for short jobs.
        texts: number of texts, documents or questions of one request.
        sentences: number of sentence vectors that one request returns.
        waiting_characters: of the texts of all waiting jobs.
        result_bytes: of one result, and of all stored results of background jobs; the oldest are deleted.
        silence: seconds without a byte after which an incomplete request is aborted.
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
    """A request exceeds a limit; HTTP status 413."""


def check_count(count: int, most: int, what: str) -> None:
    """Check the number of things in one request.

    Raises:
        TooMuchError: there are more than `most`.
    """
    if count > most:
        raise TooMuchError(f"{what} has {count:,} entries, and this server takes at most {most:,} at once; send parts")


LONGEST_TOKEN = 1_000
"""Maximum number of characters of a token; a cookie has at most 4,096 bytes, and each character may take three of
them."""


def check_token(token: str) -> str:
    """Validate a token and return it.

    Raises:
        InputError: it is empty, or cannot be sent in a header.
    """
    if not token.isascii() or not token.isprintable() or token != token.strip() or not 0 < len(token) <= LONGEST_TOKEN:
        raise InputError(
            f"token={token[:40]!r} cannot be sent by browsers and clients; give 1 to {LONGEST_TOKEN:,} letters, digits "
            "and signs of ASCII, without spaces at the ends"
        )
    return token


def is_loopback(host: str) -> bool:
    """Whether a server on this host can be reached only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware: checks host, origin, token and size, and adds `HEADERS` to every response.

    Args:
        app: the application.
        limits: its `file_bytes` are used.
        hosts: allowed host names, besides addresses of this machine.
        any_address: whether every numeric address is allowed, as for a server that listens on all of them; a numeric
            address cannot be an attacker's name.
        token: the required token, or None.
        cookie: name of the cookie that contains the token.
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
        """Pass the request on, or reject it."""
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
        """Returns status, sentence or page, and further headers for a rejected request; None if it is accepted."""
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
        """Returns the response to a request without a valid token, or with one in the URL, which sets the cookie; else
        None."""
        url_token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        # Not http.cookies, which stops at the first cookie, possibly of another program, that it cannot parse.
        cookies = (pair.strip().partition("=") for pair in headers.get("cookie", "").split(";"))
        kept = next((value for name, _, value in cookies if name == self.cookie), "")
        if scope["path"] == "/health" or scope["path"].startswith(
            "/static/"
        ):  # the same for everyone, without private data
            return None
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _equal(bearer.strip(), token):
            return None
        if scope["path"] == "/" and _equal(url_token, token):
            cookie = f"{self.cookie}={quote(token, safe='')}; Path=/; HttpOnly; SameSite=Lax"
            return 303, "", {"location": "/", "set-cookie": cookie}
        if _equal(kept, quote(token, safe="")):
            return None
        wrong = bool(url_token or bearer or kept)
        sentence = f"the token is {'wrong' if wrong else 'missing'}; open the address that `longspan serve` printed"
        if scope["method"] == "GET" and scope["path"] == "/":
            return 401, _TOKEN_PAGE.format(sentence=html.escape(sentence[0].upper() + sentence[1:])), {}
        return 401, f"{sentence}, or send `Authorization: Bearer TOKEN`", {"www-authenticate": "Bearer"}

    @property
    def too_large(self) -> str:
        """The message for a request that is too large."""
        size = self.limits.file_bytes
        most = f"{size >> 20} MiB" if size >= MEBIBYTE else counted(size, "byte")
        return f"the file is too large: this server takes at most {most} at once; cut it into parts"

    def _too_large(self, size: int) -> bool:
        return size > self.limits.file_bytes + 64 * 1024  # overhead of multipart

    def _measured(self, scope: Any, receive: Any, send: Any) -> tuple[Any, Any]:
        """Wrap receive and send: the first counts bytes and has a timeout, the second adds headers."""
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
                raise ValueError("the body is too large")  # the form parser's response to this is replaced below
            return message

        async def guarded_send(message: Any) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and self._too_large(came):
                refused = True
                await _answer(send, scope["path"], 413, self.too_large)
            elif not refused:
                if message["type"] == "http.response.start":
                    present = {name for name, _ in message.get("headers", [])}
                    more = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in present]
                    message = {**message, "headers": [*message.get("headers", []), *more]}
                await send(message)

        return counted_receive, guarded_send


def _equal(sent: str, token: str) -> bool:
    return secrets.compare_digest(sent.encode(), token.encode())


async def _answer(send: Any, path: str, status: int, content: str, more: dict[str, str] | None = None) -> None:
    """Send a response of the guard itself: a page if the body starts like one, else JSON."""
    is_page = content.startswith("<!")
    body = (content if is_page else json.dumps(problem(path, status, content)) if content else "").encode()
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
