"""Web pages (.html); see `longspan_documents.text.web_pages`."""

from __future__ import annotations

import logging
import re
from html import unescape

from longspan.characters import mend, mended_note, without_half_entities
from longspan_documents.text.blocks import Document
from longspan_documents.text.kinds.source import Source
from longspan_documents.text.kinds.table import FileKind
from longspan_documents.text.markup import blocks_of_pieces, pieces_of, text_of_lines
from longspan_documents.text.titles import title_of, title_of_page
from longspan_documents.text.web_pages import lines_of_page

logger = logging.getLogger(f"longspan.{__name__}")

ENDINGS = (".html", ".htm", ".xhtml")
HEAD = 100_000
"""Characters at the beginning of a page that are searched for its title."""
_TITLE = re.compile(r"<title\b[^>]{0,200}>([^<]{1,1000})</title", re.IGNORECASE)
_MARKUP = re.compile(r"\s*(?:<\?xml[^>]{0,200}>\s*)?(?:<!--.{0,2000}?-->\s*)?<(?:!doctype\s+html|html)\b", re.I | re.S)


def document_of_page(page: str, name: str) -> Document:
    """Returns the article of an HTML page."""
    page, halves = without_half_entities(page)
    page, more = mend(page)
    if halves + more:
        logger.warning("note: %s: %s", name, mended_note(halves + more))
    lines = lines_of_page(page)
    blocks = tuple(blocks_of_pieces(pieces_of(lines)))
    given = _TITLE.search(page[:HEAD])
    title = title_of(blocks) or (title_of_page(unescape(given[1])) if given else None)
    return Document(text=text_of_lines(lines), blocks=blocks, title=title, name=name)


def _is_page(source: Source) -> bool:
    """Whether a text begins as a page does, if its name is ambiguous."""
    return source.suffix in {"", ".txt", *ENDINGS} and bool(_MARKUP.match(source.beginning))


PAGE = FileKind(
    name="page",
    title="a web page",
    endings=ENDINGS,
    signature=_is_page,
    read=lambda source: document_of_page(source.text, source.name),
    parts="The article, with headings, lists, tables, code and formulas; text that a click opens.",
    left_out="navigation, banners, readers' comments, invisible text",
    library="lxml, trafilatura",
)
