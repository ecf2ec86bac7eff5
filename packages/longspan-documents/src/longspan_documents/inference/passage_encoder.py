"""The bundled encoder of passages: a second look at the passages that rank first.

It is all-MiniLM-L6-v2 in four bits (`bundled/passages/README.md`). It finds more answers that are put in other words
than a question is, and takes many times longer for a text than the bundled encoder of documents, so that it reads the
best passages alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from longspan_documents.inference.encoders import BUNDLED, Encoder
from longspan_documents.inference.ranking import Evidence, Ranking, Weights

FOLDER = BUNDLED.with_name("passages")
"""The folder of the encoder; its README.md is the model card."""


class PassageEncoder(Encoder):
    """Reads questions and passages each by itself, between two special tokens, up to its longest text."""

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """As `Encoder.embed`, with all threads, since its operations are large."""
        return self._embed(texts)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of texts, the special ones included, and of the longest their beginning."""
        longest = self.model.config.max_position_embeddings
        ids = self.tokenizer(texts, add_special_tokens=True)["input_ids"]
        return [one if len(one) <= longest else [*one[: longest - 1], one[-1]] for one in ids]


class SecondLook:
    """How near passages are to questions; what was read once is known.

    Args:
        encoder: what reads them.
        passages: all of them.
    """

    def __init__(self, encoder: PassageEncoder, passages: Sequence[str]) -> None:
        self._encoder, self._passages = encoder, passages
        self._vectors: dict[int, np.ndarray] = {}

    def cosines(self, question: str, numbers: Sequence[int]) -> np.ndarray:
        """Cosines `(N,)` float64 of a question and of the passages of these numbers."""
        new = [number for number in dict.fromkeys(numbers) if number not in self._vectors]
        if new:
            found = self._encoder.embed([self._passages[number] for number in new])
            self._vectors.update(zip(new, found, strict=True))
        # Alone, so that its vector does not depend, by a rounding, on what was read already.
        (asked,) = self._encoder.embed([question])
        return np.stack([self._vectors[number] for number in numbers]).astype(np.float64) @ asked

    def ranking(self, question: str, evidence: Evidence, first: Weights, second: Weights) -> Ranking:
        """What the weights `second` make of the evidence and of a look at the passages that are best by the weights
        `first`."""
        numbers = first.first(evidence)
        return second.ranking(evidence.read_again(numbers, self.cosines(question, numbers)))


@lru_cache(maxsize=2)
def passage_encoder(device: str | None = None) -> PassageEncoder:
    """The encoder that comes with the package, in float32; it is loaded once.

    Args:
        device: where it computes, as PyTorch names devices; None is the processor.

    Raises:
        InputError: its files are missing or damaged, or the device is not there.
    """
    return PassageEncoder.opened(FOLDER, device)
