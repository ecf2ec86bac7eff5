"""Uploads: files in a private temporary folder, with ids that cannot be guessed.

A server that is killed cannot delete its folder, so the next one does. The folder's name contains the process id, and a
file in it is locked while that process runs. Only a folder of this user whose process has ended and whose lock is free
is deleted, on systems with such locks (not Windows).
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
        id: identifies it in requests.
        name: original file name; only displayed, never used as a path.
        path: of the stored file, with a generated name.
        size: in bytes.
        characters: of its text; until it has been read, the number of its bytes.
    """

    id: str
    name: str
    path: Path
    size: int
    characters: int = 0

    @property
    def source(self) -> dict[str, Any]:
        """The document as plain data for a worker."""
        return {"id": self.id, "name": self.name, "path": str(self.path)}


class Library:
    """The uploaded files; `close` deletes them all.

    Attributes:
        results: a folder for the results of jobs, deleted with them.

    Raises:
        InputError: no temporary folder can be created.
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
        with suppress(OSError):  # a file system may have no locks: then old folders are kept
            try_lock(self._lock)
        self._uploads: dict[str, Upload] = {}

    def new_file(self, name: str) -> Upload:
        """Returns a new upload, to whose path its bytes are to be written; `add` registers it.

        Only the suffix of the name is kept, from which readers determine the format.

        Raises:
            TooMuchError: the maximum number of files is reached.
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
        """Register a file whose bytes have been written.

        Raises:
            TooMuchError: the total size of all files exceeds the limit; this file is deleted.
        """
        size = upload.path.stat().st_size
        if sum(uploaded.size for uploaded in self._uploads.values()) + size > self.limits.all_bytes:
            upload.path.unlink()
            raise TooMuchError(
                f"{upload.name} does not fit: all documents together may have {self.limits.all_bytes >> 20} MiB; "
                "remove some"
            )
        taken = replace(upload, size=size, characters=size)
        self._uploads[upload.id] = taken
        return taken

    def describe(self, upload: Upload, characters: int) -> None:
        """Set the number of characters of a file's text, when it has been read."""
        self._uploads[upload.id] = replace(upload, characters=characters)

    def get(self, key: str) -> Upload:
        """Returns the file of this id.

        Raises:
            KeyError: there is none.
        """
        return self._uploads[key]

    def discard(self, upload: Upload) -> None:
        """Delete a file, registered or not."""
        self._uploads.pop(upload.id, None)
        upload.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Delete all files."""
        self._uploads.clear()
        os.close(self._lock)
        self._folder.cleanup()


def remove_left_behind(parent: Path) -> list[Path]:
    """Delete the folders of servers that were killed; folders that may be something else are kept.

    Returns:
        The deleted folders.
    """
    removed = []
    for folder in parent.glob("longspan-serve-*"):
        named = _LEFT.fullmatch(folder.name)
        # This process may have the same id as an earlier one, as in containers; the lock decides.
        if named is None or (int(named[1]) != os.getpid() and _lives(int(named[1]))) or not _is_own_folder(folder):
            continue
        with suppress(OSError):  # it has no lock, or another server is deleting it
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
    except (OSError, OverflowError):  # it belongs to another user
        return True
    return True
