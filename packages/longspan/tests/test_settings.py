"""Plain data to dataclasses and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from longspan.errors import InputError
from longspan.settings import from_plain, to_plain


@dataclass(frozen=True, kw_only=True)
class Inner:
    count: int = 3
    origin: str | None = field(default=None, metadata={"key": "from"})


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    inner: Inner = field(default_factory=Inner)
    numbers: tuple[float, ...] = ()
    free: Any = None


def test_round_trip_with_a_key_that_is_no_python_name() -> None:
    data = {"name": "x", "inner": {"count": 5, "from": "here"}, "numbers": [1, 2e-3], "free": {"a": [1, None]}}
    outer = from_plain(Outer, data)
    assert outer == Outer(name="x", inner=Inner(count=5, origin="here"), numbers=(1.0, 0.002), free={"a": [1, None]})
    assert from_plain(Outer, to_plain(outer)) == outer


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "missing key 'name'"),
        ({"name": 3}, "name is 3; it must be a text"),
        ({"name": "x", "inner": {"cuont": 1}}, "unknown key 'inner.cuont'; did you mean 'count'"),
        ({"name": "x", "inner": {"count": True}}, "inner.count is True; it must be a whole number"),
        ({"name": "x", "inner": {"count": 1.5}}, "inner.count is 1.5"),
        ({"name": "x", "numbers": ["a"]}, r"numbers\[0\] is 'a'; it must be a number"),
        ({"name": "x", "numbers": [1, "2e-3"]}, r"numbers\[1\] is '2e-3'; it must be a number"),
        ({"name": "x", "zzz": 1}, "unknown key 'zzz'; choose one of name, inner, numbers, free"),
        ([], "must be a mapping"),
    ],
)
def test_mistakes(data: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        from_plain(Outer, data)
