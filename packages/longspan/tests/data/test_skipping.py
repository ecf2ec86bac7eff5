"""Corrupt records: raised at once, or counted and told at the end."""

from __future__ import annotations

import logging

import pytest

from longspan.data.fields import Skipped, check_on_error
from longspan.errors import InputError


def test_the_first_one_stops_unless_skipping_was_asked_for() -> None:
    skipped = Skipped("rows.jsonl")
    with pytest.raises(InputError, match=r"rows\.jsonl, line 3: wrong"):
        skipped.add(3, InputError("rows.jsonl, line 3: wrong"))
    assert skipped.with_remedy("wrong") == "wrong (on_error: skip passes over such records)"


@pytest.mark.parametrize(("count", "words"), [(1, "1 corrupt record was"), (1200, "1,200 corrupt records were")])
def test_skipped_ones_are_counted(count: int, words: str, caplog: pytest.LogCaptureFixture) -> None:
    skipped = Skipped("rows.jsonl", "skip")
    for line in range(1, count + 1):
        skipped.add(line, InputError(f"line {line}: wrong"))
    skipped.report()
    assert caplog.messages == [f"rows.jsonl: {words} skipped; the first: line 1: wrong"]
    assert skipped.with_remedy("wrong") == "wrong"


def test_nothing_is_said_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        Skipped("rows.jsonl", "skip").report()
    assert not caplog.messages


def test_another_word_is_refused() -> None:
    check_on_error("raise")
    with pytest.raises(InputError, match="on_error='ignore' is unknown; choose 'raise' or 'skip'"):
        check_on_error("ignore")
