"""Other sizes of what is computed at once, so that short inputs take many pieces."""

from __future__ import annotations

from dataclasses import replace

import pytest

from longspan.ops.runtime import SIZES


def set_sizes(monkeypatch: pytest.MonkeyPatch, **changes: int) -> None:
    """What a processor computes at once, for one test."""
    monkeypatch.setitem(SIZES, False, replace(SIZES[False], **changes))
