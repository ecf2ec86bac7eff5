"""A part of a search index: documents, the words of their passages as postings, and the passages' vectors.

```
documents   uint8 (Z)     each document with its passages as JSON, one after another
places      int64 (D + 1) where each begins
owners      int32 (P)     the document of each passage
lengths     int32 (P)     stems of each passage
vectors     float16 (P, E)
terms       uint8         the V stems in order, one a line
firsts      int64 (V + 1) where the postings of each begin
rows        int32 (N)     the passages in which it stands;  counts int32 (N)  and how often
```

A part is memory-mapped. A query reads the postings of its words, the vectors, and the documents that are shown, but
never all texts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from longspan.errors import InputError, one_sentence
from longspan.files import whole_file
from longspan.model_files import read_header
from longspan_documents.inference.indexing.checks import AGAIN, documents_of
from longspan_documents.inference.ranking import rarity_of
from longspan_documents.text.blocks import Document
from longspan_documents.text.passages import Passage

K1, B = 1.5, 0.75
"""Parameters of BM25, as in bm25s."""
TENSORS = {
    "documents": "U8",
    "places": "I64",
    "owners": "I32",
    "lengths": "I32",
    "vectors": "F16",
    "terms": "U8",
    "firsts": "I64",
    "rows": "I32",
    "counts": "I32",
}
"""The tensors of a part, with their dtypes."""


@dataclass(frozen=True)
class Prepared:
    """A document that is ready to be written to a part.

    Attributes:
        digest: of its text.
        encoded: the document and its P passages, see `encoded`.
        stems: of each passage.
        vectors: of the passages, `(P, E)` float16; E may be 0.
    """

    digest: str
    encoded: bytes
    stems: Sequence[Sequence[str]]
    vectors: np.ndarray


def write_part(file: Path, documents: Sequence[Prepared]) -> int:
    """Write documents to one file atomically; returns its size in bytes."""
    from safetensors.numpy import save_file

    stems = [passage_stems for document in documents for passage_stems in document.stems]
    counts = [Counter(passage_stems) for passage_stems in stems]
    terms = sorted(set().union(*counts))
    numbers = {term: number for number, term in enumerate(terms)}
    entries = [
        (numbers[term], row, count) for row, stem_counts in enumerate(counts) for term, count in stem_counts.items()
    ]
    table = np.array(sorted(entries), dtype=np.int64).reshape(-1, 3)
    owners = np.repeat(np.arange(len(documents)), [len(document.stems) for document in documents])
    tensors = {
        "documents": np.frombuffer(b"".join(document.encoded for document in documents), np.uint8),
        "places": np.cumsum([0, *(len(document.encoded) for document in documents)], dtype=np.int64),
        "owners": owners.astype(np.int32),
        "lengths": np.array([len(passage_stems) for passage_stems in stems], dtype=np.int32),
        "vectors": np.concatenate([document.vectors for document in documents]),
        "terms": np.frombuffer("\n".join(terms).encode("utf-8", "surrogatepass"), np.uint8),
        "firsts": np.searchsorted(table[:, 0], np.arange(len(terms) + 1)).astype(np.int64),
        "rows": np.ascontiguousarray(table[:, 1], dtype=np.int32),
        "counts": np.ascontiguousarray(table[:, 2], dtype=np.int32),
    }
    with whole_file(file) as place:
        save_file(tensors, place)
        return place.stat().st_size


def encoded(document: Document, passages: Sequence[Passage]) -> bytes:
    """Serialise a document with its passages to JSON."""
    plain = [asdict(passage) | {"by_lines": sorted(passage.by_lines), "pieces": 0} for passage in passages]
    fields = {"name": document.name, "title": document.title, "pages": document.pages, "text": document.text}
    return json.dumps(fields | {"passages": plain}, ensure_ascii=False).encode("utf-8", "surrogatepass")


class Part:
    """An open part.

    Attributes:
        lengths: number of stems of each passage, `(P,)`.
        owners: the index of each passage's document, `(P,)`.
        starts: the first passage of each document, and P, `(D + 1,)`.

    Raises:
        InputError: the file is missing, has another size than listed, or is invalid.
    """

    def __init__(self, file: Path, size: int, width: int) -> None:
        from safetensors import safe_open

        if not file.is_file():
            raise InputError(f"'{file}' is missing")
        if file.stat().st_size != size:
            raise InputError(f"'{file}' is damaged ({file.stat().st_size:,} bytes instead of {size:,})")
        shapes = read_header(file)
        self.file = file
        self._opened: Any = safe_open(file, "numpy")
        sides = {name: len(shape) for name, shape in shapes.items()}
        if (
            sides != {name: 1 + (name == "vectors") for name in TENSORS}
            or {name: self._opened.get_slice(name).get_dtype() for name in TENSORS} != TENSORS
            or shapes["vectors"][1] != width
        ):
            raise InputError(f"'{file}' is not as Longspan writes it (its tensors are others)")
        self.lengths: np.ndarray = self._opened.get_tensor("lengths")
        self.owners: np.ndarray = self._opened.get_tensor("owners")
        self._places: np.ndarray = self._opened.get_tensor("places")
        self._firsts: np.ndarray = self._opened.get_tensor("firsts")
        self.starts = np.searchsorted(self.owners, np.arange(len(self._places)))
        ends = [_ends(self._places) == (0, *shapes["documents"]), _ends(self._firsts) == (0, *shapes["rows"])]
        rising = all(bool((np.diff(indices) >= 0).all()) for indices in (self._places, self._firsts, self.owners))
        same = len(self.owners) == len(self.lengths) == shapes["vectors"][0] and shapes["rows"] == shapes["counts"]
        owned = not len(self.owners) or 0 <= self.owners[0] <= self.owners[-1] < len(self._places) - 1
        if not (all(ends) and rising and same and owned and len(self._terms) + 1 == len(self._firsts)):
            raise InputError(f"'{file}' is not as Longspan writes it (its tensors do not agree)")

    @cached_property
    def _terms(self) -> dict[str, int]:
        with one_sentence(f"'{self.file}' is not as Longspan writes it"):
            text = bytes(self._opened.get_tensor("terms")).decode("utf-8", "surrogatepass")
        return {term: number for number, term in enumerate(text.split("\n"))} if text else {}

    def postings(self, stem: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the passages that contain a stem, in increasing order, and its count in each."""
        number = self._terms.get(stem)
        if number is None:
            return np.zeros(0, np.int32), np.zeros(0, np.int32)
        slices = slice(int(self._firsts[number]), int(self._firsts[number + 1]))
        rows, counts = (self._opened.get_slice(name)[slices] for name in ("rows", "counts"))
        if len(rows) and not 0 <= rows[0] <= rows[-1] < len(self.lengths):
            raise self._fault("its postings name other passages")
        return rows, counts

    @cached_property
    def vectors(self) -> np.ndarray:
        """The vectors of the passages, `(P, E)` float32; raises `InputError` if one is NaN or infinite."""
        vectors = self._opened.get_tensor("vectors").astype(np.float32)
        if not np.isfinite(vectors).all():
            raise self._fault("its vectors are no finite numbers")
        return vectors

    def of_documents(self, numbers: Sequence[int | None]) -> np.ndarray:
        """Returns which passages belong to the documents with these indices, `(P,)` bool; raises `InputError` if an
        index is out of range."""
        chosen = np.zeros(len(self.starts) - 1, dtype=bool)
        alive = [number for number in numbers if number is not None]
        if max(alive, default=0) >= len(chosen):
            raise InputError(
                f"'{self.file}' has {len(chosen):,} documents, and number {max(alive):,} of them is listed"
            )
        chosen[alive] = True
        return chosen[self.owners]

    def document(self, number: int) -> tuple[Document, tuple[Passage, ...]]:
        """Returns one document with its passages."""
        first, end = int(self._places[number]), int(self._places[number + 1])
        try:
            with one_sentence("documents is no JSON"):
                plain = json.loads(bytes(self._opened.get_slice("documents")[first:end]))
                (document, passages, _) = documents_of([plain], 0)[0]
        except InputError as error:
            raise self._fault(str(error)) from error
        if len(passages) != self.starts[number + 1] - self.starts[number]:
            raise self._fault("a document has other passages than it lists")
        return document, passages

    def _fault(self, reason: str) -> InputError:
        """Returns the error for a part that could be opened but not read."""
        return InputError(f"'{self.file}' is not as Longspan writes it ({reason}); {AGAIN}")


