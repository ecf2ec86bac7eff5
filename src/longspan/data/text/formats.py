"""Files of formats that tell a heading from a paragraph, known by their contents and then by their names."""

from __future__ import annotations

from longspan.data.text.archives.archive import SIGNATURE, Archive
from longspan.data.text.archives.book import document_from_book
from longspan.data.text.archives.word import document_from_word
from longspan.data.text.blocks import Document
from longspan.data.text.pdf.reader import document_from_pdf
from longspan.errors import InputError

_ZIPPED = {".docx": "a Word file", ".docm": "a Word file", ".epub": "an electronic book"}
_OLD = b"\xd0\xcf\x11\xe0"
_LOCKED = "EncryptedPackage".encode("utf-16-le")
"""A name in the old container of Microsoft Office, in which it puts files that it encrypts."""


def structured(data: bytes, suffix: str, name: str) -> Document | None:
    """The document in a PDF file, a Word file or an electronic book, before it is tidied; None for what must be a text.

    Args:
        data: the whole file.
        suffix: of its name, in small letters.
        name: what error messages call it.

    Raises:
        InputError: the file is damaged, locked, or of another format that longspan does not read.
    """
    if data.startswith(SIGNATURE):
        archive = Archive(data, name)
        return document_from_word(archive) if archive.kind() == "word" else document_from_book(archive)
    if data.startswith(_OLD) and _LOCKED in data:
        raise InputError(f"{name} is locked with a password; save a copy without one")
    if data.startswith(b"%PDF-") or suffix == ".pdf":
        return document_from_pdf(data, name)
    if suffix in _ZIPPED and not data.startswith(_OLD):
        raise InputError(f"{name} is not {_ZIPPED[suffix]}, whatever its name says; save it again, or rename it")
    return None
