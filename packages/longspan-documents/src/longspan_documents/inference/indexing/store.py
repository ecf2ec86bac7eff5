"""The files of an index: shards that never change, and a list of them that is written last.

``` index.json                  what the states depend on, and each shard with its size and BLAKE2 checksum
index.copy.json             a copy, in case the first is damaged shard-000001.safetensors    states (N, E), spans (N,
2), first rows of pieces, and the documents as JSON ```

A shard is written under a temporary name, flushed and renamed, and then added to the list. So after any interruption,
the list contains only complete shards, and files that it does not contain are not part of the index.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from longspan.characters import on_one_line
from longspan.errors import InputError, one_sentence
from longspan.files import whole_file, write_whole
from longspan.model_files import read_header, read_json
from longspan_documents.inference.indexing.checks import (
    AGAIN,
    IndexedDocument,
    check_listing,
    check_rows,
    documents_of,
)
from longspan_documents.inference.indexing.sources import digest_of
from longspan_documents.text.blocks import Document
from longspan_documents.text.passages import Passage

DTYPES = {"float16": torch.float16, "float32": torch.float32, "bfloat16": torch.bfloat16}
MANIFEST, COPY = "index.json", "index.copy.json"
FORMAT = 1


@dataclass(frozen=True)
class Piece:
    """Tokens of a passage that are read together.

    Attributes:
        states: `(W, E)` before the upper layers.
        spans: `(W, 2)` int32, characters of each token in the document; −1 for special tokens.
    """

    states: Tensor
    spans: Tensor


@dataclass(frozen=True)
class Entry:
    """A document of an index: its text and structure, its passages, and the pieces of each."""

    document: Document
    passages: tuple[Passage, ...]
    pieces: tuple[tuple[Piece, ...], ...]

    @property
    def digest(self) -> str:
        """The checksum of its text, which does not depend on its name."""
        return digest_of(self.document)


@dataclass
class Contents:
    """The fields of `index.json`.

    Attributes:
        made_by: what the states depend on, see `longspan_documents.inference.indexing.states.made_by`.
        shards: each with `file`, `bytes`, `checksum`, and `documents`, the digest and name of each.
    """

    made_by: dict[str, Any]
    shards: list[dict[str, Any]] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Write the copy, then the list itself, each atomically."""
        body = {"format": FORMAT, **asdict(self)}
        text = json.dumps({"checksum": _checksum_of(body), **body}, indent=1, ensure_ascii=False) + "\n"
        write_whole({folder / COPY: text, folder / MANIFEST: text})


def has_index(folder: Path) -> bool:
    """Whether a folder contains an index with a model, damaged or not."""
    return (folder / MANIFEST).exists() or (folder / COPY).exists()


def read_contents(folder: Path) -> tuple[Contents, str | None]:
    """Read the list of an index; returns it and, if the copy had to be used, a sentence on this.

    Raises:
        InputError: there is no list, both are damaged, or another version of Longspan wrote it.
    """
    if not has_index(folder):
        raise InputError(f"'{on_one_line(str(folder))}' has no {MANIFEST}; make an index with `longspan index`")
    problems = []
    for name in (MANIFEST, COPY):
        try:
            contents = _read_list(folder / name)
        except InputError as error:
            problems.append(str(error))
            continue
        note = f"{problems[0]}; its copy is used, and adding a document mends it" if problems else None
        return contents, note
    raise InputError(f"{problems[0]}, and so is its copy; {AGAIN}")


def _read_list(file: Path) -> Contents:
    """Read a list and validate it."""
    body = read_json(file)
    if body.pop("checksum", None) != _checksum_of(body):
        raise InputError(f"'{file}' is damaged (its checksum differs)")
    if body.pop("format", None) != FORMAT:
        raise InputError(f"'{file}' is of another version of Longspan")
    try:
        check_listing(body)
    except InputError as error:
        raise InputError(f"'{file}' is not as Longspan writes it ({error})") from error
    return Contents(**body)


