"""Web pages saved with their pictures as one file (.mhtml, RFC 2557): the page in it."""

from __future__ import annotations

import re
from email import message_from_bytes
from email.errors import MessageError

from longspan.errors import InputError
from longspan_documents.text.blocks import Document
from longspan_documents.text.documents import decode
from longspan_documents.text.kinds.page import document_of_page
from longspan_documents.text.kinds.source import Source
from longspan_documents.text.kinds.table import FileKind

MOST_PARTS = 5_000

_SAVED = re.compile(r"^(?:Snapshot-Content-Location:|From: <?Saved by)", re.IGNORECASE | re.MULTILINE)


def _is_saved_page(source: Source) -> bool:
    return bool(_SAVED.search(source.beginning.partition("\n\n")[0]))


def _read(source: Source) -> Document:
    data = source.data
    if data.count(b"\n--") > MOST_PARTS or data.lower().count(b"boundary=") > 100:
        raise InputError(f"{source.name} holds more than {MOST_PARTS:,} parts, too much for one page; save it as .html")
    try:
        message = message_from_bytes(data)
        pages = [part for part in message.walk() if part.get_content_type() in {"text/html", "application/xhtml+xml"}]
        page = pages[0].get_payload(decode=True) if pages else None
        charset = pages[0].get_content_charset() if pages else None
    except (RecursionError, MessageError, LookupError, ValueError) as error:
        raise InputError(f"{source.name} is damaged ({type(error).__name__}); save the page again") from None
    if not isinstance(page, bytes):
        raise InputError(f"{source.name} holds no page; save it again, as .html")
    return document_of_page(decode(page, source.name, source.encoding or charset), source.name)


SAVED_PAGE = FileKind(
    name="saved-page",
    title="a saved web page",
    endings=(".mhtml", ".mht"),
    signature=_is_saved_page,
    read=_read,
    parts="The page that it contains, like `.html`.",
    left_out="its frames, pictures and styles",
    library="the standard library; lxml, trafilatura",
)
