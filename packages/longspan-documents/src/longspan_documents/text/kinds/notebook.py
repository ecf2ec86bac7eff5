"""Jupyter notebooks (.ipynb, nbformat 3 and 4): Markdown as text, code as code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from longspan.characters import mend
from longspan.errors import InputError
from longspan_documents.text.blocks import Block, Document, Traced, document_from_pieces
from longspan_documents.text.kinds.source import Source
from longspan_documents.text.kinds.table import FileKind
from longspan_documents.text.markdown import blocks_of_markdown, is_made_of_marks

MOST_VALUES = 4_000_000
"""Maximum commas and colons of the file; each JSON value takes up to a hundred bytes in memory."""


def _is_notebook(source: Source) -> bool:
    return source.suffix in {"", ".json", ".ipynb"} and bool(re.search(r'"cell_type"\s*:', source.beginning))


def _read(source: Source) -> Document:
    data = source.data
    if data.count(b",") + data.count(b":") > MOST_VALUES:
        raise InputError(
            f"{source.name} holds more than {MOST_VALUES:,} values, too much for one document; clear its outputs"
        )
    try:
        given = json.loads(source.text)
    except (ValueError, RecursionError):
        raise InputError(f"{source.name} is damaged (it is no JSON); save the notebook again") from None
    return document_from_pieces(_pieces(given, source.name), source.name)


def _pieces(given: Any, name: str) -> Iterator[tuple[str, Sequence[Block]]]:
    for cell in _cells(given, name):
        kind = cell.get("cell_type")
        text = _text(cell.get("source", cell.get("input")))
        if not text.strip():
            continue
        if kind == "markdown":
            is_plain = is_made_of_marks(text)
            yield text, [Block(kind="paragraph", body=Traced.whole(text))] if is_plain else blocks_of_markdown(text)
        elif kind == "heading":  # nbformat 3
            level = cell.get("level")
            yield text, [Block(kind="heading", body=Traced.whole(text), level=level if isinstance(level, int) else 1)]
        elif kind == "code":
            yield text, [Block(kind="code", body=Traced.whole(text.rstrip("\n")))]


def _cells(given: Any, name: str) -> list[Mapping[str, Any]]:
    sheets = given.get("worksheets") if isinstance(given, Mapping) else None
    holders = sheets if isinstance(sheets, list) else [given]
    lists = [holder.get("cells") for holder in holders if isinstance(holder, Mapping)]
    cells = [cell for some in lists if isinstance(some, list) for cell in some if isinstance(cell, Mapping)]
    if not cells:
        raise InputError(f"{name} holds no cells of a notebook; save it again, or save its text as .md")
    return cells


def _text(source: Any) -> str:
    """Returns a cell's source, which is a text or a list of lines."""
    lines = source if isinstance(source, list) else [source]
    return mend("".join(line for line in lines if isinstance(line, str)).replace("\r\n", "\n"))[0]


NOTEBOOK = FileKind(
    name="notebook",
    title="a notebook",
    endings=(".ipynb",),
    signature=_is_notebook,
    read=_read,
    is_text=True,
    parts="Cells in order: Markdown like a `.md` file, code as code.",
    left_out="outputs, raw cells",
    library="the standard library; markdown-it-py, lxml",
)
