"""A file that is one long JSON array, read object by object: some data sets are gigabytes of it."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from longspan.data.fields import kind_of
from longspan.data.jsonl import LONGEST, UNREADABLE, open_bytes, stop, unreadable
from longspan.errors import InputError

PIECE = 1 << 20
"""Bytes that are read at once."""


def is_array(path: Path) -> bool:
    """Whether the first sign of a file, plain or compressed, opens an array."""
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
        except ValueError as error:  # it may only be cut off, where a piece ends
            value, end = error, len(rest)
        if end < len(rest):
            number, rest = number + 1, rest[end:]
            if isinstance(value, dict):
                yield number, value
            else:
                damaged(number, InputError(f"{where}: {kind_of(value)} instead of a JSON object"))
        elif len(rest) > LONGEST:
            raise InputError(f"{where}: not JSON, or longer than {LONGEST >> 20} MiB; cut what it holds into parts")
        elif not (more := "".join(islice(pieces, 1 + len(rest) // PIECE))):  # twice as long: each is parsed anew
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
