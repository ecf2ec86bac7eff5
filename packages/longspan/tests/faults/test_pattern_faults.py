"""Patterns, pictures of them and layer lists that cannot be meant: numbers, texts and sizes beyond all use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

HUGE = "99999999999999999999"


def draw(pattern: str, *options: str, says: str | list[str]) -> dict[str, Any]:
    return {"run": ["draw", pattern, "--out", "a.png", *options], "says": says}


def lengthen(layers: str, says: str | list[str]) -> dict[str, Any]:
    run = ["lengthen", "./model", "--max-tokens", "128", "--output", "out", f"layers={layers}"]
    return {"checkpoint": "roberta", "run": run, "says": says}


CASES: dict[str, dict[str, Any]] = {
    "window beyond 64 bits": draw(f"window({HUGE})", says=["left", "2147483647"]),
    "window just beyond": draw("window(2147483648)", says="2147483647"),
    "window far below zero": draw(f"window(-{HUGE})", says="at least 0"),
    "dilation beyond 64 bits": draw(f"window(1, 1, {HUGE})", says="dilation"),
    "first beyond 64 bits": draw(f"first({HUGE})", says="count"),
    "blocks beyond 64 bits": draw(f"blocks({HUGE})", says="size"),
    "strided beyond 64 bits": draw(f"strided({HUGE})", says="stride"),
    "fixed beyond 64 bits": draw(f"fixed({HUGE}, 1)", says="stride"),
    "pooled window beyond 64 bits": draw(f"pooled_window(8, 8, 5, {HUGE})", says="stride"),
    "seed beyond 64 bits": draw(f"random_blocks(1, 1, {HUGE})", says="seed"),
    "number of 5000 digits": draw("window(" + "9" * 5000 + ")", says="pattern"),
    "random blocks by the million": draw("random_blocks(1, 3000000)", says=["count=3000000", "256"]),
    "random blocks too fine for a picture": draw(
        "random_blocks(1, 3)", "--tokens", "32768", says=["tokens=32768", "fewer tokens"]
    ),
    "no block at all": draw("random_blocks(0, 3)", says="block=0"),
    "a thousand alternatives": draw(" | ".join(f"window({n})" for n in range(1, 1001)), says="inside each other"),
    "ten thousand alternatives": draw(" | ".join(f"window({n})" for n in range(1, 10000)), says="characters"),
    "a thousand heads": draw(f"per_head({', '.join(['full'] * 1000)})", says=["1000", "64"]),
    "a thousand panels": draw(f"per_head({', '.join(['full'] * 1000)})", "--heads", says=["1000", "64"]),
    "deep brackets": draw("(" * 2000 + "full" + ")" * 2000, says="pattern"),
    "deep signs": draw("window(" + "-" * 3000 + "1)", says="pattern"),
    "unclosed brackets": draw("(" * 90, says="cannot be read"),
    "no pattern": draw("", says="cannot be read"),
    "blanks": draw("   ", says="cannot be read"),
    "a line end": draw("window(3)\n| first(1)", says="cannot be read"),
    "NUL": draw("window(3)\0", says="cannot be read"),
    "escape characters": draw("window(3)\x1b[31m", says="cannot be read"),
    "escape characters in a name": draw("'\x1b[31m'", says="no pattern"),
    "a lone surrogate": draw("window(3)\udc80", says="cannot be read"),
    "other digits": draw("window(\u0663)", says="pattern"),
    "another language": draw("окно(3)", says="does not exist"),
    "a float": draw("window(1e3)", says="whole number"),
    "a truth value": draw("window(True)", says="whole number"),
    "a text": draw("window('3')", says="whole number"),
    "a list": draw("window([3])", says="whole number"),
    "code": draw("__import__('os').system('true')", says="no pattern"),
    "a comprehension": draw("[full for _ in range(9)]", says="no pattern"),
    "an assignment": draw("(x := full)", says="no pattern"),
    "the same option twice": draw("window(left=1, left=2)", says="left, right, dilation"),
    "an unknown option": draw("window(1, reach=3)", says="left, right, dilation"),
    "options in a dictionary": draw("window(**{'left': 1})", says="whole number"),
    "stars": draw("window(*[1, 2])", says="whole number"),
    "per_head of nothing": draw("per_head()", says="empty"),
    "per_head with a name": draw("per_head(full, heads=2)", says="by name"),
    "per_head in per_head": draw("per_head(per_head(full))", says="per-head"),
    "heads that differ": draw("per_head(full, full) | per_head(full)", says="do not combine"),
    "panels without heads": draw("full", "--heads", says="same for every head"),
    "no tokens": draw("full", "--tokens", "0", says="tokens=0"),
    "fewer than no tokens": draw("full", "--tokens", "-5", says="tokens=-5"),
    "tokens beyond a picture": draw("full", "--tokens", "32769", says="32768"),
    "tokens beyond 64 bits": draw("full", "--tokens", HUGE, says="32768"),
    "layers by the billion": lengthen("0-99999999999", says=["layers", "99999999999"]),
    "layers beyond 64 bits": lengthen(f"0-{HUGE}", says="layers"),
    "a layer beyond 64 bits": lengthen(HUGE, says="layer"),
    "layers of 5000 digits": lengthen("9" * 5000, says="layers"),
    "layers in other digits": lengthen("\u0663", says="layer"),
    "layers backwards": lengthen("1-0", says="lower number first"),
    "no layers": lengthen(",", says="layers"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fault(case: dict[str, Any], check_fault: Callable[..., str]) -> None:
    check_fault(**case)
