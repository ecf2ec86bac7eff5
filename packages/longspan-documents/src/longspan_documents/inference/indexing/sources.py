"""What is added to an index: the files of folders one by one, each with what tells whether it has changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longspan.characters import counted, on_one_line
from longspan.errors import InputError
from longspan.progress import progress_bar
from longspan_documents.inference.answer import Source, read_documents
from longspan_documents.text.blocks import Document
from longspan_documents.text.folders import documents_in
from longspan_documents.text.options import Reading

NAMED = 3
"""Files that a note names; of more it says how many."""


@dataclass(frozen=True)
class Added:
    """How many documents were new or changed, how many were there already, and how many passages the new ones have."""

    documents: int = 0
    known: int = 0
    passages: int = 0


def digest_of(document: Document) -> str:
    """The BLAKE2b checksum of a document's text, 16 bytes in hexadecimal digits."""
    return hashlib.blake2b(document.text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@contextmanager
def not_left_empty(folder: Path, *lists: str) -> Iterator[None]:
    """Have a folder that holds no index, and at the end of a block that fails nothing but its lists, as it was before.

    An index whose first document cannot be read would else be left behind, new and empty.
    """
    was_there, had = folder.exists(), any((folder / name).exists() for name in lists)
    try:
        yield
    except BaseException:
        if not had and folder.exists() and set(os.listdir(folder)) <= set(lists):
            for name in lists:
                (folder / name).unlink(missing_ok=True)
            if not was_there:
                folder.rmdir()
        raise


def opened(source: Source, reading: Reading) -> tuple[list[Document], list[str]]:
    """One of several sources, as `open_documents` reads it; an encoding is for those of them that are files."""
    return read_documents(source, reading if isinstance(source, Path) else replace(reading, encoding=None))


def sources_of(
    given: Source | Sequence[Source], skipped: list[str]
) -> Iterator[tuple[str | None, bool, list[int], Source]]:
    """Each source with the key of its file, whether a folder that was named holds it, and the file's stamp."""
    every: list[tuple[str, Source]] = []
    for source in [given] if isinstance(given, str | Path | Document) else given:
        if isinstance(source, Path) and os.path.isdir(source):
            files, note = documents_in(source)
            skipped += [f"{on_one_line(str(source))}: {note}"] if note else []
            every += [("+", file) for file in files]
        else:
            every.append(("", source))
    if not every:
        raise InputError("there is no document to index; give a text, a file or a folder")
    for mark, source in progress_bar(every, doing="indexing", unit=" documents"):
        if isinstance(source, Path) and os.path.isfile(source):
            yield str(source.resolve()), mark == "+", stamp_of(source), source
        else:
            yield None, False, [], source


def stamp_of(file: str | Path) -> list[int]:
    """Size and time of a file, which tell whether it has changed; empty where there is none."""
    try:
        told = os.stat(file)
    except (OSError, ValueError):
        return []
    return [told.st_size, told.st_mtime_ns]


def stale_files(entries: Iterable[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """The files that are gone, and those that have changed, of documents as the list of an index has them.

    Those that came from no file have an empty stamp, and do not grow stale.
    """
    gone, changed = [], []
    for entry in entries:
        if entry["stamp"] and (now := stamp_of(entry["key"])) != entry["stamp"]:
            (changed if now else gone).append(entry["key"])
    return gone, changed


def names_of_files(files: Sequence[str]) -> str:
    """The names of some files, of which a sentence tells: "a.md, b.md, c.md and 4 more"."""
    more = f" and {len(files) - NAMED:,} more" if len(files) > NAMED else ""
    return ", ".join(on_one_line(Path(file).name) for file in files[:NAMED]) + more


def stale_note(gone: Sequence[str], changed: Sequence[str]) -> str | None:
    """One sentence on files that are no longer as the index read them; None where all are."""
    parts = [
        f"{counted(len(files), 'file')} {verb} ({names_of_files(files)})"
        for files, verb in ((gone, "gone"), (changed, "changed"))
        if files
    ]
    if not parts:
        return None
    return f"the index is older than its files: {', '.join(parts)}; `longspan index` takes them out or reads them again"
