"""Documents whose texts have a teacher's vectors: what `recipes/teach.py` writes and distillation reads.

A folder holds shards of two files. `NAME.json` is a list of documents,

    {"source": "permissive", "split": "train", "parts": [["heading", ["Methods"]], ["text", ["We …", "Then …"]], …]}

where parts of the kinds in `BODY` are the document in its order and the others (title, abstract, query …) belong to it.
`NAME.npy` has one vector per text, in the order of the file, `(N, D)` float16.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from longspan.errors import InputError

BODY = frozenset({"heading", "text", "turn"})


@dataclass(frozen=True, slots=True)
class TaughtTexts:
    """Texts with a teacher's vectors.

    Attributes:
        texts: N texts.
        vectors: `(N, D)` float16, of length 1.
        document: whether the texts are a document in its order; else they are loose.
    """

    texts: tuple[str, ...]
    vectors: np.ndarray
    document: bool


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
        count = sum(len(texts) for document in documents for _, texts in document["parts"])
        if vectors.ndim != 2 or len(vectors) != count:
            raise InputError(f"{shard} has vectors of shape {vectors.shape} for {count} texts; make the shard again")
        first = 0
        for document in documents:
            last = first + sum(len(texts) for _, texts in document["parts"])
            if document["split"] == split:
                yield from _document(document["parts"], vectors[first:last])
            first = last


def _document(parts: list[tuple[str, list[str]]], vectors: np.ndarray) -> Iterator[TaughtTexts]:
    in_body = np.array([kind in BODY for kind, texts in parts for _ in texts], dtype=bool)
    texts = [text for _, texts in parts for text in texts]
    for document, chosen in ((True, in_body), (False, ~in_body)):
        if chosen.any():
            kept = tuple(text for text, taken in zip(texts, chosen, strict=True) if taken)
            yield TaughtTexts(kept, vectors[chosen], document)