def _ends(numbers: np.ndarray) -> tuple[int, ...]:
    """Returns the first and the last of the numbers, or nothing if there are none."""
    return (int(numbers[0]), int(numbers[-1])) if len(numbers) else ()


def word_scores(parts: Sequence[Part], alive: np.ndarray, stems: Sequence[str]) -> tuple[np.ndarray, dict[str, float]]:
    """Compute BM25 of the P passages of all parts, `(P,)`, 0 if no stem occurs; and the rarity of each stem.

    Args:
        parts: in order, with P passages in all.
        alive: which passages are used, `(P,)`; at least one.
        stems: distinct stems of the question, without function words.
    """
    lengths = np.concatenate([part.lengths for part in parts])
    firsts = np.cumsum([0, *(len(part.lengths) for part in parts)])
    scores = np.zeros(len(alive))
    norms = K1 * (1 - B + B * lengths / max(1.0, float(lengths[alive].mean())))
    rarities: dict[str, float] = {}
    for stem in stems:
        found = [part.postings(stem) for part in parts]
        rows = np.concatenate([at + first for (at, _), first in zip(found, firsts[:-1], strict=True)])
        counts = np.concatenate([number for _, number in found])
        rows, counts = rows[alive[rows]], counts[alive[rows]]
        rarities[stem] = rarity_of(len(rows), int(alive.sum()))
        scores[rows] += rarities[stem] * counts / (counts + norms[rows])
    return scores, rarities
