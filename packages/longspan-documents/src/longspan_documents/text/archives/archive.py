"""Zip archives of documents: their parts, limits on reading, and messages for other archives."""

from __future__ import annotations

import zipfile
from collections import Counter
from functools import cached_property
from io import BytesIO
from typing import Any

from longspan.data.zipped import DAMAGED, PACKED
from longspan.errors import InputError, last_line
from longspan.imports import require

SIGNATURE = b"PK\x03\x04"

LARGEST = 1 << 28
"""Maximum uncompressed bytes of all parts: more is not a document, or a zip bomb."""
MOST_PARTS = 20_000
LARGEST_TEXT = 1 << 26
"""Maximum bytes of the parts that are read; the pictures of a document are not."""
MOST_MARKS = 4_000_000
"""Maximum characters `<` and `=` of XML in the parts that are read: each tag and attribute takes hundreds of bytes in
memory."""
PIECE = 1 << 20
"""Bytes decompressed at once, so that a part with a false size is detected early."""


class Archive:
    """A zip archive in memory, whose parts are read individually, with checks and limits.

    Args:
        data: the whole file.
        name: its name in error messages.
        within: the archive that contains this one; both share one limit.

    Raises:
        InputError: the archive is damaged, encrypted, or larger than `LARGEST` bytes uncompressed.
    """

    def __init__(self, data: bytes, name: str, within: Archive | None = None) -> None:
        self.name = name
        self._read: Counter[str] = Counter() if within is None else within._read
        try:
            self._zip = zipfile.ZipFile(BytesIO(data))
        except DAMAGED as error:
            raise self.damaged(error) from None
        parts = self._zip.infolist()
        size = sum(part.file_size for part in parts)
        if size > LARGEST or len(parts) > MOST_PARTS:
            raise self._too_large(f"unpacks to {size >> 20} MiB in {len(parts):,} parts")
        if any(part.flag_bits & 1 for part in parts):
            raise InputError(f"{name} is locked with a password; save a copy without one")
        self.names = frozenset(part.filename for part in parts)

    def part(self, name: str) -> bytes:
        """Returns the bytes of a part; empty if it does not exist.

        Raises:
            InputError: the part is damaged, or all parts read so far are too large.
        """
        if name not in self.names:
            return b""
        if self._zip.getinfo(name).compress_type not in PACKED:
            raise self.damaged(ValueError(f"its part {name!r} is packed as no document is"))
        try:
            with self._zip.open(name) as opened:
                data = b"".join(iter(lambda: opened.read(PIECE), b""))
        except DAMAGED as error:
            raise self.damaged(error) from None
        self.count(len(data))
        self._read["marks"] += data.count(b"<") + data.count(b"=")
        if self._read["marks"] > MOST_MARKS:
            raise self._too_large(f"holds more than {MOST_MARKS:,} tags and attributes")
        return data

    def count(self, characters: int) -> None:
        """Counts the characters that were read, and those produced by repetition, such as repeated cells or nested
        tables.

        Raises:
            InputError: the total is above `LARGEST_TEXT`.
        """
        self._read["bytes"] += characters
        if self._read["bytes"] > LARGEST_TEXT:
            raise self._too_large(f"holds more than {LARGEST_TEXT >> 20} MiB of text and marks")

    def tree(self, name: str, purpose: str) -> Any:
        """Returns the root of an XML part as an lxml element; None if the part does not exist.

        Args:
            name: name of the part.
            purpose: what needs lxml, as the subject of a sentence: "reading slides".

        Raises:
            InputError: as `part`; the part is not XML, or the 'documents' extra is not installed.
        """
        etree = require("lxml.etree", extra="documents", purpose=purpose)
        data = self.part(name)
        if not data:
            return None
        try:
            return etree.fromstring(data, etree.XMLParser(resolve_entities=False, no_network=True))
        except (etree.LxmlError, ValueError, LookupError) as error:
            raise self.damaged(error) from None

    def _too_large(self, what: str) -> InputError:
        return InputError(
            f"{self.name} {what}, too much for one document; save the part that matters as a file of its own"
        )

    def damaged(self, error: Exception) -> InputError:
        """Returns the error for a truncated or inconsistent archive."""
        return InputError(f"{self.name} is damaged ({last_line(error)}); save it or download it again")

    @cached_property
    def types(self) -> str:
        """The list of its parts' types, which every Microsoft Office file has; "" in others."""
        return self.part("[Content_Types].xml").decode("utf-8", "replace")

    @cached_property
    def mime(self) -> str:
        """The declared media type of an e-book or an OpenDocument file; "" in others."""
        return self.part("mimetype")[:100].decode("utf-8", "replace").strip()
