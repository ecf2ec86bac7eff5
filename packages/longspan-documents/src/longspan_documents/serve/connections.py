"""Connections: how many there may be, and what becomes of those that say nothing, or nothing that is HTTP.

What uvicorn does at its best, it leaves to the system: where a process has no file descriptor for one more connection,
asyncio prints a traceback for each that waits, and a connection that never says anything is kept for ever.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

SILENCE = 30.0
"""Seconds after which a connection that has said nothing is closed."""
ENOUGH = 12_288
"""File descriptors."""
BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 26\r\n"
    b"retry-after: 1\r\nconnection: close\r\n\r\ntoo many connections here\n"
)


def make_room() -> int:
    """Take as many file descriptors as the system allows, and share them out.

    Returns:
        How many connections are accepted at one go, an eighth of them; `Connection` keeps a third of them at most. The
        rest is for those that are being closed, for files and for processes.
    """
    try:
        import resource
    except ImportError:  # Windows
        return 128
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < ENOUGH:
        most = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if soft != resource.RLIM_INFINITY:
        Connection.most = min(Connection.most, soft // 3)
        return max(1, min(2048, soft // 8))
    return 2048


class Connection(H11Protocol):
    """A connection of uvicorn that is refused where there are too many, and closed where it says nothing.

    Attributes:
        most: connections at one time.
    """

    most = 4096

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse it, or wait for its first request, but not for ever."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.write(BUSY)
            transport.close()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(SILENCE, self.timeout_keep_alive_handler)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, where nothing was answered yet; whoever works on its beginning is told to stop."""
        answers = self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if answers:
            super().send_400_response(msg)
        else:
            self.transport.close()
