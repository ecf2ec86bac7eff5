"""What tests of operators share: how large the tensors are that an operation makes."""

from __future__ import annotations

import pytest

from longspan.ops.tiles import blocked
from longspan.ops.tiles.biased import Biased


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, memory) -> list[int]:
    """The largest tensor of each half of the blocked operator, which a mode does not see from outside, call by call."""
    found = []
    halves = [(blocked, "forward"), (blocked, "backward"), (Biased, "output"), (Biased, "gradients")]
    for owner, name in halves:
        original = getattr(owner, name)

        def watching(*args, original=original):
            with memory() as made:
                result = original(*args)
            found.append(made.largest)
            return result

        monkeypatch.setattr(owner, name, watching)
    return found
