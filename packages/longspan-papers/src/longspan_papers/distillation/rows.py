"""Documents whose texts have a teacher's vectors: what `tools/bundled/teach.py` writes and distillation reads.

A folder holds shards of two files. `NAME.json` is a list of documents,

    {"source": "permissive", "split": "train", "parts": [["heading", ["Methods"]], ["text", ["We …", "Then …"]], …]}

where parts of the kinds in `BODY` are the document in its order and the others (title, abstract, query …) belong to it.
A document may have `"passages": [[0, 4], …]`: runs of texts of its body, as first and end, that were read as one text.
`NAME.npy` has one vector per text, and of each document one per passage behind them, in the order of the file, `(N, D)`
float16; 0 where the teacher was not asked.
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
        teacher_vectors: `(N, D)` float16, of length 1; 0 where the teacher was not asked.
        document: whether the texts are a document in its order; else they are loose.
        passages: P runs of these texts that were read as one text, each as first and end; they do not overlap.
        passage_vectors: `(P, D)`, of these.
    """

    texts: tuple[str, ...]
    teacher_vectors: np.ndarray
    document: bool
    passages: tuple[tuple[int, int], ...] = ()
    passage_vectors: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.float16))


def texts_of(document: dict[str, Any]) -> list[str]:
    """Every text of a document as it stands in a shard, those of its passages last: what the vectors belong to."""
    texts = [text for _, texts in document["parts"] for text in texts]
    body = [text for kind, texts in document["parts"] if kind in BODY for text in texts]
    return texts + [" ".join(body[first:end]) for first, end in document.get("passages", ())]


def read_taught(folder: Path, split: str) -> Iterator[TaughtTexts]:
    """For each document of the split its body, then its loose texts, as far as it has them.

    Raises:
        InputError: no folder with shards, or a shard whose two files do not fit.
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
    own, of_passages = vectors[: len(kinds)], vectors[len(kinds) :]
    body = tuple(text for text, taken in zip(texts, in_body, strict=True) if taken)
    if body:
        runs = tuple((first, end) for first, end in document.get("passages", ()))
        yield TaughtTexts(body, own[in_body], True, runs, of_passages)
    loose = tuple(text for text, taken in zip(texts, in_body, strict=True) if not taken)
    if loose:
        yield TaughtTexts(loose, own[~in_body], False)
