"""Unsupported files, identified by signature: what each is and what to do, as one sentence."""

from __future__ import annotations

import json
import re
from contextlib import suppress

from longspan.errors import InputError
from longspan_documents.text.documents import SAVE
from longspan_documents.text.kinds.source import Source

_OLD = b"\xd0\xcf\x11\xe0"
_LOCKED = "EncryptedPackage".encode("utf-16-le")
"""A stream name in the old container format of Microsoft Office, which also wraps encrypted files."""

_ZIPPED = (
    (r"wordprocessingml\.template", "a Word template; save a document made with it as .docx"),
    (r"ms-word\.(?:document|template)\.macroEnabled", "a Word file with macros; save it as .docx without them"),
    (r"spreadsheetml\.template|ms-excel", "an Excel workbook with macros or a template; save it as .xlsx"),
    (r"presentationml|ms-powerpoint", "a PowerPoint show or template; save it as .pptx"),
)
_OPEN_DOCUMENTS = {
    "application/vnd.oasis.opendocument.presentation": "an OpenDocument presentation; save it as .pptx or .pdf",
    "application/vnd.oasis.opendocument.graphics": "an OpenDocument drawing; save it as .pdf",
}
_PARTS = (
    ("Index/Document.iwa", "an Apple Pages document; export it as .docx, .epub or .pdf"),
    ("META-INF/MANIFEST.MF", "a Java archive, not a document"),
)
_SOUND = "a recording; transcribe it first, and give the transcript (.srt, .vtt or .txt)"
_PACKED = "archive; unpack it and name the files in it"
_BINARY: tuple[tuple[int, bytes, str], ...] = (
    (0, _OLD, f"an old Microsoft Office file, not a text; {SAVE}"),
    (0, b"\x1f\x8b", f"a gzip {_PACKED}"),
    (0, b"\xfd7zXZ", f"an xz {_PACKED}"),
    (0, b"BZh", f"a bzip2 {_PACKED}"),
    (0, b"\x28\xb5\x2f\xfd", f"a Zstandard {_PACKED}"),
    (0, b"7z\xbc\xaf\x27\x1c", f"a 7-Zip {_PACKED}"),
    (0, b"Rar!\x1a\x07", f"a RAR {_PACKED}"),
    (257, b"ustar", f"a tar {_PACKED}"),
    (0, b"AT&TFORM", "a DjVu book; convert it to .pdf"),
    (8, b"WAVE", _SOUND),
    (8, b"AVI ", _SOUND),
    (0, b"ID3", _SOUND),
    (0, b"OggS", _SOUND),
    (0, b"fLaC", _SOUND),
    (4, b"ftyp", _SOUND),
    (0, b"\x1aE\xdf\xa3", _SOUND),
    (60, b"BOOKMOBI", "a Kindle book; convert it to .epub"),
    (0, b"PAR1", "a Parquet table; give its texts to `longspan map`"),
    (0, b"%!PS", "a PostScript file; convert it to .pdf"),
    (0, b"\x7fELF", f"a program, not a text; {SAVE}"),
    (0, b"MZ\x90\0", f"a program, not a text; {SAVE}"),
    (0, b"SQLite format 3", f"a database, not a text; {SAVE}"),
)
"""Offset of a signature, its bytes, and the kind of file."""
_XML = re.compile(r"\s*<\?xml\b")
_WEB = re.compile(r"<(?:!doctype\s+html|html)\b", re.IGNORECASE)
_ROOT = re.compile(r"<(?:[\w.-]+:)?([A-Za-z][\w.-]*)")
_TREES = {
    "FictionBook": "a FictionBook; convert it to .epub",
    "svg": "a drawing (SVG), not a document; export it as .pdf",
    "book": "DocBook; convert it to .html",
    "article": "DocBook or JATS; convert it to .html",
    "TEI": "TEI; convert it to .html",
    "tt": "subtitles in TTML; convert them to .srt or .vtt",
    "document": "an OpenDocument or another office file without its archive; save it as .odt or .docx",
    "wordDocument": "a Word file of 2003 (XML); save it as .docx",
}
_RECORDS = frozenset({".json", ".jsonl", ".jsonlines", ".ndjson"})


def check_read(source: Source) -> None:
    """Raises `InputError` for an unsupported archive or binary file."""
    if source.archive is not None:
        archive = source.archive
        kind = next((what for pattern, what in _ZIPPED if re.search(pattern, archive.types)), None)
        kind = kind or _OPEN_DOCUMENTS.get(archive.mime)
        kind = kind or next((what for part, what in _PARTS if part in archive.names), None)
        raise InputError(f"{source.name} is {kind or 'a zip archive; unpack it and name the files in it'}")
    if source.head.startswith(_OLD) and _LOCKED in source.data:
        raise InputError(f"{source.name} is locked with a password; save a copy without one")
    for place, signature, what in _BINARY:
        if source.encoding is None and source.head.startswith(signature, place):
            raise InputError(f"{source.name} is {what}")


def check_prose(source: Source, text: str) -> None:
    """Raises `InputError` for JSON, JSON Lines and XML, by name or content: keys and tags are not sentences, and only
    the user knows which field is the document."""
    is_record, line = source.suffix in _RECORDS, text.lstrip().partition("\n")[0]
    if source.suffix == "" and line.startswith("{"):
        with suppress(ValueError, RecursionError):
            is_record = isinstance(json.loads(line), dict)
    if is_record:
        raise InputError(
            f"{source.name} holds JSON, not a document; save the text that you mean as a file of its own, such as a "
            ".txt"
        )
    if _XML.match(text) and not _WEB.search(text, 0, 4_096):
        root = _ROOT.search(text, 0, 65_536)
        what = _TREES.get(root[1] if root else "", "XML, not a document; save the text that you mean as .html or .txt")
        raise InputError(f"{source.name} is {what}")
