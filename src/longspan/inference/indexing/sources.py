"""What is added to an index: the files of folders one by one, each with what tells whether it has changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from longspan.characters import on_one_line
from longspan.data.text.blocks import Document
from longspan.data.text.documents import documents_in
from longspan.errors import InputError
from longspan.inference.answer import Source
from longspan.progress import progress_bar


@dataclass(frozen=True)
class Added:
    """How many documents were new or changed, how many were there already, and how many passages the new ones have."""

    documents: int = 0
    known: int = 0
    passages: int = 0


def sources_of(
    given: Source | Sequence[Source], skipped: list[str]
) -> Iterator[tuple[str | None, bool, list[int], Source]]:
    """Each source with the key of its file, whether a folder that was named holds it, and the file's stamp."""
    every: list[tuple[str, Source]] = []
    for source in [given] if isinstance(given, str | Path | Document) else given:
        if isinstance(source, Path) and source.is_dir():
            files, note = documents_in(source)
            skipped += [f"{on_one_line(str(source))}: {note}"] if note else []
            every += [("+", file) for file in files]
        else:
            every.append(("", source))
    if not every:
        raise InputError("there is no document to index; give a text, a file or a folder")
    for mark, source in progress_bar(every, doing="indexing", unit=" documents"):
        if isinstance(source, Path) and source.is_file():
            told = source.stat()
            yield str(source.resolve()), mark == "+", [told.st_size, told.st_mtime_ns], source
        else:
            yield None, False, [], source
