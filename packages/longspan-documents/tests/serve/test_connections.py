"""Connections of uvicorn, to an application that says what it is: how many there may be, and how long one is silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the server comes with the 'serve' extra")

import uvicorn
from uvicorn.server import ServerState

from longspan_documents.serve import connections
from longspan_documents.serve.connections import Connection, make_room

REQUEST = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


async def here(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def listening() -> AsyncIterator[int]:
    """A server in this process; its port."""
    config, state = uvicorn.Config(here, lifespan="off", log_config=None), ServerState()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(config, state, {}), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def test_a_crowd_is_refused_and_who_comes_later_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "most", 2)

    async def run() -> None:
        async with listening() as port:
            crowd = []
            for _ in range(5):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(REQUEST)
                crowd.append((await reader.readline(), writer))
            assert [line.split()[1] for line, _ in crowd] == [b"200"] * 2 + [b"503"] * 3
            for _, writer in crowd:
                writer.close()
                await writer.wait_closed()
            line = b""
            while b" 200 " not in line:  # until it has seen that they are gone
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(REQUEST)
                line = await reader.readline()
                writer.close()
                await writer.wait_closed()

    asyncio.run(run())


def test_a_connection_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SILENCE", 0.0)

    async def run() -> None:
        async with listening() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read() == b""
            writer.close()

    asyncio.run(run())


def test_descriptors_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource", reason="this system does not bound descriptors")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(Connection, "most", 4096)
    monkeypatch.setattr(connections, "ENOUGH", before[0])
    try:
        at_once = make_room()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert Connection.most + 3 * at_once < before[0]  # those that are being closed have theirs still
