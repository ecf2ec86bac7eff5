"""Plain data to dataclasses and back."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Annotated, Any

import pytest

from longspan import settings
from longspan.attention import MECHANISMS
from longspan.errors import InputError
from longspan.models.fields import ModelFields
from longspan.models.heads import HEADS
from longspan.settings import Range, Share, check, from_plain, to_plain
from longspan.stacks import STACKS
from longspan.tasks import TASKS
from longspan.training.optimisation import Lora, Optimisation, Parallel
from longspan.training.sections import Data, Generation, Model, Published, Tokenizer


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


@dataclass(frozen=True, kw_only=True)
class Checked:
    size: Annotated[int, Range(1, 9)] = 3
    shares: tuple[Share, ...] = (0.5,)
    deeper: Checked | None = None

    def __post_init__(self) -> None:
        check(self)


def test_each_value_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By whichever door it comes in; defaults are parsed by none."""
    parsed: list[tuple[str, Any]] = []
    convert = settings._scalar

    def counted(hint: Any, value: Any, path: str) -> Any:
        parsed.append((path, value))
        return convert(hint, value, path)

    monkeypatch.setattr(settings, "_scalar", counted)
    made = from_plain(Checked, {"size": 5, "deeper": {"shares": [0, 1]}})
    assert parsed == [("size", 5), ("deeper.shares[0]", 0), ("deeper.shares[1]", 1)]
    assert vars(made) == {"size": 5, "shares": (0.5,), "deeper": Checked(shares=(0.0, 1.0))}
    parsed.clear()
    Checked(size=7, deeper=made)
    assert parsed == [("size", 7)]


@pytest.mark.parametrize("wrong", [{"size": 10}, {"size": True}, {"shares": [2]}, {"deeper": {"size": 0}}])
def test_both_doors_refuse_the_same(wrong: dict[str, Any]) -> None:
    for door in (lambda: Checked(**wrong), lambda: from_plain(Checked, wrong)):
        with pytest.raises(InputError):
            door()
    with pytest.raises(InputError):
        replace(from_plain(Checked, {"size": 5}), **wrong)


SECTIONS = (Data, Generation, Lora, Model, Optimisation, Parallel, Published, Tokenizer)
TABLES = (MECHANISMS, STACKS, HEADS, TASKS)


@pytest.mark.parametrize("kind", [*SECTIONS, *(kind for table in TABLES for kind in table.values()), ModelFields])
def test_defaults_are_values_that_a_field_may_have(kind: Any) -> None:
    """Nothing checks them when an object is made."""
    for entry in fields(kind):
        if entry.default is not MISSING and not entry.name.startswith("_"):
            settings.convert(settings.hints_of(kind)[entry.name], entry.default, entry.name)
