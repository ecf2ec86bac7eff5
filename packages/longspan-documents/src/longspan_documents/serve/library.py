"""What was uploaded: files in a temporary folder of their own, known by ids that nobody can guess.

A server that is killed cannot delete its folder, so the next one does. The folder's name holds the number of the
process, and a file in it is locked for as long as that lives: only a folder of this user whose process is gone and
whose lock is free is deleted, on systems that have such locks (not Windows).
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longspan.characters import counted, on_one_line
from longspan.errors import InputError, last_line
from longspan.files import try_lock
from longspan_documents.serve.limits import Limits, TooMuchError
from longspan_documents.text.kinds.table import endings

LONGEST_NAME = 200
LOCK = "lock"
_LEFT = re.compile(r"longspan-serve-([0-9]{1,10})-\w+")


@dataclass(frozen=True, slots=True)
class Upload:
    """An uploaded file.

    Attributes:
        id: by which requests name it.
        name: what its owner calls it; only shown, never a path.
        path: where it lies, under a name of our own.
        size: bytes.
        characters: of its text; until it is read, no more than its bytes.
    """

    id: str
    name: str
    path: Path
    size: int
    characters: int = 0

    @property
    def source(self) -> dict[str, Any]:
        """What a worker has to know."""
        return {"id": self.id, "name": self.name, "path": str(self.path)}


class Library:
    """The uploaded files; `close` deletes them all.

    Attributes:
        results: a folder for the results of jobs, deleted with them.

    Raises:
        InputError: no temporary folder can be made.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        try:
            remove_left_behind(Path(tempfile.gettempdir()))
            prefix = f"longspan-serve-{os.getpid()}-"
            self._folder = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
            self.folder = Path(self._folder.name)
            self.results = self.folder / "results"
            self.results.mkdir()
            self._lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise InputError(f"uploads cannot be kept: {last_line(error)}; set TMPDIR to another folder") from error
        with suppress(OSError):  # a file system may have no locks: then what is left stays
            try_lock(self._lock)
        self._uploads: dict[str, Upload] = {}

    def new_file(self, name: str) -> Upload:
        """Where the bytes of a new file are to be written; it counts once `add` knows it.

        The name gives no more than the kind of the file, which the readers go by.

        Raises:
            TooMuchError: there are as many files as the server takes.
        """
        if len(self._uploads) >= self.limits.documents:
            raise TooMuchError(
                f"there are {counted(self.limits.documents, 'document')} here already, as many as this server takes; "
                "remove some"
            )
        name = on_one_line(name).strip()[-LONGEST_NAME:] or "document"
        suffix = Path(name).suffix.lower()
        key = secrets.token_urlsafe(16)
        known = suffix in endings() or suffix == ".json"
        return Upload(key, name, self.folder / f"{key}{suffix if known else ''}", 0)

    def add(self, upload: Upload) -> Upload:
        """Take in a file whose bytes are written.

        Raises:
            TooMuchError: all files together are larger than the server takes; this one is deleted.
        """
        size = upload.path.stat().st_size
        if sum(one.size for one in self._uploads.values()) + size > self.limits.all_bytes:
            upload.path.unlink()
            raise TooMuchError(
                f"{upload.name} does not fit: all documents together may have {self.limits.all_bytes >> 20} MiB; "
                "remove some"
            )
        taken = replace(upload, size=size, characters=size)
        self._uploads[upload.id] = taken
        return taken

    def describe(self, upload: Upload, characters: int) -> None:
        """Remember how many characters the text of a file has, once it is read."""
        self._uploads[upload.id] = replace(upload, characters=characters)

    def get(self, key: str) -> Upload:
        """The file of this id.

        Raises:
            KeyError: there is none.
        """
        return self._uploads[key]

    def discard(self, upload: Upload) -> None:
        """Delete a file, whether or not it counts already."""
        self._uploads.pop(upload.id, None)
        upload.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Delete everything."""
        self._uploads.clear()
        os.close(self._lock)
        self._folder.cleanup()


def remove_left_behind(parent: Path) -> list[Path]:
    """Delete the folders of servers that were killed; what is not surely such a folder stays.

    Returns:
        Those that are gone.
    """
    removed = []
    for folder in parent.glob("longspan-serve-*"):
        named = _LEFT.fullmatch(folder.name)
        # The number of this process may be that of an earlier one, as in containers; its lock tells.
        if named is None or (int(named[1]) != os.getpid() and _lives(int(named[1]))) or not _is_own_folder(folder):
            continue
        with suppress(OSError):  # no lock in it, or another server deletes it just now
            lock = os.open(folder / LOCK, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
            try:
                if try_lock(lock):
                    shutil.rmtree(folder)
                    removed.append(folder)
            finally:
                os.close(lock)
    return removed


def _is_own_folder(folder: Path) -> bool:
    """Whether it is a folder, not a link to one, and belongs to the user of this process."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and hasattr(os, "getuid") and found.st_uid == os.getuid()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # it is another user's
        return True
    return True
