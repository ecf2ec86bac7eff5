"""Validated reading of JSON and safetensors files from untrusted sources."""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

from longspan.errors import InputError, last_line
from longspan.settings import show

LARGEST_JSON = 512 * 2**20
LARGEST_HEADER = 100_000_000
"""In bytes; the format's own limit."""
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
"""Bytes per number of each stored dtype; dtypes that are missing here are quantised."""
AGAIN = "fetch the checkpoint again"


def is_whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def read_json(file: Path) -> dict[str, Any]:
    """Reads a JSON object; raises `InputError` if the file is missing, too large, invalid, too deeply nested, or
    contains NaN."""
    size = check_file(file)
    if size > LARGEST_JSON:
        raise InputError(f"'{file}' has {size:,} bytes, too many for a description of a model; {AGAIN}")
    try:
        plain = json.loads(file.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except RecursionError as error:
        raise InputError(f"'{file}' is damaged: it is nested too deep; {AGAIN}") from error
    except ValueError as error:  # broken JSON and broken UTF-8 are subclasses
        raise InputError(f"'{file}' is damaged: it is not valid JSON ({last_line(error)}); {AGAIN}") from error
    if not isinstance(plain, dict):
        raise InputError(f"'{file}' is damaged: it holds no JSON object; {AGAIN}")
    return plain


def check_file(file: Path) -> int:
    """Returns the size of a regular file, following links; raises `InputError` for anything else."""
    try:
        state = file.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"'{file}' cannot be read: {reason.lower()}; {AGAIN}") from error
    if not stat.S_ISREG(state.st_mode):
        kind = "a folder" if stat.S_ISDIR(state.st_mode) else "no regular file"
        raise InputError(f"'{file}' is {kind}; {AGAIN}")
    return state.st_size


def read_header(file: Path) -> dict[str, tuple[int, ...]]:
    """Returns name → shape of every tensor of a safetensors file.

    Raises:
        InputError: the header is truncated, too large or not JSON; a tensor's dtype, shape or offsets violate the
            format; bytes are missing or left over.
    """
    size, damaged = check_file(file), f"'{file}' is damaged or cut short"
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if size < 8 or length > min(size - 8, LARGEST_HEADER):
            raise InputError(f"{damaged} (its header does not fit into it); {AGAIN}")
        try:
            header = json.loads(opened.read(length).decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{damaged} (its header is not JSON); {AGAIN}") from error
    if not isinstance(header, dict):
        raise InputError(f"{damaged} (its header is no object); {AGAIN}")
    header.pop("__metadata__", None)
    end = 0
    for start, stop, name in sorted(_tensor_ranges(file, header)):
        if start != end:
            raise InputError(f"{damaged} (tensor {show(name)} is not where it should be); {AGAIN}")
        end = stop
    if end != size - 8 - length:
        raise InputError(f"{damaged} (its tensors take {end:,} bytes, it has {size - 8 - length:,}); {AGAIN}")
    return {name: tuple(entry["shape"]) for name, entry in header.items()}


def _tensor_ranges(file: Path, header: dict[str, Any]) -> Iterator[tuple[int, int, str]]:
    """Yields first byte, end byte (exclusive) and name of each tensor, after validating its entry."""
    for name, entry in header.items():
        entry = entry if isinstance(entry, dict) else {}
        kind, shape, place = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
        if isinstance(kind, str) and kind not in BYTES:
            raise InputError(f"'{file}' stores {show(name)} as {show(kind)}; Longspan reads unquantised weights only")
        if not isinstance(kind, str) or not _counts(shape) or not _counts(place) or len(place) != 2:
            raise InputError(f"'{file}' is damaged or cut short (what it says of {show(name)} is no tensor); {AGAIN}")
        if place[1] - place[0] != math.prod(shape) * BYTES[kind]:
            raise InputError(f"'{file}' is damaged or cut short ({show(name)} does not have its size); {AGAIN}")
        yield place[0], place[1], name


def _counts(numbers: Any) -> TypeGuard[list[int]]:
    return isinstance(numbers, list) and all(is_whole(number, 0, 2**62) for number in numbers)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")
