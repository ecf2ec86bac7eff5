"""A document file of any common kind in, its text out, or one clear error."""

from __future__ import annotations

import codecs
import re
import sys
from pathlib import Path

from longspan.data.markdown import text_from_markdown
from longspan.data.pdf import text_and_pages_from_pdf
from longspan.data.web_pages import text_from_html
from longspan.errors import InputError

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_SIGNATURES = {
    b"PK\x03\x04": "a zip archive, as Word and EPUB files are",
    b"\xd0\xcf\x11\xe0": "an old Microsoft Office file",
    b"\x1f\x8b": "a gzip archive",
    b"\xfd7zXZ": "an xz archive",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"GIF8": "an image",
    b"\x7fELF": "a program",
    b"SQLite format 3": "a database",
    b"{\\rtf": "a rich-text file",
}
_DECLARED = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?\s*([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
_MARKUP = re.compile(r"\s*(?:<\?xml[^>]{0,200}>\s*)?(?:<!--.{0,2000}?-->\s*)?<(?:!doctype\s+html|html)\b", re.I | re.S)


def read_document(path: str | Path, encoding: str | None = None) -> str:
    """Read the text of a document: `.pdf`, `.html`, `.htm`, `.xhtml`, `.md`, `.markdown`, or plain text.

    Pages and blocks are separated by blank lines; line ends become "\\n". PDF files and HTML pages are known by their
    contents too, so that standard input and files without an extension work.

    Args:
        path: a file, or "-" for standard input.
        encoding: the encoding of a text file. None takes the byte order mark, else what an HTML page declares, else
            UTF-8; other encodings such as Latin-1 are never guessed, since a wrong guess cannot be noticed.

    Raises:
        InputError: the file is missing, a directory, unreadable, empty, blank, binary, not in the given encoding, an
            encrypted or damaged PDF, or a PDF of images without text; or the 'documents' extra is not installed.
    """
    return read_document_with_pages(path, encoding)[0]


def read_document_with_pages(path: str | Path, encoding: str | None = None) -> tuple[str, list[int]]:
    """As `read_document`, and for each page of a PDF file the character at which its text begins; else no pages."""
    name = "standard input" if str(path) == "-" else str(path)
    data = _read_bytes(path, name)
    pages: list[int] = []
    if not data:
        raise InputError(f"{name} is empty; give a document with text")
    suffix = "" if str(path) == "-" else Path(path).suffix.lower()
    if data.startswith(b"%PDF-") or suffix == ".pdf":
        text, pages = text_and_pages_from_pdf(data, name)
    else:
        raw = decode(data, name, encoding)
        if suffix in {".html", ".htm", ".xhtml"} or (suffix in {"", ".txt"} and _MARKUP.match(raw)):
            text = text_from_html(raw)
        else:
            text = text_from_markdown(raw) if suffix in {".md", ".markdown"} else raw
    if not text.strip():
        raise InputError(f"{name} holds no text, only white space or markup; give a document with text")
    return text, pages


def decode(data: bytes, name: str, encoding: str | None = None) -> str:
    """Decode the bytes of a text file strictly, as `read_document` explains; `name` is for its error messages."""
    for signature, kind in _SIGNATURES.items():
        if data.startswith(signature) and encoding is None:
            raise InputError(f"{name} is {kind}, not a text; save the document as .txt, .md, .html or .pdf")
    tried = encoding or _detect(data)
    try:
        text = data.decode(tried)
    except LookupError:
        raise InputError(f"encoding={tried!r} is unknown; name one such as utf-8, utf-16 or latin-1") from None
    except UnicodeDecodeError as error:
        if encoding is None and _looks_binary(data):
            raise InputError(
                f"{name} is a binary file, not a text; save the document as .txt, .md, .html or .pdf"
            ) from None
        raise InputError(
            f"{name} is not {tried} (byte {error.object[error.start]:#04x} at {error.start}); "
            "name its encoding with the encoding option, for example --encoding latin-1"
        ) from None
    if "\0" in text:
        raise InputError(
            f"{name} holds zero bytes: it is a binary file, or a text in another encoding than {tried}; "
            "save it as text, or name its encoding with the encoding option, for example --encoding utf-16-le"
        )
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _read_bytes(path: str | Path, name: str) -> bytes:
    if str(path) == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError(f"{name} does not exist; check the path") from None
    except IsADirectoryError:
        raise InputError(f"{name} is a directory; name the files in it") from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{name} cannot be read ({reason}); check the path and its permissions") from None


def _detect(data: bytes) -> str:
    """The encoding that the bytes themselves declare, else UTF-8."""
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return encoding
    head = data[:4096]
    declared = _DECLARED.search(head) if b"<" in head else None
    if declared is None:
        return "utf-8"
    encoding = declared.group(1).decode("ascii")
    # A page that could be searched as ASCII is not in UTF-16, whatever it says.
    return "utf-8" if encoding.lower().startswith("utf-16") else encoding


def _looks_binary(data: bytes) -> bool:
    """Whether control characters that no text has make up more than a hundredth of the beginning."""
    head = data[:8192]
    controls = sum(byte < 9 or 13 < byte < 27 or 27 < byte < 32 for byte in head)
    return controls * 100 > len(head)
