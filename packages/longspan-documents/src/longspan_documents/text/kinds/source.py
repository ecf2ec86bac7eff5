"""The input of a reader of a kind of file: bytes, name, and derived properties."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from longspan.characters import on_one_line
from longspan.errors import InputError
from longspan.files import PIPES
from longspan_documents.text.archives.archive import SIGNATURE, Archive
from longspan_documents.text.documents import check_encoding, decode

LARGEST = 1 << 28
"""In bytes; more is not a document for one call, and would take a hundred times as much memory."""
LONGEST_NAME = 300
"""Maximum characters of a name in an error."""
HEAD = 1 << 13
"""Number of bytes searched for signatures."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file to be read.

    Attributes:
        name: its name in messages.
        suffix: suffix of its name, lower-case; "" without one, and for standard input.
        head: its first `HEAD` bytes.
        encoding: encoding of a text file, if the caller specified it.
        path: path of a file that can be opened again; None for piped input.
        content: all bytes, if they were read already.
        page_headers: whether page headers and footers are read.
        ocr: whether text recognition is used.
    """

    name: str
    suffix: str = ""
    head: bytes = b""
    encoding: str | None = None
    path: Path | None = None
    content: bytes | None = None
    page_headers: bool = False
    ocr: bool = False

    @classmethod
    def of_bytes(cls, data: bytes, suffix: str = "", name: str = "the document") -> Source:
        """Returns the source of a file in memory."""
        return cls(name=name, suffix=suffix, head=data[:HEAD], content=data)

    @classmethod
    def of_path(cls, path: str | Path, encoding: str | None = None) -> Source:
        """Returns the source of a regular file, a pipe created by the shell, or "-", standard input.

        Raises:
            InputError: it is missing, a directory, a device, unreadable or empty, or the encoding is unknown.
        """
        if encoding is not None:
            check_encoding(encoding)
        if str(path) == "-":
            if sys.stdin is None:
                raise InputError("standard input is closed; give a file, or pipe a document in")
            return cls._piped(sys.stdin.buffer, "", "standard input", encoding)
        if not str(path).strip():
            raise InputError(f"{str(path)!r} names no file; give the path of one")
        name, suffix = on_one_line(str(path)), Path(path).suffix.lower()
        with _errors(name):
            mode = os.stat(path).st_mode
            if stat.S_ISDIR(mode):
                raise InputError(f"{name} is a directory; name the files in it")
            # A regular file, or a pipe created by the shell for this command; anything else may be endless.
            if not stat.S_ISREG(mode) and not (stat.S_ISFIFO(mode) and PIPES.fullmatch(str(path))):
                kind = "a named pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
                raise InputError(f"{name} is {kind}, not a file; give a file, or pipe the text in and name it -")
            with open(path, "rb") as file:
                if not stat.S_ISREG(mode):
                    return cls._piped(file, suffix, name, encoding)
                head = file.read(HEAD)
        if not head:
            raise InputError(f"{name} is empty; give a document with text")
        return cls(name=name, suffix=suffix, head=head, encoding=encoding, path=Path(path))

    @classmethod
    def _piped(cls, file: BinaryIO, suffix: str, name: str, encoding: str | None) -> Source:
        with _errors(name):
            data = _whole(file, name)
        return cls(name=name, suffix=suffix, head=data[:HEAD], encoding=encoding, content=data)

    @cached_property
    def data(self) -> bytes:
        """All bytes.

        Raises:
            InputError: there are more than `LARGEST`, or the file cannot be read.
        """
        if self.content is not None:
            return self.content
        with self.opened() as file:
            return _whole(file, self.name)

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Opens the file at its beginning, for a kind that is read as a stream, of any size."""
        if self.path is None or "data" in self.__dict__:
            yield BytesIO(self.data)
            return
        with _errors(self.name), open(self.path, "rb") as file:
            yield file

    @cached_property
    def text(self) -> str:
        r"""The characters of a text file, with line ends as "\\n".

        Raises:
            InputError: it is not in its encoding, or a binary file.
        """
        return decode(self.data, self.name, self.encoding)

    @cached_property
    def beginning(self) -> str:
        """The first characters of a possible text file, for signatures; invalid bytes are ignored."""
        encodings = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
        text = self.head.decode(encodings.get(self.head[:2], "utf-8"), "ignore").removeprefix("\ufeff")
        return text.replace("\r\n", "\n").replace("\r", "\n")

    @cached_property
    def archive(self) -> Archive | None:
        """The zip archive of the file; None if it is not one.

        Raises:
            InputError: it is damaged, encrypted or too large.
        """
        return Archive(self.data, self.name) if self.head.startswith(SIGNATURE) else None


def _whole(file: BinaryIO, name: str) -> bytes:
    data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise InputError(f"{name} is longer than {LARGEST >> 20} MiB, too long for one document; cut it into parts")
    if not data:
        raise InputError(f"{name} is empty; give a document with text")
    return data


def short_name(name: str) -> str:
    """Returns a name for an error message, truncated if it is too long."""
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"


@contextmanager
def _errors(name: str) -> Iterator[None]:
    """Converts exceptions of the operating system to one sentence."""
    name = short_name(name)
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{name} does not exist; check the path") from None
    except InputError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path, or a closed standard input
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{name} cannot be read ({reason}); check the path and its permissions") from None
