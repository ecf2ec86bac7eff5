"""Names on the Hub without a network: one sentence at once; with one, or in the cache, nothing is said."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from installed import needs_documents
from longspan.checkpoints.sources import PATIENCE, check_reachable
from longspan.cli import main
from longspan.errors import InputError


@pytest.fixture(autouse=True)
def _hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that takes connections and never answers, as behind many a firewall."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def answering() -> Iterator[int]:
    """The port of a server that answers every request with 404."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def refused(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> str:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    waits = []
    connect = socket.create_connection

    def noted(address: Any, timeout: Any = None, *others: Any, **options: Any) -> socket.socket:
        waits.append(timeout)
        return connect(address, timeout, *others, **options)

    monkeypatch.setattr(socket, "create_connection", noted)
    with pytest.raises(InputError, match="cannot be reached and the cache has no such model") as error:
        check_reachable("nobody/has-this")
    assert waits in ([], [PATIENCE])  # asked once, and waited for no longer
    assert "\n" not in str(error.value)
    return str(error.value)


def test_no_such_host(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "hub.invalid cannot be reached" in refused(monkeypatch, "https://hub.invalid")


def test_a_host_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "refused" in refused(monkeypatch, f"http://127.0.0.1:{closed_port()}")


@pytest.mark.slow
def test_a_host_that_never_answers(monkeypatch: pytest.MonkeyPatch, silent: int) -> None:
    assert "timed out" in refused(monkeypatch, f"http://127.0.0.1:{silent}")


def test_a_proxy_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed_port()}")
    assert "refused" in refused(monkeypatch, "http://hub.invalid")


def test_offline_by_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refused(monkeypatch, "http://hub.invalid")


def test_an_answer_is_an_answer(monkeypatch: pytest.MonkeyPatch, answering: int) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{answering}")
    check_reachable("nobody/has-this")


def test_what_no_repository_is_called() -> None:
    with pytest.raises(InputError, match="neither a directory nor a Hub name"):
        check_reachable("not/a name")


@needs_documents
def test_a_command_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://hub.invalid")
    note = tmp_path / "note.txt"
    note.write_text("It rained. It shone.", encoding="utf-8")
    assert main(["summarize", str(note), "--model", "nobody/has-this"]) == 2
    error = capfd.readouterr().err
    assert error.startswith("error: model 'nobody/has-this' is neither a directory nor a name that can be fetched")
    assert error.count("\n") == 1
