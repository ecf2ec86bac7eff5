"""Encoders: a model and its tokenizer, which give unit vectors of loose texts, of a document and of its sentences.

`Encoder` holds a model that was trained to embed, as the bundled one was. `PooledEncoder` holds any other encoder,
published or ours, and pools the states of its tokens. What sentence-transformers publishes is read as they read it
(`longspan.checkpoints.pooling`), but never cut: a text goes through the model whole, and one that is longer than the
model reads is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from longspan.characters import mend
from longspan.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from longspan.checkpoints.pooling import Pooling
    from longspan.data.text.blocks import Document
    from longspan.data.text.reading import DocumentSentence

BATCH_TOKENS = 16_384
"""Tokens, padding included, of a batch of loose texts."""


def mean_vector(vectors: np.ndarray) -> np.ndarray:
    """The vector of a document from those of its sentences: `(N, D)` → `(D,)` of length 1, or 0 where there is none."""
    return of_length_one(vectors.sum(0))


def of_length_one(vectors: np.ndarray) -> np.ndarray:
    """Vectors `(…, D)` at length 1; those that are 0 stay so."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def batches_of(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of texts of like length, so many together that a batch has at most `BATCH_TOKENS`, or one text."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not batches or (len(batches[-1]) + 1) * lengths[index] > BATCH_TOKENS:
            batches.append([])
        batches[-1].append(index)
    return batches


def padded(encoded: Sequence[Sequence[int]], padding: int) -> tuple[Tensor, Tensor]:
    """Token ids as a batch `(B, T)` int64, and which of them are real `(B, T)` bool."""
    import torch

    longest = max(map(len, encoded))
    ids = torch.full((len(encoded), longest), padding)
    for row, tokens in zip(ids, encoded, strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    return ids, torch.arange(longest) < torch.tensor([[len(tokens)] for tokens in encoded])


class Encoder:
    """A model that was trained to embed, with its tokenizer; `load_encoder` of `longspan.inference.embed` opens one.

    Args:
        model: a `LongspanForSentenceEmbedding`, or the bundled network.
        tokenizer: the one that belongs to it.

    Attributes:
        dimensions: D, of the vectors.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.dimensions: int = model.projection.out_features

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors `(N, D)` of loose texts, each read by itself; blank ones are 0."""
        import torch

        from longspan.models.inputs import ModelInputs
        from longspan.tasks.tokenizers import encode_sentences

        encoded = encode_sentences([mend(text)[0] for text in texts], self.tokenizer)
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        for chosen in batches_of([len(ids) for ids in encoded]):
            ids, real = padded([encoded[index] for index in chosen], self.tokenizer.pad_token_id)
            with torch.inference_mode():
                inputs = ModelInputs(input_ids=ids, attention_mask=real)
                states = self.model.model.encoder.encode(inputs).states
                vectors[chosen] = self.model.embed(states, torch.where(real, 0, -1), 1)[0][:, 0].float().numpy()
        vectors[[not text.strip() for text in texts]] = 0
        return vectors

    def embed_document(self, sentences: Sequence[str], firsts: Sequence[int] = ()) -> np.ndarray:
        """Vectors `(N + P, D)` of a document's sentences, each read in its document, and behind them of its passages.

        Args:
            sentences: N, in order; there may be none.
            firsts: P rising indices of the sentences with which passages begin; each ends where the next begins.
        """
        return self.read_document(sentences, firsts)[0]

    def read(self, document: Document, sentences: Sequence[DocumentSentence]) -> tuple[np.ndarray, np.ndarray, int]:
        """The vector `(D,)` of a document, those of its sentences `(N, D)`, and how many tokens were read."""
        vectors, tokens = self.read_document([sentence.text for sentence in sentences])
        return mean_vector(vectors), vectors, tokens

    def read_document(self, sentences: Sequence[str], firsts: Sequence[int] = ()) -> tuple[np.ndarray, int]:
        """As `embed_document`, and how many tokens were read."""
        import torch

        from longspan.tasks.tokenizers import encode_sentences

        encoded = encode_sentences([mend(text)[0] for text in sentences], self.tokenizer)
        lengths = torch.tensor([len(ids) for ids in encoded], dtype=torch.long)
        tokens = torch.tensor([token for ids in encoded for token in ids], dtype=torch.long)
        sentence_ids = torch.arange(len(encoded)).repeat_interleave(lengths)
        owners = None
        if len(firsts):
            owners = torch.searchsorted(torch.tensor(firsts), torch.arange(len(encoded)), right=True) - 1
        return self.model.embed_document(tokens, sentence_ids, owners).float().numpy(), len(tokens)


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
        from longspan.checkpoints.pooling import Pooling
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
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        for chosen in batches_of([len(tokens) for tokens in encoded]):
            vectors[chosen] = self.pooled([encoded[index] for index in chosen])
        vectors[[not text.strip() for text in texts]] = 0
        return vectors

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
        from longspan.tasks.tokenizers import encode_sentences

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


BUNDLED = Path(__file__).parents[1] / "bundled" / "encoder"
"""The folder of the encoder that comes with the package; its README.md is the model card."""


@overload
def load_encoder(model: None = None) -> Encoder: ...
@overload
def load_encoder(model: str | Path | None) -> Encoder | PooledEncoder: ...
def load_encoder(model: str | Path | None = None) -> Encoder | PooledEncoder:
    """Load an encoder once for many texts; argument and errors as in `embed`. The latest ones are kept."""
    return _bundled() if model is None else _load(str(model))


@lru_cache(maxsize=1)
def _bundled() -> Encoder:
    from longspan.inference.bundled import open_bundled
    from longspan.models.heads.sentence_network import EmbeddingNetwork

    return Encoder(*open_bundled(BUNDLED, EmbeddingNetwork))


@lru_cache(maxsize=2)
def _load(source: str) -> Encoder | PooledEncoder:
    from longspan.checkpoints.loading import load_pair
    from longspan.checkpoints.pooling import pooling_of
    from longspan.models import LongspanForSentenceEmbedding
    from longspan.models.encoder import encoder_of

    model, tokenizer = load_pair(source)
    if isinstance(model, LongspanForSentenceEmbedding):
        return Encoder(model.eval(), tokenizer)
    encoder = encoder_of(model)
    if encoder is None:
        raise InputError(
            f"model {source!r} is a {type(model).__name__}, which writes text and does not embed; give an encoder, "
            "such as a BERT or a RoBERTa, lengthened or not"
        )
    return PooledEncoder(encoder.eval(), tokenizer, pooling_of(source))
