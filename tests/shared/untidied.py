"""What a reader makes of a file, before the steps of tidying."""

from __future__ import annotations

from longspan_documents.text.blocks import Document
from longspan_documents.text.kinds.source import Source
from longspan_documents.text.kinds.table import kind_of


def untidied(data: bytes, suffix: str = "") -> Document:
    source = Source.of_bytes(data, suffix, "the file")
    kind = kind_of(source)
    if kind is None:
        return Document(text=source.text, blocks=())
    document = kind.read(source)
    assert isinstance(document, Document)
    return document
