"""Vectors from any encoder, published or ours, lengthened or not: the states of its tokens, pooled.

What sentence-transformers publishes is read as they read it (`longspan.checkpoints.pooling`), but never cut: a text
goes through the model whole, and one that is longer than the model reads is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from longspan.characters import mend
from longspan.checkpoints.pooling import Pooling
from longspan.inference.vectors import batches_of, of_length_one, padded

if TYPE_CHECKING:
    from torch import Tensor

    from longspan.data.text.blocks import Document
    from longspan.data.text.reading import DocumentSentence


class PooledEncoder:
    """An encoder with its tokenizer, and how its states become one vector.

    Args:
        model: a `LongspanModel`.
        tokenizer: the one that belongs to it.
        pooling: how; vectors have length 1 in any case.

    Attributes:
        dimensions: D, of the vectors.
        max_tokens: of the longest text, special tokens included.
    """

    def __init__(self, model: Any, tokenizer: Any, pooling: Pooling | None = None) -> None:
        from longspan.tasks.language_modelling.masked_lm import around

        self.model = model
        self.tokenizer = tokenizer
        self.pooling = pooling or Pooling()
        self.before, self.after = around(tokenizer)
        self.dimensions: int = model.config.states_width
        self.max_tokens: int = model.encoder.embeddings.max_tokens

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors `(N, D)` of loose texts, each read by itself; blank ones are 0."""
        encoded = [[*self.before, *tokens, *self.after] for tokens in self._encode(texts)]
        found = np.zeros((len(texts), self.dimensions), np.float32)
        for chosen in batches_of([len(tokens) for tokens in encoded]):
            found[chosen] = self.pooled([encoded[index] for index in chosen])
        found[[not text.strip() for text in texts]] = 0
        return found

    def pooled(self, encoded: Sequence[Sequence[int]]) -> np.ndarray:
        """Vectors `(B, D)` of texts that are tokens already, special ones included."""
        states, real = self._states(encoded)
        return of_length_one(_pool(states, real, self.pooling.mode).numpy())

    def read(self, document: Document, sentences: Sequence[DocumentSentence]) -> tuple[np.ndarray, np.ndarray, int]:
        """The vector `(D,)` of a document that is read whole, headings included; `(N, D)` of its N sentences, each the
        mean of its tokens' states in the document; and how many tokens were read."""
        pieces = _pieces(document, sentences)
        encoded = self._encode([text if index == 0 else f" {text}" for index, (text, _) in enumerate(pieces)])
        tokens = [*self.before, *chain.from_iterable(encoded), *self.after]
        vectors = np.zeros((len(sentences), self.dimensions), np.float32)
        if not pieces:
            return np.zeros(self.dimensions, np.float32), vectors, 0
        states, real = self._states([tokens])
        start = len(self.before)
        for (_, sentence), ids in zip(pieces, encoded, strict=True):
            if sentence is not None:
                vectors[sentence] = of_length_one(states[0, start : start + len(ids)].mean(0).numpy())
            start += len(ids)
        return of_length_one(_pool(states, real, self.pooling.mode).numpy())[0], vectors, len(tokens)

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, without special tokens."""
        from longspan.tasks.summaries.extraction import encode_sentences

        mended = [mend(text)[0] for text in texts]
        return encode_sentences([text.lower() for text in mended] if self.pooling.lower else mended, self.tokenizer)

    def _states(self, encoded: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Last states `(B, T, D)` float32, and which tokens are real `(B, T)`."""
        import torch

        ids, real = padded(encoded, self.tokenizer.pad_token_id or 0)
        with torch.inference_mode():
            return self.model(input_ids=ids, attention_mask=real).last_hidden_state.float(), real


def _pool(states: Tensor, real: Tensor, mode: str) -> Tensor:
    """States `(B, T, D)` of which some are real `(B, T)` → `(B, D)`."""
    if mode == "cls":
        return states[:, 0]
    if mode == "max":
        return states.masked_fill(~real[..., None], float("-inf")).amax(1)
    return (states * real[..., None]).sum(1) / real.sum(1, keepdim=True)


def _pieces(document: Document, sentences: Sequence[DocumentSentence]) -> list[tuple[str, int | None]]:
    """What is read, in order: headings, and sentences with their indices."""
    headings = [
        (index, -1, block.text) for index, block in enumerate(document.blocks) if block.kind == "heading" and block.text
    ]
    told = [(sentence.block, index, sentence.text) for index, sentence in enumerate(sentences)]
    return [(text, None if index < 0 else index) for _, index, text in sorted([*headings, *told])]
