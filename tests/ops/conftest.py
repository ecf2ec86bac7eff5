"""What tests of operators share: how large the tensors are that an operation makes."""

from __future__ import annotations

import pytest

from longspan.ops import blocked


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, memory) -> list[int]:
    """The largest tensor of each half of the blocked operator, which a mode does not see from outside, call by call."""
    found = []
    for name in ("forward", "backward"):
        original = getattr(blocked, name)

        def watching(*args, original=original):
            with memory() as made:
                result = original(*args)
            found.append(made.largest)
            return result

        monkeypatch.setattr(blocked, name, watching)
    return found
