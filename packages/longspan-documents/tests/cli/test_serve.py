"""`longspan serve`: what it refuses; `packages/longspan-documents/tests/serve` has the rest."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable

import pytest

from longspan.cli import main

pytest.importorskip("fastapi", reason="the server comes with the 'serve' extra")


def test_the_command_refuses_what_cannot_be(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port={port} of 127.0.0.1 cannot be had" in refused("serve", "--port", port)
    assert "host='no such host'" in refused("serve", "--host", "no such host")
    said = refused("serve", "--port", 70000)  # the second form is of typer before 0.29
    assert "--port='70000' must be at most 65535" in said or "'--port': 70000 is not in the range 0<=x<=65535" in said
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'longspan[serve]'" in refused("serve")
    assert main(["serve", "--help"]) == 0
