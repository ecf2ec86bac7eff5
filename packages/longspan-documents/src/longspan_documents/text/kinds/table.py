"""The table of all kinds of files, `READERS`, and detection of the kind of a file.

A kind is detected by its signature first, whatever the name, and by the suffix if no signature matches. Files of no
kind are plain text, or refused if `longspan_documents.text.kinds.refused` lists them.
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
    """A kind of file; `longspan.register` adds others.

    Attributes:
        name: name in `READERS`: lower-case letters, digits and "-".
        title: description in messages: "a Word file".
        endings: suffixes of its files, lower-case.
        read: returns the document, whose blocks are then tidied; or a text that is then read as plain text.
        signature: whether a file is of this kind by its bytes; None if only the suffix decides.
        sure: whether every file of the kind has the signature, so that one without it is refused, whatever its suffix.
        is_text: whether its bytes are characters that `raw=True` reads unchanged.
        has_places: whether the text of its documents is the file's own, with all markup.
        is_prose: whether it contains sentences, unlike a table.
        parts: how its parts are read, as a cell of the guide.
        left_out: what is not read, as a cell of the guide.
        library: the library that reads it.
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
        """Raises `InputError` for invalid fields."""
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise InputError(f"name={self.name!r} of a kind of file cannot be used; give small letters, digits and -")
        for ending in self.endings:
            if not isinstance(ending, str) or not _ENDING.fullmatch(ending):
                raise InputError(f"ending {ending!r} of {self.title} is none; give one such as '.abc'")
        if self.sure and self.signature is None:
            raise InputError(f"sure=True of {self.title} needs a signature; give one, or leave it out")

    def registered_in(self) -> tuple[MutableMapping[str, Any], str, str]:
        """The table for `longspan.register`, its name there, and the kind of object."""
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
    """Returns the kind of a file; None for plain text. Plugins are loaded if the suffix is unknown.

    Raises:
        InputError: it is of an unsupported kind, damaged, or does not match its suffix.
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
        raise InputError(f"{source.name} is not {named.title}, despite its name; save it again, or rename it")
    return named


def _signed(source: Source) -> FileKind | None:
    """Returns the first kind whose signature matches; later ones are not imported."""
    return next((kind for kind in READERS.values() if kind.signature is not None and kind.signature(source)), None)


def kinds_in_words() -> str:
    """Lists the supported kinds: "plain text (.txt, .text), a PDF file (.pdf), …"."""
    named = [f"{kind.title} ({', '.join(kind.endings or ('.json',))})" for kind in READERS.values()]
    return ", ".join(["plain text (.txt, .text)", *named])


def endings() -> frozenset[str]:
    """Returns the suffixes of documents, including plain text."""
    return frozenset({".txt", ".text", *(ending for kind in READERS.values() for ending in kind.endings)})
