"""The bundled passage encoder, which reranks the best passages.

It is all-MiniLM-L6-v2 in four bits (`bundled/passages/README.md`). It finds more answers that paraphrase the question
than the bundled document encoder, but takes many times longer per text, so it reads only the best passages.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from longspan_documents.inference.encoders import BUNDLED, Encoder
from longspan_documents.inference.ranking import Evidence, Ranking, Weights
from longspan_documents.inference.verbs import ANSWERABLE

FOLDER = BUNDLED.with_name("passages")
"""The folder of the encoder; its README.md is the model card."""


class PassageEncoder(Encoder):
    """Encodes questions and passages separately, between two special tokens, truncated to its maximum length."""

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Embed as `Encoder.embed`, but with all threads, since its operations are large."""
        return self._embed(texts)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize texts with special tokens, truncated to the maximum length."""
        longest = self.model.config.max_position_embeddings
        ids = self.tokenizer(texts, add_special_tokens=True)["input_ids"]
        return [tokens if len(tokens) <= longest else [*tokens[: longest - 1], tokens[-1]] for tokens in ids]


class SecondLook:
    """Cosines of passages to questions, with a cache of the passages' vectors.

    Args:
        encoder: the passage encoder.
        passages: all passages.
    """

    def __init__(self, encoder: PassageEncoder, passages: Sequence[str]) -> None:
        self._encoder, self._passages = encoder, passages
        self._vectors: dict[int, np.ndarray] = {}

    def cosines(self, question: str, numbers: Sequence[int]) -> np.ndarray:
        """Returns cosines `(N,)` float64 of a question and the passages with these indices."""
        new = [number for number in dict.fromkeys(numbers) if number not in self._vectors]
        if new:
            found = self._encoder.embed([self._passages[number] for number in new])
            self._vectors.update(zip(new, found, strict=True))
        # Embedded alone, so that rounding does not make its vector depend on what is cached.
        (asked,) = self._encoder.embed([question])
        return np.stack([self._vectors[number] for number in numbers]).astype(np.float64) @ asked

    def ranking(
        self, question: str, evidence: Evidence, first: Weights, second: Weights, answerable: float = ANSWERABLE
    ) -> Ranking:
        """Rank by the weights `second`, with cosines for the best passages by the weights `first`."""
        numbers = first.first(evidence)
        return second.ranking(evidence.read_again(numbers, self.cosines(question, numbers)), answerable)


@lru_cache(maxsize=2)
def passage_encoder(device: str | None = None) -> PassageEncoder:
    """Load the bundled passage encoder in float32; it is cached.

    Args:
        device: as PyTorch names devices; None is the CPU.

    Raises:
        InputError: its files are missing or damaged, or the device does not exist.
    """
    return PassageEncoder.opened(FOLDER, device)
