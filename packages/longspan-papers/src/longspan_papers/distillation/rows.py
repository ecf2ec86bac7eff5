"""Documents with a teacher's sentence vectors: the format written by `tools/bundled/teach.py`.

A folder holds shards of two files. `NAME.json` is a list of documents,

    {"source": "permissive", "split": "train", "parts": [["heading", ["Methods"]], ["text", ["We …", "Then …"]], …]}

where parts of the kinds in `BODY` are the document in order, and the others (title, abstract, query …) belong to it. A
document may have `"passages": [[0, 4], …]`: runs of texts of its body, as first and end, that were encoded as one text.
`NAME.npy` has, in the order of the file, one vector per text and then, for each document, one per passage, `(N, D)`
float16; 0 for texts that the teacher did not encode.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from longspan.errors import InputError

BODY = frozenset({"heading", "text", "turn"})


@dataclass(frozen=True, slots=True)
class TaughtTexts:
    """Texts with a teacher's vectors.

    Attributes:
        texts: N texts.
        teacher_vectors: `(N, D)` float16, of length 1; 0 for texts that the teacher did not encode.
        document: whether the texts are a document in order, rather than separate texts.
        passages: P non-overlapping runs of these texts that were encoded as one text, each as first and end.
        passage_vectors: `(P, D)`, of the passages.
    """

    texts: tuple[str, ...]
    teacher_vectors: np.ndarray
    document: bool
    passages: tuple[tuple[int, int], ...] = ()
    passage_vectors: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.float16))


def texts_of(document: dict[str, Any]) -> list[str]:
    """Returns every text of a document in the order of a shard, passages last; the vectors have this order."""
    texts = [text for _, texts in document["parts"] for text in texts]
    body = [text for kind, texts in document["parts"] if kind in BODY for text in texts]
    return texts + [" ".join(body[first:end]) for first, end in document.get("passages", ())]


def read_taught(folder: Path, split: str) -> Iterator[TaughtTexts]:
    """Yields per document of the split its body, then its separate texts, if it has them.

    Raises:
        InputError: there is no folder with shards, or the two files of a shard do not match.
    """
    shards = sorted(folder.glob("*.npy"))
    if not shards:
        raise InputError(f"{folder} has no shards of taught texts (NAME.json with NAME.npy); make them with teach.py")
    for shard in shards:
        vectors = np.load(shard, mmap_mode="r", allow_pickle=False)
        documents = json.loads(shard.with_suffix(".json").read_text(encoding="utf-8"))
        counts = [len(texts_of(document)) for document in documents]
        if vectors.ndim != 2 or len(vectors) != sum(counts):
            raise InputError(f"{shard} has vectors of shape {vectors.shape} for {sum(counts)} texts; make it again")
        first = 0
        for document, count in zip(documents, counts, strict=True):
            if document["split"] == split:
                yield from _document(document, vectors[first : first + count])
            first += count


def _document(document: dict[str, Any], vectors: np.ndarray) -> Iterator[TaughtTexts]:
    kinds = [kind for kind, texts in document["parts"] for _ in texts]
    in_body = np.array([kind in BODY for kind in kinds], dtype=bool)
    texts = texts_of(document)[: len(kinds)]
    text_vectors, passage_vectors = vectors[: len(kinds)], vectors[len(kinds) :]
    body = tuple(text for text, taken in zip(texts, in_body, strict=True) if taken)
    if body:
        runs = tuple((first, end) for first, end in document.get("passages", ()))
        yield TaughtTexts(body, text_vectors[in_body], True, runs, passage_vectors)
    loose = tuple(text for text, taken in zip(texts, in_body, strict=True) if not taken)
    if loose:
        yield TaughtTexts(loose, text_vectors[~in_body], False)
