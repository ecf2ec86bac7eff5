"""Embedding sentences as plain PyTorch: weighted sums of their tokens, and a document of any length in pieces."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from longspan.models.fields import ModelFields
from longspan.models.heads.sentence_network import sums_and_counts
from longspan.models.heads.specs import SentenceEmbedding
from longspan.models.network import EncoderNetwork
from longspan.models.segments import sums_by_sentence


class EmbedsSentences(nn.Module):
    """What every sentence embedder has: an encoder below, a weight for each token, and a projection."""

    model: Any
    weight: nn.Linear
    projection: nn.Linear

    def add_layers(self, config: Any) -> None:
        """Make the layers above the encoder."""
        options = config.head_options(SentenceEmbedding)
        self.weight = nn.Linear(config.states_width, 1)
        self.projection = nn.Linear(config.states_width, options.dimensions, bias=False)

    def weighted(self, hidden: Tensor) -> Tensor:
        """Each token's state times how much it counts, `(…, E)` → `(…, E)`: "the" says less than "photosynthesis"."""
        return hidden * functional.softplus(self.weight(hidden))

    def embed(
        self,
        hidden: Tensor,
        sentence_ids: Tensor,
        sentences: int,
        passage_ids: Tensor | None = None,
        passages: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """`(B, T, E)` states, `(B, T)` indices → vectors of length 1 `(B, N + P, D)`, and which exist, `(B, N + P)`.

        P passages stand behind the N sentences. `passage_ids` `(B, N)` says to which of them each sentence belongs, −1
        = none.
        """
        sums, counts = sums_and_counts(self.weighted(hidden), sentence_ids, sentences)
        exists = counts > 0
        if passage_ids is not None:
            # A passage's tokens are those of its sentences, so a document is read once for both.
            together, counts = sums_and_counts(sums, passage_ids.masked_fill(~exists, -1), passages)
            sums, exists = torch.cat([sums, together], 1), torch.cat([exists, counts > 0], 1)
        return self.finish_vectors(sums.to(hidden.dtype)), exists

    def finish_vectors(self, sums: Tensor) -> Tensor:
        """Weighted sums of states `(…, E)` → vectors of length 1 `(…, D)`; 0 stays 0."""
        return functional.normalize(self.projection(sums).float(), dim=-1)

    @torch.inference_mode()
    def embed_document(self, input_ids: Tensor, sentence_ids: Tensor, passage_ids: Tensor | None = None) -> Tensor:
        """Vectors `(N + P, D)` of one document of any length, as `forward` gives them, in the memory of a piece of it.

        Args:
            input_ids: `(T,)` int64, all real.
            sentence_ids: `(T,)` int64, rising from 0 to N − 1; every sentence has a token.
            passage_ids: `(N,)` int64 up to P − 1, see `embed`.
        """
        sums = sums_by_sentence(self.model.encoder, input_ids, sentence_ids, self.weighted)
        if passage_ids is not None and len(passage_ids):
            together, _ = sums_and_counts(sums[None], passage_ids[None], int(passage_ids.max()) + 1)
            sums = torch.cat([sums, together[0]])
        return self.finish_vectors(sums.to(self.projection.weight.dtype))


class EmbeddingNetwork(EmbedsSentences):
    """`LongspanForSentenceEmbedding` without transformers, with the same weights, for embedding whole documents."""

    def __init__(self, config: ModelFields) -> None:
        super().__init__()
        self.config = config
        self.model = nn.ModuleDict({"encoder": EncoderNetwork(config)})
        self.add_layers(config)
