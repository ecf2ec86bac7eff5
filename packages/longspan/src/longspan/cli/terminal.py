"""Output of the commands to standard output and standard error.

Documents, file names and arguments may contain characters that control a terminal: escape sequences, C1 controls,
direction marks. `say` and `complain` print them as U+FFFD, on a terminal and to a pipe, since a pager or `head` after
the pipe would pass them on; line ends and tabs are kept. `say_json` escapes them, so that programs read the original
characters. A character that the encoding lacks is replaced by the nearest one that it has, else "?".
"""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from longspan.characters import escaped, on_one_line, shown
from longspan.errors import InputError

LONGEST = 900
"""Maximum length of a message on standard error."""
COLOURS = ("red", "green", "yellow", "blue", "magenta", "cyan", "bright_red", "bright_green", "bright_blue")
"""Colours that distinguish things."""

_PLAIN = str.maketrans("‘’‚‛“”„‟«»‹›–—―‐‑−…•·×" + "\u00a0\u202f\u2009", "''''\"\"\"\"\"\"''------.**x   ")
_PLAIN |= {ord("…"): "...", ord("ß"): "ss", ord("€"): "EUR", ord("æ"): "ae", ord("ø"): "o", ord("ł"): "l"}


class ReportedExit(int):
    """An exit code whose reason has already been printed."""


def say(text: str = "", *, error: bool = False, end: str = "\n") -> None:
    """Write a text and a line end to standard output, or to standard error."""
    _write(shown(text) + end, sys.stderr if error else sys.stdout)


def redraw(text: str) -> None:
    """Write a text over the current line of a terminal at standard error."""
    _write("\r" + shown(text), sys.stderr)
    if sys.stderr is not None:
        sys.stderr.flush()


def complain(message: str) -> None:
    """Write a message to standard error on one line, with control characters replaced.

    A message that is too long is shortened to its beginning and the remedy at its end.
    """
    message = on_one_line(message)
    if len(message) > LONGEST:
        message = f"{message[: LONGEST // 2]} […] {message[-LONGEST // 2 :]}"
    # Errors are printed when the streams have their original settings, which would print escapes ("\\u017c").
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    _write(message.encode(encoding, "longspan.nearest").decode(encoding) + "\n", sys.stderr)


def say_coloured(pieces: Iterable[tuple[str, str]]) -> None:
    """Write a text whose pieces have styles of rich, which are shown only on a terminal."""
    if not sys.stdout.isatty():
        say("".join(text for text, _ in pieces).rstrip("\n"))
        return
    from rich.console import Console
    from rich.text import Text

    text = Text()
    for piece, style in pieces:
        text.append(shown(piece), style=style)
    text.rstrip()
    Console().print(text)


def say_json(value: Any) -> None:
    """Write a value as JSON to standard output."""
    _write(escaped(json.dumps(value, ensure_ascii=False, indent=2)) + "\n", sys.stdout)


def _write(text: str, stream: TextIO | None) -> None:
    if stream is not None:
        stream.write(text)


@contextmanager
def usable_streams() -> Iterator[None]:
    """Context manager for standard streams that accept any character in any encoding, and are flushed at the end.

    Raises:
        InputError: standard output is closed, or cannot be flushed at the end, for example because the disk is full.
    """
    _occupy()
    if sys.stdout is None:
        raise InputError("standard output is closed; send it to a file or to /dev/null")
    before = [(stream, stream.errors) for stream in (sys.stdout, sys.stderr) if isinstance(stream, io.TextIOWrapper)]
    for stream, _ in before:
        stream.reconfigure(errors="longspan.nearest")
    try:
        yield
        sys.stdout.flush()
    finally:
        for stream, errors in before:
            with suppress(OSError, ValueError):  # an error is already being raised, or the stream is closed
                stream.reconfigure(errors=errors)  # flushes it


LARGEST_INPUT = 1 << 28
"""Maximum size in bytes of a text on standard input."""


def text_of_input() -> str:
    """Returns the text on standard input, with line ends as "\\n".

    Raises:
        InputError: standard input is closed, cannot be read, is longer than `LARGEST_INPUT` bytes, or not UTF-8.
    """
    if sys.stdin is None:
        raise InputError("standard input is closed; give the text itself")
    try:
        data = sys.stdin.buffer.read(LARGEST_INPUT + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"standard input cannot be read ({reason}); give the text itself") from error
    except UnicodeDecodeError as error:
        raise InputError(f"standard input is not UTF-8 at byte {error.start}; convert the text") from error
    if len(data) > LARGEST_INPUT:
        raise InputError(f"standard input holds more than {LARGEST_INPUT >> 20} MB; give a shorter text")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def silence() -> None:
    """Redirect standard output to nowhere, so that text that could not be written is not flushed again at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _occupy() -> None:
    """Reopen closed standard streams, so that no other file gets their descriptors."""
    try:
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(number)
    except OSError:
        return
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False))


def _nearest(error: UnicodeError) -> tuple[str, int]:
    """Error handler: replaces each character that the encoding lacks by the nearest one that it has."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    plain = unicodedata.normalize("NFKD", text.translate(_PLAIN))
    without_marks = "".join(character for character in plain if not unicodedata.combining(character))
    return "".join(character if character.isascii() else "?" for character in without_marks), error.end


codecs.register_error("longspan.nearest", _nearest)


def name_of(file: str) -> str:
    """Returns the name of a document in messages."""
    return "standard input" if file == "-" else on_one_line(file)
