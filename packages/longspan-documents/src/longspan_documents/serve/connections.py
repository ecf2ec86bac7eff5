"""Limits of connections: their number, and a timeout for those that send nothing or no HTTP.

uvicorn leaves this to the system: if a process has no file descriptor for another connection, asyncio prints a
traceback for each waiting one, and a connection that never sends anything is kept forever.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

SILENCE = 30.0
"""Seconds after which a connection that has sent nothing is closed."""
ENOUGH = 12_288
"""Number of file descriptors."""
BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 26\r\n"
    b"retry-after: 1\r\nconnection: close\r\n\r\ntoo many connections here\n"
)


def make_room() -> int:
    """Raise the limit of file descriptors as far as the system allows, and divide them.

    Returns:
        The backlog of the listening socket, an eighth of them; `Connection` uses at most a third of them. The rest is
            for connections that are being closed, for files and for processes.
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
    """A connection of uvicorn that is rejected if there are too many, and closed if it sends nothing.

    Attributes:
        most: maximum number of simultaneous connections.
    """

    most = 4096

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Reject the connection, or wait for its first request with a timeout."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.write(BUSY)
            transport.close()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(SILENCE, self.timeout_keep_alive_handler)

    def send_400_response(self, msg: str) -> None:
        """Respond to invalid HTTP, if no response has begun, and stop handling the incomplete request."""
        answers = self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if answers:
            super().send_400_response(msg)
        else:
            self.transport.close()
