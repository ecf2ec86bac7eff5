"""Fields with their types: what is there, and the sentence about what is not."""

from __future__ import annotations

from typing import Any

import pytest

from longspan.data.fields import kind_of, list_of, name_of, number_of, value_of
from longspan.errors import InputError


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "null"), ("x", "a str"), (3, "an int"), ([], "a list"), (True, "a bool"), (1.5, "a float")],
)
def test_kinds_in_words(value: Any, words: str) -> None:
    assert kind_of(value) == words


def test_fields_that_are_there() -> None:
    record = {"text": None, "tokens": [1], "start": -1, "id": 7}
    assert value_of(record, "text") is None
    assert list_of(record, "tokens") == [1]
    assert number_of(record, "start", "entry 2") == -1
    assert name_of(record, "id", "row 1") == "7"
    assert name_of({"id": ""}, "id", "row 1") == name_of({}, "id", "row 1") == "row 1"
    assert name_of({"id": 0}, "id", "row 1") == "0"


def test_fields_that_are_not() -> None:
    with pytest.raises(InputError, match="the record has no field 'b'; it has a"):
        value_of({"a": 1}, "b")
    with pytest.raises(InputError, match="entry 2 has no field 'b'; it has none"):
        value_of({}, "b", "entry 2")
    with pytest.raises(InputError, match="entry 2 is a list instead of an object"):
        value_of([], "b", "entry 2")
    with pytest.raises(InputError, match="field 'b' of the record holds null instead of a list"):
        list_of({"b": None}, "b")


@pytest.mark.parametrize("value", ["3", 3.0, True, None])
def test_only_whole_numbers_are_numbers(value: Any) -> None:
    with pytest.raises(InputError, match=r"field 'b' of entry 2 holds .* instead of a whole number"):
        number_of({"b": value}, "b", "entry 2")
