"""PDF files (.pdf); see `longspan.data.text.pdf`."""

from __future__ import annotations

from longspan.data.text.blocks import Document
from longspan.data.text.kinds.source import Source
from longspan.data.text.kinds.table import FileKind
from longspan.data.text.pdf.reader import document_from_pdf


def _read(source: Source) -> Document:
    return document_from_pdf(source.data, source.name)


PDF = FileKind(
    name="pdf",
    title="a PDF file",
    endings=(".pdf",),
    signature=lambda source: source.head.startswith(b"%PDF-"),
    read=_read,
    parts="Columns one after the other, tables in rows. Headings are known by the size and weight of their letters. "
    "Words broken at line ends are joined, paragraphs go on over columns and pages. Drop capitals begin their word.",
    left_out="heads, feet and numbers of pages, watermarks; captions, formulas and notes are no sentences; a warning "
    "names pages that are pictures, scans without text are refused",
    library="pypdfium2",
)
