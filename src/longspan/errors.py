"""The one exception that means "the input is wrong", as opposed to "the program is wrong", and the border to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """A mistake in what the user gave: an argument, a file, a configuration, a checkpoint.

    The message is one clear sentence that names the argument, its value and the remedy. The command line prints it
    alone, without a traceback, and exits with code 2. Broken invariants inside the library stay plain assertions.
    """


@contextmanager
def one_sentence(problem: str) -> Iterator[None]:
    """The border to a foreign library that reads files: whatever it raises becomes `problem` and its last line.

    Raises:
        InputError: from inside as it is, and in place of every other exception.
    """
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        # A panic in Rust, of which the tokenizers are made, is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{problem}: {last_line(error)}") from error


def last_line(error: BaseException) -> str:
    """The last line that an exception says, short and printable, as the end of a sentence of ours."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = "".join(sign if sign.isprintable() else " " for sign in (lines or [type(error).__name__])[-1])
    return (text if len(text) <= 240 else f"{text[:240]}…").rstrip(". ")
