"""Checks and replacement of characters that texts should not contain (unpaired surrogates, control characters), and
counts in words."""

from __future__ import annotations

import re

from longspan.errors import InputError

UNKNOWN = "\ufffd"
"""Replaces characters that cannot be shown."""

# Of the joiners, only those after letters of scripts that do not use them.
_INVISIBLE = re.compile(
    r"\u00ad[^\S\n]*\n[^\S\n]*(?=\w)|[\u00ad\u180e\u200b\u2060-\u2064\ufeff]|(?<![^\0-\u058f\u3000-\u9fff])[\u200c\u200d]+"
)
_HALF = re.compile(r"[\ud800-\udfff]")
_SPACES = re.compile(r"[\v\f\x1c-\x1f\x85]|\r\n?")
# C0 and C1, DEL, and marks that change the direction of the following text.
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_ESCAPED = re.compile(r"[\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_ENTITY = re.compile(r"&#([xX]?)([0-9a-fA-F]+);?")
_LINE_END = re.compile(r"[\n\r\u2028\u2029]+")


def check_characters(text: str, what: str) -> str:
    r"""Returns the text; raises `InputError` if it contains an unpaired surrogate, which no file can store.

    JSON escapes (`"\\ud83d"`) and entities may produce them; tokenizers and encoders cannot process them.
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
    """Replaces every unpaired surrogate by U+FFFD, keeping positions, and returns their number."""
    return (text, 0) if text.isascii() else _HALF.subn(UNKNOWN, text)


def invisible(text: str) -> list[tuple[int, int]]:
    """Returns the spans of invisible characters: soft hyphens, with a following line end, and zero-width characters.

    Joiners are included after Latin, Greek, Cyrillic, Chinese or Japanese letters; other scripts and emoji use them.
    """
    return [] if text.isascii() else [match.span() for match in _INVISIBLE.finditer(text)]


def visible(text: str) -> str:
    """Removes invisible characters; see `invisible`."""
    return text if text.isascii() else _INVISIBLE.sub("", text)


def mended_note(count: int) -> str:
    """Returns the note on the number of replaced surrogates of a text."""
    halves = counted(count, "broken character was", "broken characters were")
    return f"{halves} (half of a surrogate pair) replaced by {UNKNOWN}"


def shown(text: str) -> str:
    """Returns the text for a terminal: line ends and tabs are kept, control characters become U+FFFD."""
    lines = _SPACES.sub(lambda match: "\n" if match[0][0] == "\r" else " ", text)
    return _CONTROL.sub(UNKNOWN, lines)


def on_one_line(text: str) -> str:
    """As `shown`, with a space for every line end and tab: for errors, names and titles."""
    return shown(_LINE_END.sub(" ", text).replace("\t", " "))


def escaped(json_text: str) -> str:
    r"""Escapes in a JSON text (`\\u009b`) what `shown` replaces: equal values, readable by any program."""
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", json_text)


def without_half_entities(markup: str) -> tuple[str, int]:
    """Replaces entities of unpaired surrogates (`&#xD83D;`) in HTML or Markdown by U+FFFD, and returns their number."""
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
    """Formats a duration: "4.2 ms", "0.42 s", "12 s", "20 min", "3.5 h"."""
    if seconds < 0.1:
        return f"{1e3 * seconds:.2g} ms"
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def counted(number: int, one: str, several: str | None = None) -> str:
    """Formats a count with its noun: "1 word", "2,300 words"; `several` is an irregular plural."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