def _checksum_of(body: dict[str, Any]) -> str:
    plain = json.dumps(body, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(plain, digest_size=16).hexdigest()


def checksum_of(file: Path) -> str:
    """Returns the BLAKE2b checksum of a file, 20 bytes in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=20)).hexdigest()


def write_shard(folder: Path, number: int, entries: Sequence[Entry], dtype: str) -> dict[str, Any]:
    """Write documents as one shard; returns its entry for the list."""
    name = f"shard-{number:06d}.safetensors"
    pieces = [piece for entry in entries for passage_pieces in entry.pieces for piece in passage_pieces]
    width = pieces[0].states.shape[1] if pieces else 0
    tensors = {
        "states": torch.cat([piece.states.to(DTYPES[dtype]) for piece in pieces] or [torch.zeros(0, width)]),
        "spans": torch.cat([piece.spans for piece in pieces] or [torch.zeros(0, 2, dtype=torch.int32)]),
        "firsts": torch.tensor([0, *(len(piece.states) for piece in pieces)]).cumsum(0),
        "documents": torch.frombuffer(bytearray(_encoded(entries)), dtype=torch.uint8),
    }
    with whole_file(folder / name) as part:
        save_file(tensors, part)
        size, checksum = part.stat().st_size, checksum_of(part)
    documents = [{"digest": entry.digest, "name": entry.document.name} for entry in entries]
    return {"file": name, "bytes": size, "checksum": checksum, "documents": documents}


class Shard:
    """An open shard: documents are loaded at once, states on access from memory-mapped pages.

    Attributes:
        documents: each with its passages and the indices of the pieces of each passage.

    Raises:
        InputError: the file is missing, truncated, damaged or invalid, or has another width than the model, if that is
            specified.
    """

    def __init__(self, folder: Path, listed: dict[str, Any], width: int | None = None) -> None:
        self.file = folder / listed["file"]
        if not self.file.is_file():
            raise InputError(f"'{self.file}' is missing")
        size = self.file.stat().st_size
        if size != listed["bytes"]:
            raise InputError(f"'{self.file}' is damaged ({size:,} bytes instead of {listed['bytes']:,})")
        if checksum_of(self.file) != listed["checksum"]:
            raise InputError(f"'{self.file}' is damaged (its checksum differs)")
        read_header(self.file)
        self._opened: Any = safe_open(self.file, "pt")
        try:
            with one_sentence("documents is no JSON"):
                self.documents = self._checked(listed, width)
        except InputError as error:
            raise InputError(f"'{self.file}' is not as Longspan writes it ({error})") from error

    def _checked(self, listed: dict[str, Any], width: int | None) -> list[IndexedDocument]:
        """Returns the documents, after checking that they agree with all tensors and with the list."""
        kinds: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        names = self._opened.keys()
        for name in names:  # no data is read yet
            part = self._opened.get_slice(name)
            kinds[name] = part[:0].dtype if part.get_shape() else torch.bool, tuple(part.get_shape())
        check_tensors(kinds, width)
        self._firsts: list[int] = self._opened.get_tensor("firsts").tolist()
        spans = self._opened.get_tensor("spans")
        check_rows(self._firsts, len(spans))
        plain = json.loads(bytes(self._opened.get_tensor("documents").numpy()), parse_constant=_refuse_constant)
        documents = documents_of(plain, len(self._firsts) - 1)
        check_spans(spans, self._firsts, documents)
        digests = [(document["digest"], document["name"]) for document in listed["documents"]]
        if digests != [(digest_of(document), document.name) for document, _, _ in documents]:
            raise InputError(f"its documents are not those that {MANIFEST} lists")
        return documents

    def piece(self, number: int) -> Piece:
        """Returns one piece, its states in float32; raises `InputError` if a state is NaN or infinite."""
        rows = slice(self._firsts[number], self._firsts[number + 1])
        states, spans = (self._opened.get_slice(name)[rows] for name in ("states", "spans"))
        if not bool(states.isfinite().all()):
            raise InputError(f"'{self.file}' holds NaN or infinity in states[{rows.start}:{rows.stop}]; {AGAIN}")
        return Piece(states.float(), spans)


def _refuse_constant(name: str) -> None:
    raise InputError(f"documents holds {name}")


def _encoded(entries: Sequence[Entry]) -> bytes:
    plain = []
    for entry in entries:
        document = entry.document
        passages = [
            asdict(passage) | {"by_lines": sorted(passage.by_lines), "pieces": len(pieces)}
            for passage, pieces in zip(entry.passages, entry.pieces, strict=True)
        ]
        fields = {"name": document.name, "title": document.title, "pages": document.pages, "text": document.text}
        plain.append(fields | {"passages": passages})
    return json.dumps(plain, ensure_ascii=False).encode("utf-8", "surrogatepass")


def check_tensors(tensors: dict[str, tuple[Any, tuple[int, ...]]], width: int | None) -> None:
    """Raise `InputError` unless a shard has the four tensors, specified by dtype and shape, with consistent sizes.

    `width` is E of the model, if it is known.
    """
    wanted = {"states": set(DTYPES.values()), "spans": {torch.int32}, "firsts": {torch.int64}}
    wanted |= {"documents": {torch.uint8}}
    if set(tensors) != set(wanted):
        raise InputError(f"it holds {', '.join(sorted(tensors)) or 'no tensor'} instead of {', '.join(sorted(wanted))}")
    sides = {"states": 2, "spans": 2, "firsts": 1, "documents": 1}
    for name, (kind, shape) in tensors.items():
        if kind not in wanted[name] or len(shape) != sides[name]:
            raise InputError(f"{name} is a tensor of {kind} and shape {shape}, as no index has it")
    states, spans = tensors["states"][1], tensors["spans"][1]
    if spans != (states[0], 2):
        raise InputError(f"spans has shape {spans} where states has {states[0]:,} rows")
    if width is not None and states[0] and states[1] != width:
        raise InputError(f"states has width {states[1]:,} where the model has {width:,}")
    if not tensors["firsts"][1][0]:
        raise InputError("firsts is empty")


def check_spans(spans: Tensor, firsts: list[int], indexed: list[IndexedDocument]) -> None:
    """Raise `InputError` unless every token `(N, 2)` is in the passage of its piece, or special: −1 and −1."""
    limits = torch.tensor(
        [
            (passage.start, passage.end)
            for _, passages, pieces in indexed
            for passage, passage_pieces in zip(passages, pieces, strict=True)
            for _ in passage_pieces
        ],
        dtype=torch.int64,
    ).reshape(-1, 2)
    lengths = torch.tensor(firsts).diff()
    first, last = limits.repeat_interleave(lengths, dim=0).unbind(1)
    start, end = spans.long().unbind(1)
    special = (start == -1) & (end == -1)
    inside = (first <= start) & (start < end) & (end <= last)
    if not bool((special | inside).all()):
        row = int((~(special | inside)).nonzero()[0])
        raise InputError(
            f"spans[{row}] goes from {int(start[row]):,} to {int(end[row]):,}, outside of its passage, which has "
            f"{int(first[row]):,} to {int(last[row]):,}"
        )
