"""`InputError`, the exception for wrong input as opposed to program errors, and conversion of other exceptions to
it."""

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
    """Wrong input by the user: an argument, a file, a configuration, a checkpoint.

    The message is one clear sentence that names the argument, its value and the remedy. The command line prints it
    alone, without a traceback, and exits with code 2. Broken invariants inside the library are plain assertions.
    """


@contextmanager
def one_sentence(problem: str) -> Iterator[None]:
    """Converts any exception of a foreign library that reads files to an `InputError` of `problem` and its last line.

    Raises:
        InputError: from inside unchanged, and instead of every other exception.
    """
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        # A panic in Rust, in which the tokenizers are written, is not an Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if is_out_of_memory(error):
            raise InputError(f"{problem}: {memory_sentence(error)}") from error
        raise InputError(f"{problem}: {last_line(error)}") from error


@contextmanager
def named(argument: str) -> Iterator[None]:
    """Prefixes errors of loading a model with the argument that named it, unless they mention it."""
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
"""Messages of torch, the dynamic loader and others when the system has no more memory."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an exception or one of its causes means that memory ran out."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            return True
        if not isinstance(error, InputError) and _OUT_OF_MEMORY.search(str(error)):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def memory_sentence(error: BaseException) -> str:
    """Returns the message for an out-of-memory error, with the requested size, if known, and the remedy."""
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
    """Whether an exception or one of its causes means that a GPU's memory ran out."""
    torch = sys.modules.get("torch")
    while torch is not None and error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def last_line(error: BaseException) -> str:
    """Returns the last line of an exception's message, short and printable, as the end of a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = "".join(sign if sign.isprintable() else " " for sign in (lines or [type(error).__name__])[-1])
    return (text if len(text) <= 240 else f"{text[:240]}…").rstrip(". ")


REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file would become larger than the system allows",
    errno.EROFS: "the disk is read-only",
}
"""Error numbers specific to writing."""
NO_NUMBER = ("PytorchStreamWriter failed", "inline_container.cc", "iostream error", "No space left on device")
"""C++ messages of torch and others when a file cannot be written."""


@contextmanager
def write_errors(place: Path) -> Iterator[None]:
    """Converts exceptions from a full or read-only disk to one sentence (`InputError`)."""
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
    """Returns why something could not be written, from an exception or its causes; None if it is not about writing."""
    while error is not None:
        # safetensors and tokenizers, written in Rust, have the number in the message.
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
