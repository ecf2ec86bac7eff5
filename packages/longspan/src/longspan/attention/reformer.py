"""LSH attention: a query attends to the tokens in its bucket of random rotations; and local attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import lcm, prod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import Tensor

from longspan.attention.base import LayerState
from longspan.attention.config import Activations, AttentionConfig, AttentionCost, Lengthening, full_inputs
from longspan.attention.parts.hashed import HashedAttention, Vectors
from longspan.attention.parts.tokens import Tokens
from longspan.attention.support import Support, Unless
from longspan.errors import InputError
from longspan.ops.sorted.hashed import attend_hashed, attend_rings, filled, hashed_weights, new_rings, unit
from longspan.ops.sorted.hashed_units import Chunks
from longspan.ops.sorted.hashing import (
    MOST_BUCKETS,
    MOST_PER_HASH,
    even_share,
    published_factors,
    split,
)
from longspan.ops.sorted.sorted_chunks import attend_sorted, published_times
from longspan.settings import Count, Range, Seed, Whole

if TYPE_CHECKING:
    from longspan.attention.parts.state import RecurrentLayer

Factor = Annotated[int, Range(2, 65_536)]
"""The number of buckets of one hash."""


@dataclass(frozen=True, kw_only=True)
class ReformerConfig(AttentionConfig):
    """Tokens whose queries have similar directions are hashed to one bucket, in each of several rounds, and attend to
    the tokens of their bucket. A query is also the token's key, at length 1. A token attends to itself only if it can
    attend to no other.

    Attributes:
        chunk_tokens: tokens of a chunk, m.
        chunks_before: chunks that a query attends to before its own.
        chunks_after: chunks that it attends to after its own; none in the causal form of `chunks="bucket"`.
        rounds: number of hashes with different rotations; the keys of all rounds share one softmax.
        buckets: their number in a round, one or even; `None` computes it from the length, with `bucket_tokens`. With
            "published", a tuple has the even numbers of several hashes, whose product is the number of buckets.
        bucket_tokens: real tokens of the row per bucket, on average.
        causal_tokens: the length for which the causal form computes the number of buckets, since later tokens must not
            change it.
        chunks: "bucket" splits the tokens of every bucket into chunks, in the order of their positions, so that the
            result for a document is the same alone, padded or batched, and a later token moves no earlier one.
            "published" splits all tokens, sorted by bucket, in 2·T/m buckets rounded down to a power of two, T being
            the padded length; in its causal form the chunk of a token depends on later ones, which leaks, and there is
            no state.
        attend_across_buckets: with "published", whether a query also attends to tokens of other buckets in its chunks.
        correct_duplicates: whether a key that is visible in several rounds counts once, or once for each.
        scaled: whether scores are also divided by √D.
        seed: random seed of the rotations, which are saved with the weights; "published" draws as many as needed in
            every pass, the same as transformers with a `hash_seed`.
        resample: in training, draw new rotations from torch's generator in every forward pass.
        local: the local attention that alternates with the hashed one in published models: there are no hashes, all
            tokens are in one bucket, keys have a separate projection, scores are divided by √D, and a token attends to
            itself. The options of buckets, rounds and rotations have no effect.
        beside_tokens: with "published", the chunk of the model's other layers: its padded length is a multiple of both.
        hash_buckets: with "published" and `buckets=None`, the most buckets of one hash; more use two hashes.
        head_width: D, if it is not the model's width over the number of heads.
        bias: whether the projections have biases; the published ones have none.
    """

    mechanism: ClassVar[str] = "reformer"
    causal: ClassVar[bool] = True
    incremental: ClassVar[bool] = True
    cost: ClassVar[str] = "at most rounds·(chunks_before + 1 + chunks_after)·chunk_tokens"
    source: ClassVar[str] = "Kitaev et al. 2020, arXiv 2001.04451, section 2 and appendix A"
    support: ClassVar[Mapping[str, Support]] = {
        "globals": "what a token sees is decided by its bucket alone",
        "state": Unless("a later token moves earlier ones into other chunks", {"chunks": "bucket"}),
        "padding": Unless("there are as many buckets as the padded text has", {"chunks": "bucket"}),
    }

    chunk_tokens: Count = 64
    chunks_before: Whole = 1
    chunks_after: Whole = 1
    rounds: Annotated[int, Range(1, 64)] = 2
    buckets: Annotated[int, Range(1, MOST_BUCKETS)] | tuple[Factor, ...] | None = None
    bucket_tokens: Count = 64
    causal_tokens: Count = 4096
    chunks: Literal["bucket", "published"] = "bucket"
    attend_across_buckets: bool = True
    correct_duplicates: bool = True
    scaled: bool = False
    seed: Seed = 0
    resample: bool = False
    local: bool = False
    beside_tokens: Count | None = None
    hash_buckets: Factor = MOST_PER_HASH
    head_width: Count | None = None
    bias: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.buckets, list):  # as plain data, from JSON or YAML
            object.__setattr__(self, "buckets", tuple(self.buckets))
        super().__post_init__()
        factors = self.buckets if isinstance(self.buckets, tuple) else (self.buckets or 1,)
        if any(factor > 1 and factor % 2 for factor in factors):
            raise InputError(
                f"buckets={self.buckets} is odd, and half of them are the others turned round; give an even number"
            )
        if isinstance(self.buckets, tuple) and (not self.buckets or prod(self.buckets) > MOST_BUCKETS**2):
            raise InputError(f"buckets={self.buckets} names {prod(self.buckets)} buckets; give 1 to {MOST_BUCKETS**2}")
        if self.chunks == "bucket" and (isinstance(self.buckets, tuple) or self.beside_tokens is not None):
            name = "beside_tokens" if self.beside_tokens is not None else "buckets"
            raise InputError(
                f"{name}={getattr(self, name)} is a matter of the published form; set chunks='published', or give a "
                + ("whole number" if name == "buckets" else "None")
            )

    @property
    def idle(self) -> frozenset[str]:
        counted, published = {"bucket_tokens", "causal_tokens"}, {"attend_across_buckets", "hash_buckets"}
        unread = counted if self.chunks == "published" else published
        if self.beside_tokens is None:
            unread = unread | {"beside_tokens"}
        if self.buckets is not None:
            unread = unread | counted | {"hash_buckets"}
        hashing = {"rounds", "buckets", "correct_duplicates", "scaled", "seed", "resample"}
        return frozenset(unread | (hashing | counted | published if self.local else set()))

    @property
    def own_head_width(self) -> int | None:
        return self.head_width

    @property
    def hashes(self) -> int:
        """The number of rounds of hashing; 1 without hashing."""
        return 1 if self.local else self.rounds

    def padded(self, length: int) -> int:
        """Returns the number of tokens that the published form computes for a text of `length`."""
        size, other = self.chunk_tokens, self.beside_tokens or self.chunk_tokens
        return length if length <= min(size, other) else -(-length // lcm(size, other)) * lcm(size, other)

    def visible_chunks(self, causal: bool) -> int:
        """Returns the number of chunks that a query attends to, including its own."""
        after = 0 if causal and self.chunks == "bucket" else self.chunks_after
        return self.chunks_before + 1 + after

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        """An upper bound for full chunks; the last chunk of a bucket can have fewer tokens."""
        return min(float(length), self.hashes * self.visible_chunks(causal) * float(self.chunk_tokens))

    def activations(self) -> Activations:
        """There is no key if tokens are hashed: the query is the key."""
        return Activations() if self.local else Activations(projections=("query", "value", "output"))

    def costs(self, *, length: int, width: int, heads: int, causal: bool = False) -> AttentionCost:
        """Hashing multiplies every query by the directions of each round: half as many as there are buckets, or about
        their root if there are more than 128, and none for one bucket.
        """
        cost = super().costs(length=length, width=width, heads=heads, causal=causal)
        if self.local:
            return cost
        inner = width if self.head_width is None else heads * self.head_width
        if self.chunks == "published":
            columns = sum(self.factors(length)) // 2
        else:
            most = self.count_buckets(length, causal)
            first, second = (int(factor) for factor in split(torch.tensor(most)))
            columns = most // 2 if most <= MOST_PER_HASH else (first + second) // 2
        return replace(cost, mixing=cost.mixing + self.rounds * inner * columns * length)

    def factors(self, length: int) -> tuple[int, ...]:
        """Returns the buckets of each hash in the published form for a text of `length` tokens; empty for
        a single bucket.
        """
        padded = self.padded(length)
        if self.local or self.buckets == 1 or padded <= self.chunk_tokens:
            return ()
        if self.buckets is None:
            return published_factors(padded, self.chunk_tokens, self.hash_buckets)
        if isinstance(self.buckets, tuple):
            return self.buckets
        return tuple(int(factor) for factor in split(torch.tensor(self.buckets)) if factor > 1)

    def count_buckets(self, length: int, causal: bool) -> int:
        """Returns the number of buckets of one round of hashing for a text of `length` tokens."""
        if self.chunks == "published":
            return prod(self.factors(length))
        if self.local or isinstance(self.buckets, int):
            return self.buckets if isinstance(self.buckets, int) and not self.local else 1
        return int(even_share(torch.tensor(self.causal_tokens if causal else length), self.bucket_tokens))

    def depends_on(self, needed: Tensor, *, is_global: Tensor | None = None, causal: bool = False) -> Tensor:
        # An upper bound: which tokens share a bucket depends on the states.
        return full_inputs(needed, causal=causal and self.chunks == "bucket")

    def lengthening(self, tokens: int = 1) -> Lengthening:
        if self.chunks == "published":
            covers = tokens <= 1 or self.padded(tokens) <= self.chunk_tokens
        else:
            single_bucket = self.local or self.buckets == 1 or (self.buckets is None and tokens <= self.bucket_tokens)
            covers = tokens <= 1 or (single_bucket and tokens <= self.chunk_tokens)
        sizes = {name: max(getattr(self, name), tokens) for name in ("chunk_tokens", "bucket_tokens")}
        wide = replace(self, **sizes, buckets=None if self.buckets is None else 1, beside_tokens=None)
        return replace(super().lengthening(tokens), covers=covers, widened=self if covers else wide)

    def build(self, *, width: int, heads: int, causal: bool = False) -> ReformerAttention:
        return ReformerAttention(self, width=width, heads=heads, causal=causal)


class ReformerAttention(HashedAttention):
    """The module of `ReformerConfig`."""

    config: ReformerConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    state_kind = "sums"  # the last tokens of every bucket

    def __init__(self, config: ReformerConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal)
        self.chunks = Chunks(
            size=config.chunk_tokens,
            before=config.chunks_before,
            after=config.visible_chunks(causal) - 1 - config.chunks_before,
            causal=causal,
            scale=self.scale if config.scaled or config.local else 1.0,
            once=config.correct_duplicates and not config.local,
            shared=not config.local,
        )

    def context(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        length, vectors = hidden.shape[1], self.vectors(hidden, tokens)
        if state is not None:
            from longspan.attention.parts.state import recurrent

            return self.merge_heads(self._continue(vectors, recurrent(state, "buckets")))
        chunks, single_chunk = self._chunks(length)
        options = {"dropout_prob": self.dropout_prob, "key": vectors.key}
        if self.config.chunks == "bucket" or single_chunk:
            return self.merge_heads(
                attend_hashed(vectors.query, vectors.value, vectors.ids, chunks, most=vectors.most, **options)
            )
        vectors, across = vectors.padded(self.config.padded(length)), self.config.attend_across_buckets
        options["key"] = vectors.key
        context = attend_sorted(vectors.query, vectors.value, vectors.ids, chunks, across=across, **options)
        return self.merge_heads(context[:, :, :length])

    def context_weights(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        length, vectors = hidden.shape[1], self.vectors(hidden, tokens)
        chunks, single_chunk = self._chunks(length)
        times = None
        if self.config.chunks == "published" and not single_chunk:
            vectors = vectors.padded(self.config.padded(length))
            times = published_times(vectors.ids, chunks, across=self.config.attend_across_buckets)
        return hashed_weights(vectors.query, vectors.ids, chunks, times, vectors.key)[:, :, :length, :length]

    def _chunks(self, length: int) -> tuple[Chunks, bool]:
        """Returns the chunks, and whether there is only one, as published for a text that is no longer than a chunk."""
        if self.config.chunks == "bucket" or self.config.padded(length) > self.config.chunk_tokens:
            return self.chunks, False
        return replace(self.chunks, size=max(length, 1), before=0, after=0), True

    def _continue(self, vectors: Vectors, state: RecurrentLayer) -> Tensor:
        """Computes attention of tokens that continue a sequence; the first ones are computed as without a state."""
        (query, key, value, ids, most), rings = vectors, state.tensors
        if not rings:
            context = attend_hashed(query, value, ids, self.chunks, most=most, dropout_prob=self.dropout_prob, key=key)
            rings = new_rings(query, value, self.config.hashes, most, self.chunks)
            rings = filled(rings, unit(query) if key is None else key, value, ids, self.chunks)
        else:
            context, rings = attend_rings(query, value, ids, self.chunks, rings, self.dropout_prob, key)
        state.advance(query.shape[2], **rings)
        return context
