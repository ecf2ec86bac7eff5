"""The plainest faults of every verb: what is named is not there, or is of another kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

TEXT = "A first sentence stands here. A second one follows it. A third ends it."

CASES: dict[str, dict[str, Any]] = {
    "summarize: no file": {"run": ["summarize", "missing.txt"], "says": "missing.txt"},
    "summarize: no sentences": {
        "files": {"a.txt": TEXT},
        "run": ["summarize", "a.txt", "--sentences", "0"],
        "says": "sentences",
    },
    "answer: no file": {"run": ["answer", "missing.txt", "what?"], "says": "missing.txt"},
    "train: no recipe": {"run": ["train", "missing.yaml"], "says": "missing.yaml"},
    "train: unknown key": {"recipe": {"optimisation.stepz": 3}, "run": ["train", "recipe.yaml"], "says": "stepz"},
    "lengthen: no source": {
        "run": ["lengthen", "./missing", "--max-tokens", "128", "--output", "out"],
        "says": "missing",
    },
    "draw: no such pattern": {"run": ["draw", "windw(3)", "--out", "a.png"], "says": "window"},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fault(case: dict[str, Any], check_fault: Callable[..., str]) -> None:
    check_fault(**case)
