"""OpenDocument texts (.odt); see `longspan_documents.text.archives.open_document`."""

from __future__ import annotations

from longspan_documents.text.archives.open_document import margins_of, parts_of_text
from longspan_documents.text.blocks import Document, document_from_parts
from longspan_documents.text.kinds.source import Source
from longspan_documents.text.kinds.table import FileKind


def _is_text(source: Source) -> bool:
    archive = source.archive
    return archive is not None and archive.mime.startswith("application/vnd.oasis.opendocument.text")


def _read(source: Source) -> Document:
    assert source.archive is not None
    heads, feet = margins_of(source.archive) if source.page_headers else ([], [])
    return document_from_parts([*heads, *parts_of_text(source.archive), *feet], source.name)


OPEN_TEXT = FileKind(
    name="open-text",
    title="an OpenDocument text",
    endings=(".odt", ".ott"),
    signature=_is_text,
    sure=True,
    read=_read,
    parts=(
        "Headings, lists, tables in rows; footnotes, endnotes and text boxes after their paragraph. Layout "
        "tables are read cell by cell."
    ),
    left_out=(
        "deleted and hidden text, comments, page headers and footers unless `page_headers` is set, tables of "
        "contents; passwords are refused"
    ),
    library="lxml",
)
