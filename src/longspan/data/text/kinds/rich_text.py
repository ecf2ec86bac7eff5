"""Rich text (.rtf), by striprtf."""

from __future__ import annotations

import re

from longspan.data.text.documents import check_words
from longspan.data.text.kinds.source import Source
from longspan.data.text.kinds.table import FileKind
from longspan.errors import InputError
from longspan.imports import require

LARGEST = 1 << 24
"""Characters without pictures; the library takes a microsecond for each."""

_PICTURE = re.compile(rb"[0-9a-fA-F\r\n]{256,}")
"""The bytes of a picture, which no words are."""
_HIDDEN = re.compile(r"\{\\v(?![a-z0])[^{}]*\}|\{\\\*\\(?:comment|annotation|atnid|atnauthor)[^{}]*\}")


def _read(source: Source) -> str:
    library = require("striprtf.striprtf", extra="documents", purpose="reading rich text")
    text = _PICTURE.sub(b"", source.data).decode("latin-1")
    if len(text) > LARGEST:
        raise InputError(f"{source.name} holds more than {LARGEST >> 20} MiB of rich text; save it as .docx or .txt")
    try:
        words = library.rtf_to_text(_HIDDEN.sub("", text), errors="replace")
    except (ValueError, LookupError, IndexError, OverflowError, TypeError, RecursionError) as error:
        raise InputError(f"{source.name} is damaged ({type(error).__name__}); save it again, or as .docx") from None
    check_words(words, source.name)
    return re.sub(r"\s*\n\s*", "\n\n", words.replace("\0", "").strip())


RICH_TEXT = FileKind(
    name="rich-text",
    title="a rich-text file",
    endings=(".rtf",),
    signature=lambda source: source.head.lstrip().startswith(b"{\\rtf"),
    sure=True,
    read=_read,
    parts="Each paragraph by itself, then as plain text: headings and lists are guessed.",
    left_out="pictures, comments, hidden text, heads and feet",
    library="striprtf",
)
