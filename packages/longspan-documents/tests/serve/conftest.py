"""What the tests of the server share: calls of an application without a network, and a whole server in its process."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("fastapi", reason="the server comes with the 'serve' extra")


@dataclass
class Answer:
    """Status, headers and body of an answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def ask(
    app: Any,
    method: str,
    path: str,
    body: bytes | Any = b"",
    headers: dict[str, str] | None = None,
) -> Answer:
    """Call an ASGI application, as a server would; a body that is no bytes is sent as JSON."""
    own = {"host": "127.0.0.1:80", **(headers or {})}
    if not isinstance(body, bytes):
        body, own["content-type"] = json.dumps(body).encode(), "application/json"
    address = urlsplit(path)
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": address.path,
        "raw_path": address.path.encode(),
        "query_string": address.query.encode(),
        "root_path": "",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "headers": [(name.lower().encode(), value.encode()) for name, value in own.items()],
    }
    pieces = [body[start : start + 65_536] for start in range(0, len(body), 65_536)] or [b""]
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages[-1]["more_body"] = False
    said: list[Any] = []

    async def receive() -> Any:
        if not messages:
            await asyncio.Event().wait()  # the one who asked stays
        return messages.pop(0)

    async def send(message: Any) -> None:
        said.append(message)

    await app(scope, receive, send)
    given = {name.decode(): value.decode() for name, value in said[0]["headers"]}
    return Answer(said[0]["status"], given, b"".join(message.get("body", b"") for message in said[1:]))


@pytest.fixture(scope="session")
def call() -> Callable[..., Awaitable[Answer]]:
    """`await call(app, method, path, body, headers)`."""
    return ask


@pytest.fixture(scope="session")
def alive() -> Callable[..., Any]:
    """`async with alive(limits) as app`: an application between its start and its end."""

    @asynccontextmanager
    async def run(limits: Any) -> AsyncIterator[Any]:
        from longspan_documents.serve.app import create_app

        app = create_app(limits)
        async with app.router.lifespan_context(app):
            yield app

    return run


@dataclass
class Server:
    """A server in a process of its own."""

    address: str
    process: subprocess.Popen[str]

    @property
    def port(self) -> int:
        return urlsplit(self.address).port or 0

    def request(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """Send a request to this machine; a body that is no bytes is sent as JSON."""
        own = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body, own["Content-Type"] = json.dumps(body).encode(), "application/json"
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            connection.request(method, path, body, own)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def upload(self, name: str, data: bytes) -> Answer:
        """Upload a file as a browser does."""
        return self.request("POST", "/documents", *form(name, data))


def form(name: str, data: bytes) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a form with one file."""
    head = f'--part\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    return head.encode() + data + b"\r\n--part--\r\n", {"content-type": "multipart/form-data; boundary=part"}


@pytest.fixture(scope="session")
def form_of() -> Callable[..., tuple[bytes, dict[str, str]]]:
    """`form_of(name, data)`: body and headers of a form with one file."""
    return form


@pytest.fixture(scope="session")
def served() -> Callable[..., Any]:
    """`with served(*options) as server`: `longspan serve` on a free port; keywords are those of `Popen`."""

    @contextmanager
    def run(*options: str, **keywords: Any) -> Iterator[Server]:
        command = [sys.executable, "-m", "longspan.cli", "serve", "--port", "0", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **keywords) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                assert line.startswith("Longspan is at http://"), line
                yield Server(line.split()[3], process)
            finally:
                process.send_signal(signal.SIGINT)
                process.wait()

    return run
