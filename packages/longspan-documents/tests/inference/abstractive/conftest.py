"""Tiny models that write, each made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tiny_writers import write_folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a kind of model. Each writes at least six tokens, which a random one would not always do."""

    @cache
    def made(kind: str) -> Path:
        return write_folder(tmp_path_factory.mktemp("writers") / kind, kind, generation={"min_new_tokens": 6})

    return made
