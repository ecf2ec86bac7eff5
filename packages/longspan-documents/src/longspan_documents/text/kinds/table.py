"""The table of all kinds of files: `READERS`, and which of them a file is.

A kind is known by its signature first, whatever the file is called, and by the ending of its name where no signature
fits. What is of no kind is plain text, or refused where `longspan_documents.text.kinds.refused` names it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from longspan.errors import InputError
from longspan.imports import Table, load_plugins
from longspan_documents.text.blocks import Document
from longspan_documents.text.kinds.refused import check_read
from longspan_documents.text.kinds.source import Source

_NAME = re.compile(r"[a-z][a-z0-9-]*")
_ENDING = re.compile(r"(?:\.[a-z0-9]{1,12}){1,2}")


@dataclass(frozen=True, kw_only=True)
class FileKind:
    """A kind of file; `longspan.register` adds one of others.

    Attributes:
        name: in `READERS`: small letters, digits and "-".
        title: what a sentence calls such a file: "a Word file".
        endings: of the names of its files, in small letters.
        read: gives the document, whose blocks are tidied afterwards; or a text that is then read as plain text.
        signature: whether a file is of this kind by its bytes; None where only the ending tells.
        sure: whether every file of the kind has the signature, so that one without it is refused, whatever its ending.
        is_text: whether its bytes are characters that `raw=True` reads as they are.
        has_places: whether the text of its documents is the file's own, with all its marks.
        is_prose: whether it holds sentences; a table does not.
        parts: what becomes of its parts, as a cell of the guide.
        left_out: what is not read, as a cell of the guide.
        library: that reads it.
    """

    name: str
    title: str
    endings: tuple[str, ...]
    read: Callable[[Source], Document | str]
    signature: Callable[[Source], bool] | None = None
    sure: bool = False
    is_text: bool = False
    has_places: bool = False
    is_prose: bool = True
    parts: str = ""
    left_out: str = ""
    library: str = "the standard library"

    def __post_init__(self) -> None:
        """Refuse what the table could not use."""
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise InputError(f"name={self.name!r} of a kind of file cannot be used; give small letters, digits and -")
        for ending in self.endings:
            if not isinstance(ending, str) or not _ENDING.fullmatch(ending):
                raise InputError(f"ending {ending!r} of {self.title} is none; give one such as '.abc'")
        if self.sure and self.signature is None:
            raise InputError(f"sure=True of {self.title} needs a signature; give one, or leave it out")

    def registered_in(self) -> tuple[MutableMapping[str, Any], str, str]:
        """The table that `longspan.register` enters it in, its name there, and what it is."""
        return READERS, self.name, "kind of file"


_ROOM = "longspan_documents.text.kinds"

READERS: Table[FileKind] = Table(
    "readers",
    {
        "pdf": f"{_ROOM}.pdf:PDF",
        "image": f"{_ROOM}.pdf:IMAGE",
        "word": f"{_ROOM}.word:WORD",
        "book": f"{_ROOM}.book:BOOK",
        "page": f"{_ROOM}.page:PAGE",
        "markdown": f"{_ROOM}.marked:MARKDOWN",
        "subtitles": f"{_ROOM}.subtitles:SUBTITLES",
        "slides": f"{_ROOM}.slides:SLIDES",
        "workbook": f"{_ROOM}.sheets:WORKBOOK",
        "open-text": f"{_ROOM}.open_text:OPEN_TEXT",
        "open-sheet": f"{_ROOM}.sheets:OPEN_SHEET",
        "rich-text": f"{_ROOM}.rich_text:RICH_TEXT",
        "notebook": f"{_ROOM}.notebook:NOTEBOOK",
        "values": f"{_ROOM}.sheets:VALUES",
        "latex": f"{_ROOM}.latex:LATEX",
        "restructured": f"{_ROOM}.restructured:RESTRUCTURED",
        "manual": f"{_ROOM}.manual:MANUAL",
        "saved-page": f"{_ROOM}.saved_page:SAVED_PAGE",
        "chats": f"{_ROOM}.chats:CHATS",
        "mailbox": f"{_ROOM}.mail:MAILBOX",
        "mail": f"{_ROOM}.mail:MAIL",
    },
)
"""Name → kind of file, in the order in which their signatures are tried."""


def kind_of(source: Source) -> FileKind | None:
    """The kind of a file; None for plain text. Plugins are loaded where the ending is of no kind that is known.

    Raises:
        InputError: it is of a kind that is not read, damaged, or not what its ending calls it.
    """
    signed = _signed(source)
    if signed is None and source.suffix and source.suffix not in endings():
        load_plugins()
        signed = _signed(source)
    if signed is not None:
        return signed
    check_read(source)
    named = next((kind for kind in READERS.values() if source.suffix and source.suffix in kind.endings), None)
    if named is not None and named.sure:
        raise InputError(f"{source.name} is not {named.title}, whatever its name says; save it again, or rename it")
    return named


def _signed(source: Source) -> FileKind | None:
    """The first kind whose signature fits; those behind it are not imported."""
    return next((kind for kind in READERS.values() if kind.signature is not None and kind.signature(source)), None)


def kinds_in_words() -> str:
    """What can be read, as a sentence has it: "plain text (.txt, .text), a PDF file (.pdf), …"."""
    named = [f"{kind.title} ({', '.join(kind.endings or ('.json',))})" for kind in READERS.values()]
    return ", ".join(["plain text (.txt, .text)", *named])


def endings() -> frozenset[str]:
    """Of the names of documents, plain text among them."""
    return frozenset({".txt", ".text", *(ending for kind in READERS.values() for ending in kind.endings)})
