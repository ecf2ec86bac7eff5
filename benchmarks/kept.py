"""What is slow to make and depends on little: arrays that benchmarks keep under the ignored folder `runs/`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parents[1] / "runs" / "kept"


def kept(what: str, depends_on: Iterable[str | bytes], make: Callable[[], np.ndarray]) -> np.ndarray:
    """The array from disk where it was made before from the very same things, else made now."""
    file = FOLDER / what / f"{digest(depends_on)}.npy"
    if not file.is_file():
        found = make()
        file.parent.mkdir(parents=True, exist_ok=True)
        whole = file.with_suffix(f".{os.getpid()}.npy")
        np.save(whole, found)
        whole.rename(file)
    return np.load(file)


def digest(parts: Iterable[str | bytes]) -> str:
    """A name for these parts in this order."""
    found = hashlib.sha256()
    for part in parts:
        each = part if isinstance(part, bytes) else part.encode()
        found.update(f"{len(each)}:".encode() + each)
    return found.hexdigest()[:32]


class KeptEncoder:
    """An encoder of Longspan whose vectors are kept; those of another encoder have other names.

    Args:
        encoder: what `load_encoder` returned.
        folder: where it was loaded from.
    """

    def __init__(self, encoder: Any, folder: Path) -> None:
        self.encoder = encoder
        self.name = digest(file.read_bytes() for file in sorted(folder.glob("*.*")) if file.suffix != ".md")
        self.dimensions: int = encoder.dimensions

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """`(N, D)`, each text read by itself."""
        vectors = kept("loose", [self.name, *texts], lambda: self.encoder.embed(texts).astype(np.float16))
        return vectors.astype(np.float32)

    def read_document(self, sentences: Sequence[str]) -> tuple[np.ndarray, int]:
        """`(N, D)`, each sentence read in its document; the tokens are not counted."""

        def make() -> np.ndarray:
            return self.encoder.embed_document(sentences).astype(np.float16)

        return kept("document", [self.name, *sentences], make).astype(np.float32), 0
