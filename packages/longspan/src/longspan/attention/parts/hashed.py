"""Projections and buckets of LSH attention: shared or separate keys, and buckets of random rotations."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.attention.base import ProjectedAttention, input_dtype
from longspan.attention.parts.tokens import Tokens
from longspan.ops.attend.reference import full_precision
from longspan.ops.sorted.hashing import (
    MOST_PER_HASH,
    NOWHERE,
    buckets_of,
    draw_rotations,
    even_share,
    most_buckets,
    published_buckets,
    seeded_normals,
    split,
)


class Vectors(NamedTuple):
    """Projected tokens of a layer: `(B, H, T, D)` each, `key` `None` if queries are also the keys, the buckets `(B, H,
    R, T)`, and an upper bound of their number.
    """

    query: Tensor
    key: Tensor | None
    value: Tensor
    ids: Tensor
    most: int

    def padded(self, length: int) -> Vectors:
        """Pads the tokens to `length` with zeros in bucket −1."""
        more = length - self.query.shape[2]
        query, key, value = (None if tensor is None else F.pad(tensor, (0, 0, 0, more)) for tensor in self[:3])
        assert query is not None
        assert value is not None
        return Vectors(query, key, value, F.pad(self.ids, (0, more), value=NOWHERE), self.most)


class HashedAttention(ProjectedAttention):
    """Projections and buckets; `config` is that of the mechanism `reformer`, which documents the options."""

    config: Any
    rotations: Tensor | None

    def __init__(self, config: Any, *, width: int, heads: int, causal: bool) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal, bias=config.bias)
        if not config.local:
            del self.key
        drawn = config.local or config.chunks == "published"
        shape = (heads, config.rounds, 2, self.head_width, MOST_PER_HASH // 2)
        self.register_buffer("rotations", None if drawn else torch.empty(shape))
        self.init_extra_weights()

    @torch.no_grad()
    def init_extra_weights(self, std: float = 0.02) -> None:
        """Draws the rotations `(H, R, 2, D, 64)` from the configuration's seed, unless they were loaded."""
        if self.rotations is not None and not getattr(self.rotations, "_is_hf_initialized", False):
            generator = torch.Generator().manual_seed(self.config.seed)
            self.rotations.copy_(draw_rotations(self.heads, self.config.rounds, self.head_width, generator))

    def vectors(self, hidden: Tensor, tokens: Tokens) -> Vectors:
        """Returns queries, keys, values and buckets.

        Autocast would round the queries, which would change buckets: they are computed of queries that are not rounded,
        which need no gradient and are not kept.
        """
        mask = tokens.last_mask(hidden.shape[1])
        if self.config.local:
            query, key, value = self.project(hidden)
            return Vectors(query, key, value, *self._buckets(query, mask))
        value, dtype = self.heads_of(self.value, hidden), input_dtype(self.query)
        rounded = value.dtype != dtype  # by autocast
        with full_precision(hidden), torch.set_grad_enabled(torch.is_grad_enabled() and not rounded):
            query = self.heads_of(self.query, hidden.to(dtype))
        buckets = self._buckets(query, mask)
        return Vectors(self.heads_of(self.query, hidden) if rounded else query, None, value, *buckets)

    def _buckets(self, query: Tensor, mask: Tensor | None) -> tuple[Tensor, int]:
        """Returns the buckets `(B, H, R, T)` of `(B, H, T, D)` queries in every round, and an upper bound
        of their number.
        """
        config, (batch, heads, length) = self.config, query.shape[:3]
        if config.chunks == "published" or config.local:
            factors = config.factors(length) if config.chunks == "published" else ()
            if factors:
                return published_buckets(query, self._drawn(query, factors), factors, mask), prod(factors)
            ids = torch.zeros(batch, heads, config.hashes, length, dtype=torch.int64, device=query.device)
            return ids if mask is None else ids.masked_fill(~mask[:, None, None, :], NOWHERE), 1
        # a compiled graph does not know the length
        known = query.device if torch.compiler.is_compiling() else torch.device("cpu")
        if config.buckets is not None or self.causal:
            number = config.count_buckets(length, self.causal)
            count = torch.full((1,), number, device=known)
            first, second = split(torch.tensor(number))
            most = int(first * second)
        else:
            real = torch.full((1,), length, device=known) if mask is None else mask.sum(1)
            count = even_share(real, config.bucket_tokens)
            halves = (length + 2 * config.bucket_tokens - 1) // (2 * config.bucket_tokens)
            most = most_buckets(2 * halves, not torch.compiler.is_compiling())
        rotations = self.rotations
        assert rotations is not None
        if config.resample and self.training:
            rotations = torch.randn_like(rotations)
        return buckets_of(query, rotations, count, most, mask), most

    def _drawn(self, query: Tensor, factors: tuple[int, ...]) -> Tensor:
        """Returns rotations `(H, D, R, C)` of the published form, in the dtype of the queries, as
        transformers draws them.
        """
        shape = (self.heads, self.head_width, self.config.rounds, sum(factors) // 2)
        if self.config.resample and self.training:
            return torch.randn(shape, device=query.device, dtype=query.dtype)
        return seeded_normals(query, self.config.seed, shape)
