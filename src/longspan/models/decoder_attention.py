"""The decoder's two attentions, causal over the output and full over the source, with their key-value caches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache, EncoderDecoderCache

from longspan.models.configuration import LongspanConfig
from longspan.ops import attend
from longspan.patterns import Full


class SourceCache(DynamicCache):
    """Keys and values of the source, kept once per document however many beams read them.

    Beam search only ever exchanges the beams of one document, and all of these share one source, so reordering or
    repeating the rows leaves the source as it is.
    """

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Nothing to do: beams never leave their document."""

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Nothing to do: the repeated rows read the same source."""


class DecoderAttention(nn.Module):
    """Multi-head dot-product attention of the decoder, with `query`, `key`, `value` and `output` projections."""

    def __init__(self, config: LongspanConfig, layer: int) -> None:
        super().__init__()
        width, heads = config.hidden_size, config.decoder_attention_heads
        assert heads is not None
        self.layer = layer
        self.heads = heads
        self.dropout = config.attention_dropout
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def split(self, hidden: Tensor) -> Tensor:
        """`(B, T, E)` → `(B, H, T, D)`."""
        return hidden.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    @property
    def dropout_prob(self) -> float:
        """Probability of dropping an attention weight now."""
        return self.dropout if self.training else 0.0


class CausalSelfAttention(DecoderAttention):
    """Each output token sees itself and the ones before it."""

    def forward(self, hidden: Tensor, visible: Tensor | None, cache: EncoderDecoderCache | None) -> Tensor:
        """`(B, T, E)` → `(B, T, E)`.

        Args:
            hidden: `(B, T, E)`.
            visible: `(1 or B, 1, T, S)` bool; `None` means plainly causal (T = S), or one query that sees all.
            cache: receives the new keys and values and gives back all of them.
        """
        query, key, value = self.split(self.query(hidden)), self.split(self.key(hidden)), self.split(self.value(hidden))
        if cache is not None:
            key, value = cache.self_attention_cache.update(key, value, self.layer)
        if visible is not None:  # a preallocated cache hands out places that are still empty
            key, value = key[:, :, : visible.shape[-1]], value[:, :, : visible.shape[-1]]
        causal = visible is None and query.shape[2] > 1
        context = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=visible, is_causal=causal, dropout_p=self.dropout_prob
        )
        return self.output(context.transpose(1, 2).flatten(2))


class CrossAttention(DecoderAttention):
    """Every output token sees every real source token."""

    def forward(
        self, hidden: Tensor, source: Tensor, source_mask: Tensor | None, cache: EncoderDecoderCache | None
    ) -> Tensor:
        """`(B·beams, T, E)` over `(B, S, E)` → `(B·beams, T, E)`.

        Consecutive decoder rows share a document; their queries are laid side by side on the query axis, so that the
        source is neither copied nor read once per beam.

        Args:
            hidden: `(B·beams, T, E)`.
            source: `(B, S, E)` encoder states; not read once the cache holds this layer.
            source_mask: `(B, S)` bool, or `None` when every token is real.
            cache: keeps the source's keys and values.
        """
        key, value = self._source(source, cache)
        rows, tokens, _ = hidden.shape
        beams = rows // max(key.shape[0], 1)
        query = self.split(self.query(hidden))
        folded = query.unflatten(0, (key.shape[0], beams)).transpose(1, 2).flatten(2, 3) if beams != 1 else query
        context = attend(folded, key, value, pattern=Full(), key_mask=source_mask, dropout_prob=self.dropout_prob)
        if beams != 1:
            context = context.unflatten(2, (beams, tokens)).transpose(1, 2).flatten(0, 1)
        return self.output(context.transpose(1, 2).flatten(2))

    def _source(self, source: Tensor, cache: EncoderDecoderCache | None) -> tuple[Tensor, Tensor]:
        """The source's `(B, H, S, D)` keys and values, computed once per generation."""
        if cache is None:
            return self.split(self.key(source)), self.split(self.value(source))
        if not isinstance(cache.cross_attention_cache, SourceCache):
            cache.cross_attention_cache = SourceCache()
        store = cache.cross_attention_cache
        if cache.is_updated.get(self.layer):
            held: Any = store.layers[self.layer]
            return held.keys, held.values
        # Contiguous, since every later step reads them.
        key, value = self.split(self.key(source)).contiguous(), self.split(self.value(source)).contiguous()
        cache.is_updated[self.layer] = True
        return store.update(key, value, self.layer)


def causal_mask(tokens: int, first: int, key_mask: Tensor | None, device: torch.device) -> Tensor:
    """Which of S = `first` + T keys each new output token sees, `(1 or B, 1, T, S)` bool.

    Args:
        tokens: T, new output tokens.
        first: number of earlier output tokens.
        key_mask: `(B, S)` bool, True = real, or `None`.
        device: of the result.
    """
    query = torch.arange(first, first + tokens, device=device)[:, None]
    key = torch.arange(first + tokens, device=device)
    if key_mask is None:
        return (key <= query)[None, None]
    # A padded token sees itself, so that its row, which nobody reads, is finite.
    return (key < query) & key_mask[:, None, None, :] | (key == query)
