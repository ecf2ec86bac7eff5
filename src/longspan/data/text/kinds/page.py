"""Web pages (.html); see `longspan.data.text.web_pages`."""

from __future__ import annotations

import logging
import re

from longspan.characters import mend, mended_note, without_half_entities
from longspan.data.text.blocks import Document
from longspan.data.text.kinds.source import Source
from longspan.data.text.kinds.table import FileKind
from longspan.data.text.markup import blocks_of_pieces, pieces_of, text_of_lines
from longspan.data.text.web_pages import lines_of_page

logger = logging.getLogger(__name__)

ENDINGS = (".html", ".htm", ".xhtml")
_MARKUP = re.compile(r"\s*(?:<\?xml[^>]{0,200}>\s*)?(?:<!--.{0,2000}?-->\s*)?<(?:!doctype\s+html|html)\b", re.I | re.S)


def document_of_page(page: str, name: str) -> Document:
    """The article of an HTML page."""
    page, halves = without_half_entities(page)
    page, more = mend(page)
    if halves + more:
        logger.warning("note: %s: %s", name, mended_note(halves + more))
    lines = lines_of_page(page)
    return Document(text=text_of_lines(lines), blocks=tuple(blocks_of_pieces(pieces_of(lines))), name=name)


def _is_page(source: Source) -> bool:
    """A text that begins as pages do, where the name tells no other kind."""
    return source.suffix in {"", ".txt", *ENDINGS} and bool(_MARKUP.match(source.beginning))


PAGE = FileKind(
    name="page",
    title="a web page",
    endings=ENDINGS,
    signature=_is_page,
    read=lambda source: document_of_page(source.text, source.name),
    parts="The article; headings, lists, tables, code and formulas as such; answers that a click opens.",
    left_out="navigation, banners, readers' comments, what no reader sees",
    library="lxml, trafilatura",
)
