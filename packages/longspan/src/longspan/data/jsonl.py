"""JSON of any size, one object at a time: JSON Lines files, plain or compressed, and files that are one long JSON
array, as some data sets of gigabytes are."""

from __future__ import annotations

import codecs
import gzip
import json
import lzma
import stat
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, NoReturn, Protocol, TypeVar

from longspan.data.fields import kind_of
from longspan.errors import InputError

UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError, UnicodeDecodeError)
"""Exceptions for files that are missing, damaged or not UTF-8."""
LONGEST = 1 << 26
"""Maximum bytes of one line or record, and characters of one cell: a small compressed file may contain one of unlimited
length."""
LARGEST = 1 << 30
"""Maximum uncompressed bytes of a file that is read as a whole."""
_UNPACKED = 1 << 20


def stop(line: int, error: InputError) -> NoReturn:
    """Raises the error: stops at the first record that cannot be read."""
    raise error


def read_jsonl(path: Path, damaged: Callable[[int, InputError], None] = stop) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield `(line number, object)` for each line that is not blank; only one line is in memory at a time.

    gzip and xz are known by the file's first bytes, whatever its name.

    Args:
        path: the file.
        damaged: gets the number and the error of a line that cannot be read, which is passed over unless it raises. A
            damaged file, as opposed to a line, always raises.

    Raises:
        InputError: the file is missing or damaged, or a line is not UTF-8, not a JSON object, or longer than `LONGEST`;
            it names file and line.
    """
    number = 0
    try:
        with open_bytes(path) as file:
            for number, line in enumerate(lines_of(file, path), 1):
                try:
                    record = _parse(line, path, number)
                except InputError as error:
                    damaged(number, error)
                    continue
                if record is not None:
                    yield number, record
    except UNREADABLE as error:
        raise unreadable(path, error, f" after line {number}") from None


def read_json(path: Path, remedy: str) -> Any:
    """Returns the JSON value of a file, plain or compressed; `remedy` ends the error message for invalid JSON."""
    try:
        return json.loads(read_bytes(path, LARGEST).decode("utf-8-sig"))
    except UNREADABLE as error:
        raise unreadable(path, error) from None
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # ValueError: also a number with thousands of digits
        raise InputError(f"{path} is not JSON ({error}); {remedy}") from None


AnyText = TypeVar("AnyText", str, bytes, covariant=True)


class _Lines(Protocol[AnyText]):
    """An open file of any kind: plain, compressed, or text."""

    def readline(self, size: int, /) -> AnyText: ...


def lines_of(file: _Lines[AnyText], path: Path) -> Iterator[AnyText]:
    """Yields the lines of an open file with their ends; raises `InputError` for one longer than `LONGEST`."""
    number = 0
    while line := file.readline(LONGEST + 1):
        number += 1
        if len(line) > LONGEST:
            raise InputError(
                f"{path}, line {number}: longer than {LONGEST >> 20} MiB, too long; cut what it holds into parts"
            )
        yield line


def read_bytes(path: Path, most: int) -> bytes:
    """Returns the content of a file, decompressed.

    Raises:
        InputError: it is a device, a pipe or a socket, or it has more than `most` bytes.
        OSError, EOFError, zlib.error, lzma.LZMAError: it cannot be read, or is damaged.
    """
    data = bytearray()
    with open_bytes(path) as file:
        while piece := file.read(_UNPACKED):
            data += piece
            if len(data) > most:
                raise InputError(
                    f"{path} holds more than {most >> 20} MiB, too much to read at once; cut it into parts"
                )
    return bytes(data)


def unreadable(path: Path, error: Exception, where: str = "") -> InputError:
    """Returns the error for one of `UNREADABLE`; `where` describes how far a damaged file was read."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"{path} does not exist; check the path")
    if isinstance(error, IsADirectoryError):
        return InputError(f"{path} is a directory; name a file in it")
    if isinstance(error, UnicodeDecodeError):
        return InputError(f"{path} is not UTF-8 (byte {error.object[error.start]:#04x}); save the file as UTF-8")
    if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
        return InputError(f"{path} cannot be read ({error.strerror or error}); check the path and its permissions")
    return InputError(f"{path} is damaged{where} ({error}); get the file again")


