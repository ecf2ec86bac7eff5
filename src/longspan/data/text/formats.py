"""Files of formats that tell a heading from a paragraph, known by their contents and then by their names."""

from __future__ import annotations

from longspan.data.text.blocks import Document
from longspan.data.text.pdf.reader import document_from_pdf


def structured(data: bytes, suffix: str, name: str) -> Document | None:
    """The document in a PDF file, before it is tidied; None for what must be a text.

    Args:
        data: the whole file.
        suffix: of its name, in small letters.
        name: what error messages call it.

    Raises:
        InputError: the file is damaged, locked, or of another format that longspan does not read.
    """
    if data.startswith(b"%PDF-") or suffix == ".pdf":
        return document_from_pdf(data, name)
    return None
