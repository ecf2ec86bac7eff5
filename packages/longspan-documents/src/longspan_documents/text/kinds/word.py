"""Word files (.docx) and embedded documents; see `longspan_documents.text.archives.word`."""

from __future__ import annotations

from functools import partial

from longspan.errors import InputError
from longspan_documents.text.archives.archive import SIGNATURE, Archive
from longspan_documents.text.archives.word import document_from_word
from longspan_documents.text.blocks import Document
from longspan_documents.text.kinds.source import Source
from longspan_documents.text.kinds.table import FileKind, kind_of
from longspan_documents.text.plain_text import blocks_of_text

DEEPEST = 3
"""Maximum nesting depth of Word files."""

_EMBEDDED = frozenset({"page", "rich-text", "saved-page"})
"""Kinds that Word embeds, in addition to Word files and plain text."""


def _is_word(source: Source) -> bool:
    return source.archive is not None and _is_text(source.archive)


def _is_text(archive: Archive) -> bool:
    return "wordprocessingml.document.main" in archive.types


def _read(source: Source) -> Document:
    assert source.archive is not None
    return document_from_word(source.archive, partial(_embedded, source.archive, 1), page_headers=source.page_headers)


def _embedded(within: Archive, depth: int, data: bytes, suffix: str, name: str) -> Document:
    """Reads a document embedded in a Word file; see `longspan_documents.text.archives.word.Embedded`."""
    if data.startswith(SIGNATURE):
        archive = Archive(data, name, within)
        if not _is_text(archive):
            raise InputError(f"{name} is an archive and no Word file")
        if depth >= DEEPEST:
            raise InputError(f"{name} is a Word file in a Word file, more than {DEEPEST} deep")
        return document_from_word(archive, partial(_embedded, archive, depth + 1))
    source = Source.of_bytes(data, suffix, name)
    kind = kind_of(source)
    if kind is not None and kind.name not in _EMBEDDED:
        raise InputError(f"{name} is {kind.title}, which Word does not take in")
    result = source.text if kind is None else kind.read(source)
    if isinstance(result, Document):
        return result
    return Document(text=result, blocks=tuple(blocks_of_text(result)))


WORD = FileKind(
    name="word",
    title="a Word file",
    endings=(".docx", ".docm"),
    signature=_is_word,
    sure=True,
    read=_read,
    parts=(
        "Headings and lists by style, tables in rows, text boxes and notes after their paragraph, inserted "
        "text. Layout tables are read cell by cell; embedded web pages, rich text, plain text and Word files "
        "at their position."
    ),
    left_out=(
        "deleted and hidden text, comments, page headers and footers unless `page_headers` is set; old "
        "`.doc`, macros and passwords are refused"
    ),
    library="lxml",
)
