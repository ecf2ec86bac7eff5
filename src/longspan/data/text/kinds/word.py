"""Word files (.docx); see `longspan.data.text.archives.word`."""

from __future__ import annotations

from longspan.data.text.archives.word import document_from_word
from longspan.data.text.blocks import Document
from longspan.data.text.kinds.source import Source
from longspan.data.text.kinds.table import FileKind


def _is_word(source: Source) -> bool:
    return source.archive is not None and "wordprocessingml.document.main" in source.archive.types


def _read(source: Source) -> Document:
    assert source.archive is not None
    return document_from_word(source.archive)


WORD = FileKind(
    name="word",
    title="a Word file",
    endings=(".docx", ".docm"),
    signature=_is_word,
    sure=True,
    read=_read,
    parts="Headings and lists by style, tables in rows, text boxes and notes behind their paragraph, inserted text.",
    left_out="deleted and hidden text, heads and feet, comments; old `.doc`, macros and passwords are refused",
    library="lxml",
)
