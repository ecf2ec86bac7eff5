"""The server itself: a socket, the guard, uvicorn."""

from __future__ import annotations

import secrets
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from longspan.errors import InputError
from longspan.imports import require
from longspan_documents.serve.jobs import Models
from longspan_documents.serve.limits import Guard, Limits, check_token, is_loopback


def serve(
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    limits: Limits | None = None,
    models: Models | None = None,
    token: str | None = None,
    names: Sequence[str] = (),
    started: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve the page and the API until the process is interrupted.

    Args:
        host: name or address to listen on.
        port: 0 takes a free one.
        limits: of requests.
        models: replace the bundled encoder.
        token: required of clients; None generates one unless `host` can be reached only from this machine.
        names: further allowed host names, such as that of a proxy.
        started: called with the address of the page when the server is ready.

    Raises:
        InputError: the extra 'serve' is not installed, a token cannot be sent in a header, a model cannot be loaded,
            the address cannot be listened on, or uploads cannot be stored.
    """
    uvicorn = require("uvicorn", extra="serve", purpose="`longspan serve`")
    require("fastapi", extra="serve", purpose="`longspan serve`")
    require("python_multipart", extra="serve", purpose="`longspan serve`")
    from longspan_documents.serve.app import create_app
    from longspan_documents.serve.connections import Connection, make_room

    limits = limits or Limits()
    if token is not None:
        check_token(token)
    if models is not None:
        models.check(limits)
    listening = _listen(host, port)  # before the folder of uploads is created, which the app deletes at its end
    try:
        app = create_app(limits, models)
    except BaseException:
        listening.close()
        raise
    port = listening.getsockname()[1]
    everywhere = host in ("0.0.0.0", "::", "")
    token = token or (None if is_loopback(host) else secrets.token_urlsafe(24))
    guard = Guard(
        app,
        limits=limits,
        hosts=[*names, *(() if everywhere else (host,)), *((socket.gethostname(),) if everywhere else ())],
        any_address=everywhere,
        token=token,
        cookie=f"longspan-{port}",
    )

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            shown = f"[{host}]" if ":" in host and not everywhere else socket.gethostname() if everywhere else host
            started(f"http://{shown}:{port}/" + (f"?token={quote(token, safe='')}" if token else ""))

    config = uvicorn.Config(
        guard,
        http=Connection,
        lifespan="on",
        backlog=make_room(),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=2,
    )
    server = Server(config)
    # Sent when the terminal closes; if it is ignored, as under nohup, it stays ignored.
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, server.handle_exit)
    with listening:
        server.run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket.

    Raises:
        InputError: the host is unknown, or the port is taken or not allowed.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise InputError(f"host={host!r} is no name or address of this machine; give 127.0.0.1 or 0.0.0.0") from None
    listening = socket.socket(family, kind, protocol)
    if not hasattr(
        socket, "SO_EXCLUSIVEADDRUSE"
    ):  # not on Windows, where it would allow another process to share the port
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        listening.listen(2048)
    except OSError as error:
        listening.close()
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"port={port} of {host} cannot be had ({reason}); give another, or 0 for a free one") from None
    return listening
