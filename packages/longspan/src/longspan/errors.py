"""The one exception that means "the input is wrong", as opposed to "the program is wrong", and the border to it."""

from __future__ import annotations

import errno
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


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
        if is_out_of_memory(error):
            raise InputError(f"{problem}: {memory_sentence(error)}") from error
        raise InputError(f"{problem}: {last_line(error)}") from error


@contextmanager
def named(argument: str) -> Iterator[None]:
    """Errors of opening a model begin with the argument that named it, where they do not tell it: there are several."""
    try:
        yield
    except InputError as error:
        if argument in str(error):
            raise
        raise InputError(f"{argument}: {error}") from error


_OUT_OF_MEMORY = re.compile(
    r"can't allocate memory|out of memory|cannot allocate memory|std::bad_alloc|failed to map segment|"
    r"can't start new thread|\(os error 12\)",
    re.IGNORECASE,
)
"""What torch, the loader of libraries and others say when the system gives no more memory."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an exception, or the one that it came of, says that the memory was not enough."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            return True
        if not isinstance(error, InputError) and _OUT_OF_MEMORY.search(str(error)):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def memory_sentence(error: BaseException) -> str:
    """That the memory was not enough, as far as it is known for what, and what to do."""
    asked = re.search(r"tried to allocate ([\d.]+) ?(bytes|[KMG]i?B)", str(error), re.IGNORECASE)
    if asked is None:
        more = ""
    elif asked[2] == "bytes":
        more = f" ({int(asked[1]) / 1e6:,.1f} MB more were asked for)"
    else:
        more = f" ({asked[1]} {asked[2]} more were asked for)"
    if is_out_of_device_memory(error):
        return f"memory ran out{more} on the GPU; give less text at once, a smaller model or batch, or a larger GPU"
    remedy = "give less text at once, a smaller model or batch, or more memory (`ulimit -v` shows a limit)"
    return f"memory ran out{more}; {remedy}"


def is_out_of_device_memory(error: BaseException | None) -> bool:
    """Whether an exception, or the one that it came of, says that a GPU's memory was not enough."""
    torch = sys.modules.get("torch")
    while torch is not None and error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def last_line(error: BaseException) -> str:
    """The last line that an exception says, short and printable, as the end of a sentence of ours."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = "".join(sign if sign.isprintable() else " " for sign in (lines or [type(error).__name__])[-1])
    return (text if len(text) <= 240 else f"{text[:240]}…").rstrip(". ")


REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file would become larger than the system allows",
    errno.EROFS: "the disk is read-only",
}
"""Error numbers that only writing gives."""
NO_NUMBER = ("PytorchStreamWriter failed", "inline_container.cc", "iostream error", "No space left on device")
"""What torch and others say, in C++, when a file cannot be written."""


@contextmanager
def write_errors(place: Path) -> Iterator[None]:
    """Turn what libraries raise on a disk that is full or read-only into one sentence (`InputError`)."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = disk_reason(error)
        if reason is None:
            raise
        raise InputError(
            f"{str(place)!r} cannot be written: {reason} ({_free(place)} free there); free some space, or choose "
            "another place"
        ) from error


def disk_reason(error: BaseException | None) -> str | None:
    """Why something could not be written, by an exception or its causes; None for one that is not about writing."""
    while error is not None:
        # safetensors and tokenizers, written in Rust, give the number in words.
        number: Any = error.errno if isinstance(error, OSError) else None
        if number is None and (match := re.search(r"\(os error (\d+)\)", str(error))):
            number = int(match[1])
        if number in REASONS:
            return REASONS[number]
        if any(words in str(error) for words in NO_NUMBER):
            return REASONS[errno.ENOSPC]
        error = error.__cause__ or error.__context__
    return None


def _free(place: Path) -> str:
    nearest = next(path for path in (place, *place.parents) if path.exists())
    return f"{shutil.disk_usage(nearest).free / 1e6:.1f} MB"
