"""Numbers and names of options that no call can mean, for every verb that takes some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

TEXT = "A first sentence stands here. A second one follows it. A third ends it."
MANY = str(10**11)
ROWS = '{"source": "One thing. Another thing.", "target": "One thing."}\n'

PICK = {"--sentences": ["0", "-1", "1.5", "nan", "9" * 5000]}
WRITE = {
    "--beams": ["0", "-2", MANY, "x"],
    "--length-penalty": ["nan", "inf", "-inf", "1e23", "x"],
    "--max-tokens": ["0", "-1", MANY, "1.5"],
}
EVALUATE = {
    **WRITE,
    "--limit": ["0", "-1", str(10**12), "x"],
    "--batch-size": ["0", "-1", MANY],
    "--split": ["../../../x", "/tmp/x", "a/b", "", "..", "a\x1b[2J", "x" * 300],
    "--on-error": ["ignore", ""],
}
ANSWER = {
    "--threshold": ["nan", "-0.1", "1.1", "inf", "x"],
    "--answerable": ["nan", "0", "1", "-0.1", "inf", "x"],
}
TOKENIZER = {"--size": ["0", "260", "-1", "x"], "--limit": ["0", "-5"]}


def cases() -> dict[str, dict[str, Any]]:
    """All of them for `check_fault`."""
    verbs = {
        "summarize a.txt": (PICK, None),
        "summarize a.txt --model model": (WRITE, "bart"),
        "answer a.txt what?": (ANSWER, None),
        "evaluate model --data rows.jsonl": (EVALUATE, "bart"),
        "tokenizer a.txt --output out": (TOKENIZER, None),
    }
    found: dict[str, dict[str, Any]] = {}
    for line, (options, checkpoint) in verbs.items():
        verb = line.split()[0]
        for option, values in options.items():
            for number, value in enumerate(values):
                found[f"{verb} {option} {number}"] = {
                    "files": {"a.txt": TEXT, "rows.jsonl": ROWS},
                    "checkpoint": checkpoint,
                    "run": [*line.split(), f"{option}={value}"],
                    "says": option.strip("-").replace("-", "_"),
                }
    return found


CASES = cases()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fault(case: dict[str, Any], check_fault: Callable[..., str]) -> None:
    name = case.pop("says")
    line = check_fault(**case, says="error: ")
    assert name in line.replace("-", "_")
    assert len(line) < 1000
