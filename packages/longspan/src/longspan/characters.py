"""Characters that no text should hold (halves of a pair, and what would steer a terminal instead of being read), and
counts in words."""

from __future__ import annotations

import re

from longspan.errors import InputError

UNKNOWN = "\ufffd"
"""Stands for a character that cannot be shown."""

# Of the joiners only those behind letters of scripts that write without them.
_INVISIBLE = re.compile(
    r"\u00ad[^\S\n]*\n[^\S\n]*(?=\w)|[\u00ad\u180e\u200b\u2060-\u2064\ufeff]|(?<![^\0-\u058f\u3000-\u9fff])[\u200c\u200d]+"
)
_HALF = re.compile(r"[\ud800-\udfff]")
_SPACES = re.compile(r"[\v\f\x1c-\x1f\x85]|\r\n?")
# C0 and C1, DEL, and the marks that make what follows run in another direction, until they are ended.
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_ESCAPED = re.compile(r"[\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_ENTITY = re.compile(r"&#([xX]?)([0-9a-fA-F]+);?")
_LINE_END = re.compile(r"[\n\r\u2028\u2029]+")


def check_characters(text: str, what: str) -> str:
    """The text itself; `InputError` where it has half a character, an unpaired surrogate, which no file can hold.

    JSON escapes (`"\\ud83d"`) and entities bring them in; tokenizers and encoders cannot take them.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{what} has half a character at {error.start} (an unpaired surrogate); repair the text"
        ) from None
    return text


def mend(text: str) -> tuple[str, int]:
    """The text with every half character replaced by U+FFFD, place by place, and how many there were."""
    return (text, 0) if text.isascii() else _HALF.subn(UNKNOWN, text)


def invisible(text: str) -> list[tuple[int, int]]:
    """Where a text has characters that nobody sees: soft hyphens, with a line end behind them, and those without width.

    Joiners count where Latin, Greek, Cyrillic, Chinese or Japanese letters stand before them; other scripts and emoji
    are written with them.
    """
    return [] if text.isascii() else [match.span() for match in _INVISIBLE.finditer(text)]


def visible(text: str) -> str:
    """The text without characters that nobody sees; see `invisible`."""
    return text if text.isascii() else _INVISIBLE.sub("", text)


def mended_note(count: int) -> str:
    """The sentence that says how many half characters of a text were replaced."""
    halves = counted(count, "broken character was", "broken characters were")
    return f"{halves} (half of a surrogate pair) replaced by {UNKNOWN}"


def shown(text: str) -> str:
    """The text as a terminal may have it: line ends and tabs stay, all that would steer the terminal is U+FFFD."""
    lines = _SPACES.sub(lambda match: "\n" if match[0][0] == "\r" else " ", text)
    return _CONTROL.sub(UNKNOWN, lines)


def on_one_line(text: str) -> str:
    """As `shown`, with a space for every line end and tab: for errors, names and titles."""
    return shown(_LINE_END.sub(" ", text).replace("\t", " "))


def escaped(json_text: str) -> str:
    """A JSON text with escapes (`\\u009b`) for what `shown` replaces: the same values, for any program to read."""
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", json_text)


def without_half_entities(markup: str) -> tuple[str, int]:
    """HTML or Markdown with U+FFFD for entities that name half a character (`&#xD83D;`), and how many there were."""
    count = 0

    def mended(match: re.Match[str]) -> str:
        nonlocal count
        code = int(match[2], 16 if match[1] else 10) if len(match[2]) < 12 else 0
        if not 0xD800 <= code < 0xE000:
            return match[0]
        count += 1
        return UNKNOWN

    return _ENTITY.sub(mended, markup), count


def duration(seconds: float) -> str:
    """A time for people: "4.2 ms", "0.42 s", "12 s", "20 min", "3.5 h"."""
    if seconds < 0.1:
        return f"{1e3 * seconds:.2g} ms"
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def counted(number: int, one: str, several: str | None = None) -> str:
    """A count with its noun: "1 word", "2,300 words"; `several` is the plural where an s does not make it."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
