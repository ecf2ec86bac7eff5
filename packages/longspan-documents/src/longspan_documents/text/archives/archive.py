"""Zip archives that are documents: what is in them, how much may be read, and what the others are."""

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
"""Bytes that the parts of an archive may have together, unpacked: more is no document, or a trap."""
MOST_PARTS = 20_000
LARGEST_TEXT = 1 << 26
"""Bytes of the parts that are read; the pictures of a document are not."""
MOST_MARKS = 4_000_000
"""Signs of XML, `<` and `=`, in the parts that are read: each tag and attribute takes hundreds of bytes in memory."""
PIECE = 1 << 20
"""Bytes unpacked at once, so that a part that says it is small stays small."""


class Archive:
    """A zip archive in memory, whose parts are read one by one, checked and bounded.

    Args:
        data: the whole file.
        name: what error messages call it.
        within: the archive that holds this one; what is read of both counts together.

    Raises:
        InputError: the archive is damaged, locked, or unpacks to more than `LARGEST` bytes.
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
        """The bytes of a part; none where there is no such part.

        Raises:
            InputError: the part is damaged, or all that were read are too large together.
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
        """Count what was read, and what is made of it where a file of few bytes can name it many times, as a cell that
        is repeated or tables in each other do.

        Raises:
            InputError: it is more than `LARGEST_TEXT` together.
        """
        self._read["bytes"] += characters
        if self._read["bytes"] > LARGEST_TEXT:
            raise self._too_large(f"holds more than {LARGEST_TEXT >> 20} MiB of text and marks")

    def tree(self, name: str, purpose: str) -> Any:
        """The root of an XML part, as lxml has it; None where there is no such part.

        Args:
            name: of the part.
            purpose: what needs lxml, as the subject of a sentence: "reading slides".

        Raises:
            InputError: as `part`; the part is no XML, or the 'documents' extra is not installed.
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
        """What to raise where the archive breaks off or contradicts itself."""
        return InputError(f"{self.name} is damaged ({last_line(error)}); save it or download it again")

    @cached_property
    def types(self) -> str:
        """The list of its parts' types, which every file of Microsoft Office has; "" in others."""
        return self.part("[Content_Types].xml").decode("utf-8", "replace")

    @cached_property
    def mime(self) -> str:
        """What a book or an OpenDocument file declares to be; "" in others."""
        return self.part("mimetype")[:100].decode("utf-8", "replace").strip()
