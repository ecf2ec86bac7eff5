"""The plainest faults of every verb: what is named is not there, is of another kind, or is not for this verb."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

NOTE = {"a.txt": "A first sentence stands here. A second one follows it. A third ends it."}

CASES: dict[str, dict[str, Any]] = {
    "summarize: no file": {"run": ["summarize", "missing.txt"], "says": "missing.txt"},
    "summarize: no sentences": {
        "files": NOTE,
        "run": ["summarize", "a.txt", "--sentences", "0"],
        "says": "--sentences='0' must be at least 1",
    },
    "summarize: no model": {"files": NOTE, "run": ["summarize", "a.txt", "--model", "./nowhere"], "says": "nowhere"},
    "summarize: beams where sentences are picked": {
        "files": NOTE,
        "run": ["summarize", "a.txt", "--beams", "3"],
        "says": "picks sentences",
    },
    "summarize: one picture of two files": {
        "files": NOTE,
        "run": ["summarize", "a.txt", "a.txt", "--picture", "x.png"],
        "says": "--picture x.png draws one document",
    },
    "answer: no file": {"run": ["answer", "missing.txt", "what?"], "says": "missing.txt"},
    "answer: no question": {"files": NOTE, "run": ["answer", "a.txt"], "says": "name a document and ask a question"},
    "answer: no model": {"files": NOTE, "run": ["answer", "a.txt", "why?", "--model", "./nowhere"], "says": "nowhere"},
    "train: no recipe": {"run": ["train", "missing.yaml"], "says": "missing.yaml"},
    "train: unknown key": {"recipe": {"optimisation.stepz": 3}, "run": ["train", "recipe.yaml"], "says": "stepz"},
    "train: no data": {"recipe": {"data.train": "nowhere"}, "run": ["train", "recipe.yaml"], "says": "nowhere"},
    "lengthen: no source": {
        "run": ["lengthen", "./missing", "--max-tokens", "128", "--output", "out"],
        "says": "missing",
    },
    "lengthen: dilations of fewer heads": {
        "checkpoint": "bart",
        "run": ["lengthen", "model", "--attention", "longformer", "dilation=[1,2,4]", "--output", "out"],
        "says": "dilation=(1, 2, 4)",
    },
    "lengthen: no such mechanism": {
        "checkpoint": "bart",
        "run": ["lengthen", "model", "--attention", "longfomer", "--output", "out"],
        "says": "did you mean 'longformer'",
    },
    "draw: no such pattern": {"run": ["draw", "windw(3)", "--out", "a.png"], "says": "window"},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fault(case: dict[str, Any], check_fault: Callable[..., str]) -> None:
    check_fault(**case)
