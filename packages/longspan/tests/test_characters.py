"""Half characters and control characters: what is refused, mended, shown and escaped."""

from __future__ import annotations

import json
import unicodedata

import pytest

from longspan.characters import (
    check_characters,
    duration,
    escaped,
    mend,
    on_one_line,
    shown,
    visible,
    without_half_entities,
)
from longspan.errors import InputError


def test_every_control_character_is_shown_as_unknown_and_nothing_else_is_touched() -> None:
    for code in [*range(0x3000), *range(0xD700, 0xE100), 0x1F600, 0xE0001]:
        character = chr(code)
        steers = unicodedata.category(character) in {"Cc", "Cs"} or code in {
            *range(0x202A, 0x202F),
            *range(0x2066, 0x206A),
        }
        seen = shown(f"a{character}b")
        if character in "\n\t" or not steers:
            assert seen == f"a{character}b", hex(code)
        else:
            assert seen in {"a\ufffdb", "a b", "a\nb"}, hex(code)


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "a\tb", "a\u2028b", "a\n\n\nb", "a\x85b", "a\x0bb"])
def test_one_line(text: str) -> None:
    assert on_one_line(text) == "a b"


def test_mending_keeps_every_place() -> None:
    assert mend("a\ud83db\ude00c😀") == ("a\ufffdb\ufffdc😀", 2)
    assert mend("plain") == ("plain", 0)


def test_check_names_what_and_where() -> None:
    assert check_characters("Grüße 😀", "the text") == "Grüße 😀"
    with pytest.raises(InputError, match="the text has half a character at 3"):
        check_characters("cut\ud83d here", "the text")


def test_json_keeps_its_values() -> None:
    value = {"text": "a\x1b[31m\x9b\u202e😀\x7fü", "file": "b\udcff.txt"}
    text = escaped(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == value
    assert "ü😀"[1] in text
    text.encode()
    assert all(unicodedata.category(character) != "Cc" for character in text)


@pytest.mark.parametrize(
    ("markup", "text", "count"),
    [
        ("a&#xD83D;b", "a\ufffdb", 1),
        ("&#55357;&#56832;", "\ufffd\ufffd", 2),
        ("&#x1F600; &#228; &amp;", "&#x1F600; &#228; &amp;", 0),
        ("&#" + "9" * 50_000 + ";", "&#" + "9" * 50_000 + ";", 0),
    ],
    ids=["hexadecimal", "decimal pair", "whole characters", "thousands of digits"],
)
def test_entities_of_half_characters(markup: str, text: str, count: int) -> None:
    assert without_half_entities(markup) == (text, count)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0042, "4.2 ms"), (0.42, "0.42 s"), (4.2, "4.2 s"), (99, "99 s"), (600, "10 min"), (3600 * 30, "30.0 h")],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Unter\u00adnehmen", "Unternehmen"),
        ("Unter\u00ad\nnehmen", "Unternehmen"),
        ("zero\u200bwidth \ufeffand \u2060joined", "zerowidth and joined"),
        ("na\u200cme", "name"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("\U0001f469\u200d\U0001f680", "\U0001f469\u200d\U0001f680"),
        ("क्\u200dष", "क्\u200dष"),
    ],
)
def test_characters_that_nobody_sees_vanish_and_letters_stay(text: str, expected: str) -> None:
    assert visible(text) == expected
