"""Sources of an index: files of folders one by one, each with a stamp that detects changes."""

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
"""Maximum number of files that a note names; of the others it gives the number."""


@dataclass(frozen=True)
class Added:
    """Number of new or changed documents, of documents that were already present, and of passages of the new ones."""

    documents: int = 0
    known: int = 0
    passages: int = 0


def digest_of(document: Document) -> str:
    """Returns the BLAKE2b checksum of a document's text, 16 bytes in hexadecimal."""
    return hashlib.blake2b(document.text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@contextmanager
def not_left_empty(folder: Path, *lists: str) -> Iterator[None]:
    """Context manager that restores a folder without an index if its block fails before a document is added.

    Otherwise, if the first document cannot be read, an empty index would remain.
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
    """Read one of several sources like `open_documents`; the encoding applies only to files."""
    return read_documents(source, reading if isinstance(source, Path) else replace(reading, encoding=None))


def sources_of(
    sources: Source | Sequence[Source], skipped: list[str]
) -> Iterator[tuple[str | None, bool, list[int], Source]]:
    """Yield each source with the key of its file, whether it was found in a folder, and the file's stamp."""
    keyed_sources: list[tuple[str, Source]] = []
    for source in [sources] if isinstance(sources, str | Path | Document) else sources:
        if isinstance(source, Path) and os.path.isdir(source):
            files, note = documents_in(source)
            skipped += [f"{on_one_line(str(source))}: {note}"] if note else []
            keyed_sources += [("+", file) for file in files]
        else:
            keyed_sources.append(("", source))
    if not keyed_sources:
        raise InputError("there is no document to index; give a text, a file or a folder")
    for mark, source in progress_bar(keyed_sources, doing="indexing", unit=" documents"):
        if isinstance(source, Path) and os.path.isfile(source):
            yield str(source.resolve()), mark == "+", stamp_of(source), source
        else:
            yield None, False, [], source


def stamp_of(file: str | Path) -> list[int]:
    """Returns size and time of a file, which detect changes; empty if there is no file."""
    try:
        status = os.stat(file)
    except (OSError, ValueError):
        return []
    return [status.st_size, status.st_mtime_ns]


def stale_files(entries: Iterable[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Returns the files that have been deleted and those that have changed, for entries of an index's list.

    Documents without a file have an empty stamp and are never stale.
    """
    gone, changed = [], []
    for entry in entries:
        if entry["stamp"] and (now := stamp_of(entry["key"])) != entry["stamp"]:
            (changed if now else gone).append(entry["key"])
    return gone, changed


def names_of_files(files: Sequence[str]) -> str:
    """Returns the names of files for a sentence: "a.md, b.md, c.md and 4 more"."""
    more = f" and {len(files) - NAMED:,} more" if len(files) > NAMED else ""
    return ", ".join(on_one_line(Path(file).name) for file in files[:NAMED]) + more


def stale_note(gone: Sequence[str], changed: Sequence[str]) -> str | None:
    """Returns one sentence on files that differ from what the index read; None if there are none."""
    parts = [
        f"{counted(len(files), 'file')} {verb} ({names_of_files(files)})"
        for files, verb in ((gone, "gone"), (changed, "changed"))
        if files
    ]
    if not parts:
        return None
    return f"the index is older than its files: {', '.join(parts)}; `longspan index` takes them out or reads them again"
