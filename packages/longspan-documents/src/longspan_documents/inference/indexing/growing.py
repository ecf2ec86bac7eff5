"""Updates of an index without a model: new and changed documents are written to parts, and the list of parts is
replaced.

A file with unchanged size and time is not read again; a changed file is read, and its former text is ignored. A part
gets its name when it is complete, and is used when `search.json`, which is replaced atomically, lists it. So an
interruption leaves either the old index or the new one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from longspan.data.text.sentences import guess_language
from longspan.errors import InputError
from longspan.files import claimed, write_whole
from longspan.options import expand_options
from longspan.progress import without_bars
from longspan_documents.inference.answer import SAMPLE, Source
from longspan_documents.inference.encoders import bundled_encoder
from longspan_documents.inference.indexing.parts import Part, Prepared, write_part
from longspan_documents.inference.indexing.preparing import Ahead, Preparer
from longspan_documents.inference.indexing.sources import (
    Added,
    digest_of,
    names_of_files,
    opened,
    sources_of,
    stale_files,
)
from longspan_documents.inference.results import reads_english
from longspan_documents.text.blocks import Document
from longspan_documents.text.options import Reading, SentenceReading

LIST = "search.json"
BUILDING = "building"
"""Folder of the documents that worker processes have prepared, while an index is built."""
FORMAT = 1
PART_PASSAGES = 20_000
"""A part is written when it has this many passages."""


class GrowingIndex:
    """The part of `longspan_documents.inference.indexing.search.SearchIndex` that adds documents."""

    folder: Path
    notes: list[str]
    added: Added
    _list: dict[str, Any]
    _parts: list[tuple[Part, dict[str, Any]]]
    device: str | None
    _given: Any
    _encoder: Any

    def _read(self) -> None:
        """Read the list again, and open its parts."""
        raise NotImplementedError

    @expand_options(SentenceReading)
    def add(self, documents: Source | Sequence[Source], options: Reading) -> list[str]:
        """Add documents that are new or have changed; returns notes on skipped files.

        Arguments and errors as in `longspan.index`. After an interruption or an unreadable document, the documents
        before it are in the index.
        """
        return self.add_read(documents, options)

    def add_read(self, documents: Source | Sequence[Source], reading: Reading, ahead: Ahead | None = None) -> list[str]:
        """Add documents with these reading options; `ahead` prepares files in several processes."""
        skipped: list[str] = []
        opened = partial(self._opened, reading=reading)
        with claimed(self.folder):
            self._read()
            self.added = Added()
            self._known = self._entries
            prepared = None if ahead is None else self._prepared(ahead, documents, opened)
            waiting: list[tuple[dict[str, Any], Prepared]] = []
            try:
                for key, inside, stamp, source in sources_of(documents, skipped):
                    if self._is_known(key, stamp):
                        self.added = replace(self.added, known=self.added.known + 1)
                        continue
                    try:
                        ready = prepared(source) if prepared is not None and isinstance(source, Path) else None
                        new = self._new(key, stamp, [ready] if ready else opened(source))
                    except InputError as error:
                        if not inside:
                            raise
                        skipped.append(f"passed over: {error}")
                        continue
                    for entry, document in new:
                        self._known[entry["key"]] = entry
                        waiting.append(
                            (entry, document if isinstance(document, Prepared) else self._preparer(document)(document))
                        )
                        if sum(len(prepared_document.stems) for _, prepared_document in waiting) >= PART_PASSAGES:
                            self._write(waiting)
                            waiting = []
            finally:
                self._write(waiting)
                if left := self._let_go():
                    skipped.append(f"left the index, as their files are gone or have changed: {names_of_files(left)}")
                self._read()
            shutil.rmtree(self.folder / BUILDING, ignore_errors=True)
        return skipped

    def _prepared(
        self, ahead: Ahead, documents: Source | Sequence[Source], opened: Callable[[Source], list[Document]]
    ) -> Callable[[Path], Prepared | None] | None:
        """Prepare the files that are new or have changed; returns None if there are none."""
        with without_bars():
            new = [source for key, _, stamp, source in sources_of(documents, []) if not self._is_known(key, stamp)]
        for source in new if self._list["language"] is None else ():
            with suppress(InputError):  # reported when the source is added
                self._preparer(opened(source)[0])
                break
        files = list(dict.fromkeys(source for source in new if isinstance(source, Path)))
        return ahead(self._preparer(None), files) if files and self._list["language"] is not None else None

    def _is_known(self, key: str | None, stamp: list[int]) -> bool:
        """Whether the index contains the current version of a file."""
        known = self._known.get(key) if key else None
        return known is not None and known["stamp"] == stamp

    def _opened(self, source: Source, reading: Reading) -> list[Document]:
        documents, more = opened(source, reading)
        self.notes += more
        return documents

    def _new(
        self, key: str | None, stamp: list[int], documents: Sequence[Document | Prepared]
    ) -> Iterator[tuple[dict[str, Any], Document | Prepared]]:
        """Yield the documents of a source that are not in the index, each with its entry for the list."""
        for document in documents:
            digest = document.digest if isinstance(document, Prepared) else digest_of(document)
            name = key or f"text:{digest}"
            known = self._known.get(name)
            if known is not None and known["digest"] == digest:
                known["stamp"] = stamp
                self.added = replace(self.added, known=self.added.known + 1)
            else:
                yield {"key": name, "stamp": stamp, "digest": digest}, document

    @property
    def _entries(self) -> dict[str, dict[str, Any]]:
        """The list's entry of each document that can be queried, by its key."""
        return {
            entry["key"]: entry
            for _, listed in self._parts
            for entry in listed["entries"]
            if entry["document"] is not None
        }

    def _let_go(self) -> list[str]:
        """Remove documents whose files have been deleted, or have changed and were not read again; returns their
        keys."""
        left = set().union(*stale_files(self._entries.values()))
        if left:
            self._forget(left)
            write_list(self.folder, self._list)
        return sorted(left)

    def _forget(self, keys: Collection[str]) -> None:
        """Mark the stored texts of these documents as replaced; the list is written later."""
        for listed in self._list["parts"]:
            for entry in listed["entries"]:
                entry["document"] = None if entry["key"] in keys else entry["document"]

    def _preparer(self, document: Document | None) -> Preparer:
        """Returns the preparer; the first document of an index determines its language."""
        if self._list["language"] is None:
            assert document is not None
            self._list["language"] = guess_language(document.text[:SAMPLE])
            bundled = self._list["encoder"] is None
            if bundled and reads_english(document.text[:SAMPLE]):
                self._list["width"] = bundled_encoder(self.device).dimensions
            elif not bundled:
                self._list["width"] = 1  # until the encoder is loaded
                self._list["width"] = self._encoder.dimensions
            self.__dict__.pop("_encoder", None)
        source = self._list["encoder"]
        if source is not None:
            from longspan.checkpoints.sources import local_folder

            source = str(self._given if self._given is not None else local_folder(source))
        return Preparer(self._list["language"], self._encoder, source is None, source)

    def _write(self, waiting: Sequence[tuple[dict[str, Any], Prepared]]) -> None:
        """Write a part, then the list with it, in which former texts of its documents are marked as replaced."""
        numbers = [int(listed["file"][5:].partition(".")[0]) for listed in self._list["parts"]]
        if waiting:
            name = f"part-{1 + max(numbers, default=0):06d}.safetensors"
            size = write_part(self.folder / name, [prepared for _, prepared in waiting])
            self._forget({entry["key"] for entry, _ in waiting})
            last = {entry["key"]: place for place, (entry, _) in enumerate(waiting)}
            entries = [
                entry | {"document": place if last[entry["key"]] == place else None}
                for place, (entry, _) in enumerate(waiting)
            ]
            self._list["parts"].append({"file": name, "bytes": size, "entries": entries})
            passages = sum(len(prepared.stems) for _, prepared in waiting)
            self.added = replace(
                self.added, documents=self.added.documents + len(waiting), passages=self.added.passages + passages
            )
        if waiting or self.added.known:
            write_list(self.folder, self._list)
        if waiting:
            self._read()
            self._known = self._entries


def write_list(folder: Path, listed: dict[str, Any]) -> None:
    """Write the list of an index atomically."""
    write_whole({folder / LIST: json.dumps({"format": FORMAT, **listed}, ensure_ascii=False) + "\n"})
