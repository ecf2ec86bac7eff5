"""Letters as documents, and to whom they are written."""

from __future__ import annotations

import re
from pathlib import Path

from longspan_documents.text.kinds.source import Source
from longspan_documents.text.kinds.table import FileKind
from longspan_documents.text.reading import as_document

_SALUTATION = re.compile(r"^(?:Dear|Hello)\s+(?P<name>[^,\n]+)", re.MULTILINE)


def _without_stamp(source: Source) -> str:
    """The text below the first line, which is the stamp of a letter."""
    return source.text.partition("\n")[2]


LETTER = FileKind(
    name="letter",
    title="a letter",
    endings=(".letter",),
    read=_without_stamp,
    is_text=True,
    parts="paragraphs",
    left_out="the stamp",
)


def salutation(document: str | Path) -> str:
    """To whom a letter is written; empty where it does not say.

    Args:
        document: a text, or the `Path` of a file of any kind that Longspan reads.

    Raises:
        longspan.InputError: the file cannot be read.
    """
    found = _SALUTATION.search(as_document(document).text)
    return found["name"].strip() if found else ""
