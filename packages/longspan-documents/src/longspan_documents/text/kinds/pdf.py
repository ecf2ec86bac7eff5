"""PDF files (.pdf), and images of pages; see `longspan_documents.text.pdf`."""

from __future__ import annotations

from longspan.errors import InputError
from longspan_documents.text.blocks import Document
from longspan_documents.text.kinds.source import Source
from longspan_documents.text.kinds.table import FileKind
from longspan_documents.text.pdf.reader import document_from_image, document_from_pdf


def _read(source: Source) -> Document:
    return document_from_pdf(source.data, source.name, ocr=source.ocr)


PDF = FileKind(
    name="pdf",
    title="a PDF file",
    endings=(".pdf",),
    signature=lambda source: source.head.startswith(b"%PDF-"),
    read=_read,
    parts=(
        "Columns one after the other, tables in rows. Headings are recognised by font size and weight. Words "
        "broken at line ends are joined; paragraphs continue over columns and pages. Drop capitals are joined "
        "with their word."
    ),
    left_out=(
        "page headers, footers and numbers, watermarks; captions, formulas and notes are not sentences; a "
        "warning lists pages that are images, which `ocr` reads; scans are refused without `ocr`"
    ),
    library="pypdfium2",
)


IMAGES = ((0, b"\x89PNG"), (0, b"\xff\xd8\xff"), (0, b"II*\0"), (0, b"MM\0*"), (0, b"GIF8"), (8, b"WEBP"))
"""Offsets and signatures of image files."""


def _is_image(source: Source) -> bool:
    return source.encoding is None and any(source.head.startswith(bytes_, place) for place, bytes_ in IMAGES)


def _read_image(source: Source) -> Document:
    if not source.ocr:
        raise InputError(f"{source.name} is an image; read it by text recognition, with --ocr or ocr=True")
    return document_from_image(source.data, source.name)


IMAGE = FileKind(
    name="image",
    title="an image",
    endings=(),  # so that pictures in a folder of documents are still skipped
    signature=_is_image,
    read=_read_image,
    parts="With `ocr`, read like an image page of a PDF file; all pages of a TIFF file. Refused without `ocr`.",
    left_out="pictures, handwriting",
    library="rapidocr",
)
