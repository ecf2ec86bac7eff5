"""Markdown files (.md); see `longspan_documents.text.markdown`."""

from __future__ import annotations

import logging

from longspan.characters import mend, mended_note, without_half_entities
from longspan_documents.text.blocks import Document
from longspan_documents.text.documents import check_words
from longspan_documents.text.kinds.source import Source
from longspan_documents.text.kinds.table import FileKind
from longspan_documents.text.markdown import blocks_of_markdown, is_made_of_marks

logger = logging.getLogger(f"longspan.{__name__}")


def _read(source: Source) -> Document | str:
    check_words(source.text, source.name)
    text, halves = mend(source.text)
    if halves + (named := without_half_entities(text)[1]):
        logger.warning("note: %s: %s", source.name, mended_note(halves + named))
    if is_made_of_marks(text):
        logger.warning("note: %s is read as plain text: it is made of Markdown marks rather than words", source.name)
        return text
    return Document(text=text, blocks=tuple(blocks_of_markdown(text)), name=source.name)


MARKDOWN = FileKind(
    name="markdown",
    title="a Markdown file",
    endings=(".md", ".markdown"),
    read=_read,
    has_places=True,
    parts="Headings, lists, tables and code; footnotes at their position; positions refer to the file.",
    left_out="front matter, comments, targets of links",
    library="markdown-it-py, lxml",
)
