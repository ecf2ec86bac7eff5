"""Folders of files that are made once, whole or not at all, and used again by a resumed run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longspan.errors import InputError
from longspan.files import whole_folder

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
    if (folder / INDEX).is_file():
        index = read_index(folder)
        if index["fingerprint"] != fingerprint:
            raise InputError(
                f"{str(folder)!r} was made from {other}; put back what has changed since the run began, or give "
                "another --output"
            )
        return index
    with whole_folder(folder) as partial:
        index = {**fill(partial), "fingerprint": fingerprint}
        (partial / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
    return index


def read_index(folder: Path) -> dict[str, Any]:
    """What `make_once` wrote beside the files."""
    return json.loads((folder / INDEX).read_text(encoding="utf-8"))


def fingerprint_of(tokenizer: Any, *parts: Any) -> str:
    """A digest of a tokenizer and of plain data, equal only where both are."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    words = backend.to_str() if backend is not None else json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.blake2b(json.dumps([words, *parts], default=str).encode(), digest_size=16).hexdigest()
