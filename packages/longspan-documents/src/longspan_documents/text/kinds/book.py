"""E-books (.epub); see `longspan_documents.text.archives.book`."""

from __future__ import annotations

from longspan_documents.text.archives.book import document_from_book
from longspan_documents.text.blocks import Document
from longspan_documents.text.kinds.source import Source
from longspan_documents.text.kinds.table import FileKind


def _is_book(source: Source) -> bool:
    archive = source.archive
    return archive is not None and (archive.mime == "application/epub+zip" or "META-INF/container.xml" in archive.names)


def _read(source: Source) -> Document:
    assert source.archive is not None
    return document_from_book(source.archive)


BOOK = FileKind(
    name="book",
    title="an electronic book",
    endings=(".epub",),
    signature=_is_book,
    sure=True,
    read=_read,
    parts="Chapters in reading order, each like a web page.",
    left_out="cover, table of contents and copyright pages if the book marks them; encrypted books are refused",
    library="lxml",
)
