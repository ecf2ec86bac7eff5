"""Text corpora of any size as a stream of documents: files, folders, patterns, Hugging Face data sets.

A `Corpus` is only a description; each iteration reads the files again, in pieces, so that neither a corpus nor a very
long document is in memory as a whole::

    corpus = Corpus(source="books/*.txt.xz")
    for text in corpus.texts(): ...                     # whole documents, for a tokenizer
    for piece, is_last in corpus.pieces(): ...          # documents in pieces of bounded length, for tokenising

Sources: a `.txt` file (or any other name: read as text), `.jsonl`, `.csv`, `.tsv`, `.parquet`, all but the last plain
or with `.gz` or `.xz`; a directory of these, or a pattern such as `shards/*.jsonl.gz`; a folder written by
`Dataset.save_to_disk`; a data set of the Hub as `hf:NAME` or `hf:NAME@CONFIGURATION`, streamed; a folder of
LONGSPAN_DATA; `enwik8` and `text8` as published, plain or zipped.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from longspan.data.corpus import files as corpus_files
from longspan.data.corpus.files import part_texts, published_file
from longspan.data.documents import DATA_SETS, made_up_documents
from longspan.data.fields import Skipped, check_on_error
from longspan.data.jsonl import check_regular
from longspan.data.sources import Kind, find_source, rows_without_files
from longspan.data.tables import RECORDS
from longspan.errors import InputError

logger = logging.getLogger(__name__)

HUB = "hf:"
PIECE = 100_000
"""Maximum characters per piece of a document."""
TEXT_UNITS = ("file", "block", "line")
TEXT_SPLITS = ("file", "position")

SUFFIXES = ("txt", "text", *RECORDS)
_SUFFIX = re.compile(rf"\.({'|'.join(SUFFIXES)})(\.gz|\.xz)?$", re.IGNORECASE)

CORPORA: Kind[str] = Kind(
    row=str,
    named=DATA_SETS,
    made_up=lambda count, seed: [" ".join(pieces) for pieces in made_up_documents(count, seed)],
    suffixes=SUFFIXES,
    deep=True,
    is_one=corpus_files.is_saved,
    hint=f"for a data set of the Hugging Face Hub write {HUB}NAME",
)
"""Sources of documents."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A source of documents.

    Attributes:
        source: see the module.
        split: the files of a directory, or the part of a data set, if it has splits.
        limit: maximum number of documents.
        text_field: the text field of JSON, Parquet and Hugging Face records; None detects it.
        text_unit: the unit of a document in a text file: the whole "file", a "block" between blank lines, or a "line".
        text_split: "file" uses the files of a split, or the published byte ranges of enwik8 and text8; "position" cuts
            every text file in the same proportions, see `longspan.data.corpus.files`.
        on_error: "skip" skips corrupt records and logs their number; "raise" stops at the first.
    """

    source: str
    split: str = "train"
    limit: int | None = None
    text_field: str | None = None
    text_unit: str = "file"
    text_split: str = "file"
    on_error: str = "raise"

    def __post_init__(self) -> None:
        """Finds the source immediately, so that mistakes are reported before anything is read."""
        check_on_error(self.on_error)
        if self.text_unit not in TEXT_UNITS:
            raise InputError(f"text_unit={self.text_unit!r} is unknown; choose one of {', '.join(TEXT_UNITS)}")
        if self.text_split not in TEXT_SPLITS:
            raise InputError(f"text_split={self.text_split!r} is unknown; choose one of {', '.join(TEXT_SPLITS)}")
        if self.text_split == "position" and self.text_unit != "file":
            raise InputError(
                f"text_unit={self.text_unit!r} cuts a text into documents, but text_split='position' into parts; leave "
                "one of them out"
            )
        if self.limit is not None and self.limit < 0:
            raise InputError(f"limit={self.limit} is negative; give a number of documents, or None for all of them")
        if not self.source.startswith(HUB):
            self.files()

    def files(self) -> list[Path]:
        """Returns the files, or the folder of a saved Hugging Face data set, in reading order."""
        published = published_file(self.source)
        return list(find_source(self.source, self.split, CORPORA).files) if published is None else [published]

    def texts(self) -> Iterator[str]:
        """Yields whole documents that are not blank."""
        parts: list[str] = []
        for piece, is_last in self.pieces():
            parts.append(piece)
            if is_last:
                yield "".join(parts)
                parts = []

    def pieces(self) -> Iterator[tuple[str, bool]]:
        """Yields documents that are not blank in pieces of at most `PIECE` characters, with whether the piece ends a
        document.

        Pieces end before white space, where byte-level tokenizers split anyway.
        """
        return chain_documents(islice(self._documents(), self.limit))

    def _documents(self) -> Iterator[Iterator[str]]:
        """Yields each document as a stream of texts of any length."""
        if self.source.startswith(HUB):
            name, _, configuration = self.source.removeprefix(HUB).partition("@")
            skipped = Skipped(self.source, self.on_error)
            documents = corpus_files.hub_documents(name, configuration or None, self.split, self.text_field, skipped)
            yield from (iter((text,)) for text in documents)
            skipped.report()
            return
        if (published := published_file(self.source)) is not None:
            yield part_texts(published, self.split, any_size=self.text_split == "position")
            return
        source = find_source(self.source, self.split, CORPORA)
        loose = rows_without_files(source, self.split, CORPORA, self.limit)
        yield from (iter((text,)) for text in loose)
        for path in source.files:
            ending = _SUFFIX.search(path.name)
            suffix = ending[1].lower() if ending else "txt"
            skipped = Skipped(str(path), self.on_error)
            if path.is_dir():
                documents = corpus_files.disk_documents(path, self.split, self.text_field, skipped)
            elif suffix in ("txt", "text") and self.text_split == "position":
                yield part_texts(path, self.split, any_size=True)
                continue
            elif suffix in ("txt", "text"):
                yield from corpus_files.text_documents(path, self.text_unit)
                continue
            else:
                read = corpus_files.parquet_documents if suffix == "parquet" else corpus_files.json_documents
                documents = read(path, self.text_field, skipped)
            yield from (iter((text,)) for text in documents)
            skipped.report()

    def fingerprint(self) -> list[object]:
        """Returns data that change with the documents: options, and each file's name, size, beginning and end."""
        options: list[object] = [self.split, self.limit, self.text_field, self.text_unit, self.on_error]
        options += [self.text_split] if self.text_split != "file" else []
        if self.source.startswith(HUB):
            return [self.source, *options]
        parts: list[object] = []
        for path in self.files():
            inside = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
            parts += [[file.name, file.stat().st_size, _ends(file)] for file in inside]
        return [*options, *parts]


def chain_documents(documents: Iterator[Iterator[str]]) -> Iterator[tuple[str, bool]]:
    """Cuts documents into pieces, skipping blank documents."""
    for document in documents:
        rest, begun = "", False
        for text in document:
            rest, start = rest + text, 0
            while len(rest) - start > PIECE:
                place = _cut(rest, start)
                piece, start = rest[start:place], place
                if begun or piece.strip():
                    begun = True
                    yield piece, False
            rest = rest[start:]
        if begun or rest.strip():
            yield rest, True


def _cut(text: str, start: int) -> int:
    """Returns a position in the second half of the `PIECE` characters from `start`, before white space if possible."""
    for mark in ("\n", " "):
        place = text.rfind(mark, start + PIECE // 2, start + PIECE)
        if place > 0:
            return place
    return start + PIECE


def _ends(path: Path) -> str:
    check_regular(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        digest = hashlib.blake2b(file.read(1 << 16), digest_size=16)
        file.seek(max(0, size - (1 << 16)))
        digest.update(file.read())
    return digest.hexdigest()
