"""Folders of files that are made once, whole or not at all, and used again by a resumed run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longspan.errors import InputError
from longspan.files import is_empty, whole_folder

INDEX = "index.json"


def make_once(folder: Path, fingerprint: str, fill: Callable[[Path], dict[str, Any]], *, other: str) -> dict[str, Any]:
    """The index of a folder that is there already, or is made now.

    Args:
        folder: where it is, or will be.
        fingerprint: of all that decides what is in it, see `fingerprint_of`.
        fill: writes files into a folder and returns the index: plain data.
        other: what a folder with another fingerprint was made from, in words.

    Raises:
        InputError: the folder has another fingerprint; what `fill` raises.
    """
    if is_empty(folder):
        with whole_folder(folder) as partial:
            index = {**fill(partial), "fingerprint": fingerprint, "files": _sizes(partial)}
            (partial / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
        return index
    index = read_index(folder)
    if index["fingerprint"] != fingerprint:
        raise InputError(
            f"{str(folder)!r} was made from {other}; put back what has changed since the run began, or give "
            "another --output"
        )
    return index


def read_index(folder: Path) -> dict[str, Any]:
    """What `make_once` wrote beside the files.

    Raises:
        InputError: it cannot be read, or the files are not as long as they were.
    """
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        found = index["fingerprint"] is not None and _sizes(folder)
        if index.get("files", found) == found:
            return index
        reason = "the files in it are not as long as they were"
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = f"{INDEX}: {' '.join(str(error).split())}"
    raise InputError(f"{str(folder)!r} is damaged ({reason}); remove this folder, and it is made again")


def _sizes(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in sorted(folder.iterdir()) if file.name != INDEX}


def fingerprint_of(tokenizer: Any, *parts: Any) -> str:
    """A digest of a tokenizer and of plain data, equal only where both are."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    words = backend.to_str() if backend is not None else json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.blake2b(json.dumps([words, *parts], default=str).encode(), digest_size=16).hexdigest()
