"""Ends all processes of a distributed training, with one message, if one of them fails.

A killed process cannot notify the others, which would wait in the gradient exchange (on GPUs until torchrun's timeout)
or fail with an error about a closed connection. But whenever a process ends, the system closes its connections: so each
keeps one to the first process, which notifies all others.
"""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from longspan.errors import InputError
from longspan.settings import show
from longspan.training.processes import process_count, processes

HELLO = struct.Struct("!qqq")
"""The first message of a process: the secret number of this run, its rank, and its process id."""
LEFT, FAILED, GONE = b"l", b"f", b"g"
"""Last messages: finished or stopped by a signal; an error that it has reported; another process is gone."""
PATIENCE = 10.0
"""Seconds for a process to end by itself after another one has failed, perhaps for the same reason."""
PORT_VARIABLE = "LONGSPAN_LIFELINE_PORT"
"""The environment variable of the first process with the TCP port that it listens on, as firewalls between machines
require; without it, the system chooses a free one. Two runs that share a machine need two ports."""
KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Seconds, and probes, after which a connection to a machine that does not answer counts as closed."""

_open: set[socket.socket] = set()


@contextmanager
def ended_together(*, offloads: bool = False) -> Iterator[None]:
    """Within the context, the end of one of the processes that torchrun started ends the others: at once if it was
    killed, within half a minute if its machine fails.

    At most one process per machine reports which it was. They end without an exception, since they may wait in code
    that ignores it. A process that fails with an exception reports it, and the others end silently.

    Args:
        offloads: as for `longspan.training.processes.processes`, which is called first here.

    Raises:
        InputError: `PORT_VARIABLE` of the first process is not a port, or one that it cannot listen on; the processes
            cannot reach the first one. Raised in every process.
    """
    state = processes(offloads=offloads) if process_count() > 1 else None
    if state is None or state.num_processes == 1:  # or they train separately, which raises where the reason is known
        yield
        return
    lines = _Lines(state)
    try:
        yield
    except RuntimeError:  # perhaps only the consequence of an exchange with a process that is gone
        lines.await_word()
        lines.leave(FAILED)
        raise
    except KeyboardInterrupt:
        lines.leave(LEFT)
        raise
    except BaseException:
        lines.leave(FAILED)
        raise
    lines.leave(LEFT)


def _listener(host: str, count: int) -> socket.socket:
    """Returns a socket that listens for `count` processes, on the port of `PORT_VARIABLE` if it is set.

    Raises:
        InputError: it is not a port, or the system refuses it.
    """
    text = os.environ.get(PORT_VARIABLE)
    if not text:
        return socket.create_server((host, 0), backlog=count)
    port = int(text) if text.isascii() and text.isdecimal() and len(text) <= 5 else 0
    if not 1 <= port <= 65_535:
        raise InputError(f"{PORT_VARIABLE}={show(text)} is not a port; set it to a number from 1 to 65535, or unset it")
    try:
        return socket.create_server((host, port), backlog=count)
    except OSError as error:
        raise InputError(
            f"{PORT_VARIABLE}={port} is a port that the first process cannot listen on "
            f"({os.strerror(error.errno or 0).lower()}); set it to a free one, or unset it"
        ) from error


class _Lines:
    """The connections of this process: from the first one to all others, from each other one to the first."""

    def __init__(self, state: Any) -> None:
        self.rank, self.count = state.process_index, state.num_processes
        self.peers: dict[socket.socket, str] = {}
        """Connection → description of its other end."""
        self.over, self.heard = threading.Event(), threading.Event()
        self.failed = False
        """Whether another process has reported an error."""
        alone = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")  # one machine has all of them
        host = "127.0.0.1" if alone else os.environ["MASTER_ADDR"]
        self.listener = None
        told: list[Any] = [None]
        if self.rank == 0:
            try:
                self.listener = _listener(host if alone else "", self.count)
                told = [(self.listener.getsockname()[1], secrets.randbits(62), os.getpid())]
            except InputError as error:
                told = [str(error)]
        torch.distributed.broadcast_object_list(told, 0, device=state.device)
        if isinstance(told[0], str):
            raise InputError(told[0])
        port, self.secret, first = told[0]
        if self.listener is None:
            self._add(self._connected(host, port), 0, first)
        else:
            _open.add(self.listener)
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _connected(self, host: str, port: int) -> socket.socket:
        try:
            connection = socket.create_connection((host, port), timeout=PATIENCE)
            connection.sendall(HELLO.pack(self.secret, self.rank, os.getpid()))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise InputError(
                f"process {self.rank} cannot reach the first one at {host}:{port} ({reason}); let the machines open "
                "connections to each other"
            ) from error
        return connection

    def _add(self, connection: socket.socket, rank: int, process: int) -> None:
        connection.settimeout(PATIENCE)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        place = connection.getpeername()[0]
        self.peers[connection] = f"process {rank} of {self.count}, numbered from 0 (pid {process} at {place}),"
        _open.add(connection)

    def _watch(self) -> None:
        """Receives last messages until the end of the context."""
        with selectors.DefaultSelector() as selector:
            for one in (*self.peers, *([self.listener] if self.listener else [])):
                selector.register(one, selectors.EVENT_READ)
            while not self.over.is_set():
                for key, _ in selector.select(timeout=0.1):
                    source: Any = key.fileobj
                    if source is self.listener:
                        if (connection := self._accepted()) is not None:
                            selector.register(connection, selectors.EVENT_READ)
                        continue
                    selector.unregister(source)
                    said = b""
                    with suppress(OSError):  # as of a machine that does not answer any more
                        said = source.recv(1)
                    if said != LEFT:
                        self._end(said, self.peers[source])

    def _accepted(self) -> socket.socket | None:
        """Accepts a new connection from a process of this run only."""
        assert self.listener is not None
        connection, _ = self.listener.accept()
        connection.settimeout(PATIENCE)
        with suppress(OSError, struct.error):
            secret, rank, process = HELLO.unpack(connection.recv(HELLO.size, socket.MSG_WAITALL))
            if secret == self.secret:
                self._add(connection, rank, process)
                return connection
        connection.close()
        return None

    def _end(self, said: bytes, who: str) -> None:
        """Ends this process after another one has failed or is gone, unless it ends by itself meanwhile."""
        self._tell(FAILED if said == FAILED else GONE)
        self.failed = said == FAILED
        self.heard.set()
        if self.failed and self.over.wait(PATIENCE):
            return
        # If the first one is gone, one per machine reports it, since its whole machine may have failed. Only on that
        # machine is the rank equal to the local rank.
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if not said and (self.rank == 0 or local == (1 if local == self.rank else 0)):
            line = "\r\x1b[K" if sys.stderr.isatty() else "\n"  # over the bar, or after it
            line += (
                f"error: {who} has ended without a word, as when the system ends it for memory, and training with it; "
                "what was saved stays: go on with --resume, in any number of processes\n"
            )
            os.write(2, line.encode())
        os._exit(1)

    def _tell(self, word: bytes) -> None:
        for connection in list(self.peers):
            with suppress(OSError):  # closed: by one that has left, or is gone
                connection.sendall(word)

    def await_word(self) -> None:
        """Waits a moment for a message of another process; with one this process ends, and the call does not return."""
        if self.heard.wait(PATIENCE / 2):
            if self.failed:
                os._exit(1)
            self.thread.join()

    def leave(self, word: bytes) -> None:
        """Sends a last message and closes the connections."""
        self.over.set()
        self.thread.join()
        self._tell(word)
        for one in (*self.peers, *([self.listener] if self.listener else [])):
            _open.discard(one)
            one.close()


def _let_go() -> None:
    """Closes the inherited connections in a forked process (a data loading worker)."""
    for one in _open:
        one.close()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
