"""What was uploaded: files in a temporary folder of their own, known by ids that nobody can guess."""

from __future__ import annotations

import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longspan.characters import counted, on_one_line
from longspan.data.text.documents import READABLE
from longspan.errors import InputError
from longspan.serve.limits import Limits

SUBTITLES = frozenset([".srt", ".vtt"])
LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Upload:
    """An uploaded file.

    Attributes:
        id: by which requests name it.
        name: what its owner calls it; only shown, never a path.
        path: where it lies, under a name of our own.
        size: bytes.
    """

    id: str
    name: str
    path: Path
    size: int

    @property
    def source(self) -> dict[str, Any]:
        """What a worker has to know."""
        return {"id": self.id, "name": self.name, "path": str(self.path)}


class Library:
    """The uploaded files; `close` deletes them all."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._folder = tempfile.TemporaryDirectory(prefix="longspan-serve-", ignore_cleanup_errors=True)
        self.folder = Path(self._folder.name)
        self._uploads: dict[str, Upload] = {}

    def new_file(self, name: str) -> Upload:
        """Where the bytes of a new file are to be written; it counts once `add` knows it.

        The name gives no more than the kind of the file, which the readers go by.

        Raises:
            InputError: there are as many files as the server takes.
        """
        if len(self._uploads) >= self.limits.documents:
            raise InputError(
                f"there are {counted(self.limits.documents, 'document')} here already, as many as this server takes; "
                "remove some"
            )
        name = on_one_line(name).strip()[-LONGEST_NAME:] or "document"
        suffix = Path(name).suffix.lower()
        key = secrets.token_urlsafe(16)
        known = suffix in READABLE | SUBTITLES or suffix == ".json"
        return Upload(key, name, self.folder / f"{key}{suffix if known else ''}", 0)

    def add(self, upload: Upload) -> Upload:
        """Take in a file whose bytes are written.

        Raises:
            InputError: all files together are larger than the server takes; this one is deleted.
        """
        size = upload.path.stat().st_size
        if sum(one.size for one in self._uploads.values()) + size > self.limits.all_bytes:
            upload.path.unlink()
            raise InputError(
                f"{upload.name} does not fit: all documents together may have {self.limits.all_bytes >> 20} MiB; "
                "remove some"
            )
        taken = Upload(upload.id, upload.name, upload.path, size)
        self._uploads[upload.id] = taken
        return taken

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
        self._folder.cleanup()