def open_bytes(path: Path) -> IO[bytes] | gzip.GzipFile | lzma.LZMAFile:
    """Opens a file, decompressed if its first bytes are those of gzip or xz.

    Raises:
        InputError: it is a device, a pipe or a socket.
        OSError: it cannot be opened.
    """
    check_regular(path)
    with path.open("rb") as file:
        head = file.read(6)
    if head.startswith(b"\x1f\x8b"):
        return gzip.open(path, "rb")
    if head.startswith(b"\xfd7zXZ\0"):
        return lzma.open(path, "rb")
    return path.open("rb")


def check_regular(path: Path) -> None:
    """Raises `InputError` for a device, a pipe or a socket, which may be endless and cannot be read twice."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise InputError(f"{path} is {kind}, not a file; write the data to a file and name that")


def _parse(line: bytes, path: Path, number: int) -> dict[str, Any] | None:
    if number == 1:
        line = line.removeprefix(b"\xef\xbb\xbf")
    try:
        text = line.decode()
        record = json.loads(text) if text.strip() else None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}, line {number}: not UTF-8 at byte {error.start}; save the file as UTF-8") from None
    except (ValueError, RecursionError) as error:  # ValueError: also a number with thousands of digits
        raise InputError(f"{path}, line {number}: not JSON ({error}); write one JSON object per line") from None
    if record is not None and not isinstance(record, dict):
        kind = kind_of(record)
        raise InputError(f"{path}, line {number}: {kind} instead of a JSON object; write one object per line")
    return record


PIECE = 1 << 20
"""Bytes read at once."""


def is_array(path: Path) -> bool:
    """Whether the first character of a file, plain or compressed, opens an array."""
    try:
        with open_bytes(path) as file:
            return file.read(100).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["
    except UNREADABLE as error:
        raise unreadable(path, error) from None


def read_array(path: Path, damaged: Callable[[int, InputError], None] = stop) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield `(number, object)` for each element of the array; only one is in memory at a time.

    Args:
        path: plain or compressed.
        damaged: gets the number and the error of an element that is no object, which is passed over unless it raises.

    Raises:
        InputError: the file is missing, damaged or not JSON, or an element is too long; it names the element.
    """
    decoder, number = json.JSONDecoder(), 0
    pieces = _pieces(path)
    rest = next(pieces, "").lstrip().removeprefix("[")
    while not (rest := rest.lstrip(" \t\r\n,")).startswith("]"):
        where = f"{path}, element {number + 1}"
        try:
            value, end = decoder.raw_decode(rest)
        except RecursionError:
            raise InputError(f"{where}: too many levels inside each other; get the file again") from None
        except ValueError as error:  # it may only be incomplete at the end of a piece
            value, end = error, len(rest)
        if end < len(rest):
            number, rest = number + 1, rest[end:]
            if isinstance(value, dict):
                yield number, value
            else:
                damaged(number, InputError(f"{where}: {kind_of(value)} instead of a JSON object"))
        elif len(rest) > LONGEST:
            raise InputError(f"{where}: not JSON, or longer than {LONGEST >> 20} MiB; cut what it holds into parts")
        elif not (
            more := "".join(islice(pieces, 1 + len(rest) // PIECE))
        ):  # doubling, because each attempt parses from the start
            raise InputError(f"{where}: not JSON, or cut off; get the file again")
        else:
            rest += more


def _pieces(path: Path) -> Iterator[str]:
    decode = codecs.getincrementaldecoder("utf-8-sig")()
    try:
        with open_bytes(path) as file:
            while data := file.read(PIECE):
                yield decode.decode(data)
            yield decode.decode(b"", final=True)
    except UNREADABLE as error:
        raise unreadable(path, error) from None
