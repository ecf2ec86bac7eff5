"""LSH attention: a query sees the tokens that random rotations put into its bucket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

import torch
from torch import Tensor

from longspan.attention.base import AttentionConfig, State
from longspan.attention.parts.costs import AttentionCost
from longspan.attention.parts.projected import ProjectedAttention
from longspan.attention.parts.tokens import Tokens
from longspan.errors import InputError
from longspan.ops.hashed import attend_hashed, hashed_weights
from longspan.ops.hashed_steps import attend_rings, filled, new_rings
from longspan.ops.hashed_units import Chunks
from longspan.ops.hashing import (
    MOST_BUCKETS,
    MOST_PER_HASH,
    buckets_of,
    draw_rotations,
    even_share,
    most_buckets,
    split,
)
from longspan.ops.reference import full_precision
from longspan.ops.sorted_chunks import attend_sorted, published_times
from longspan.settings import Count, Range, Seed, Whole

if TYPE_CHECKING:
    from longspan.attention.parts.state import RecurrentLayer


@dataclass(frozen=True, kw_only=True)
class ReformerConfig(AttentionConfig):
    """Tokens whose queries point in similar directions fall into one bucket, in each of several rounds of hashing, and
    attend to those of their bucket. A query is also the token's key, at length 1. No token attends to itself unless it
    sees no other.

    Attributes:
        chunk_tokens: tokens of a chunk, m.
        chunks_before: chunks that a query sees before its own.
        chunks_after: chunks that it sees after its own; none in the causal form of `chunks="bucket"`.
        rounds: hashes, each with other rotations; what is seen in any of them is one softmax.
        buckets: their number in a round, one or even; `None` counts them from the length, by `bucket_tokens`.
        bucket_tokens: real tokens of the row for each bucket, on average.
        causal_tokens: the length that the causal form counts buckets for, since later tokens may not change their
            number.
        chunks: "bucket" cuts the tokens of every bucket into chunks, in the order of their positions, so that a
            document gives the same alone, padded and in company, and a later token moves no earlier one. "published"
            cuts all tokens, sorted by bucket, in 2·T/m buckets, T being the padded length; in its causal form the chunk
            of a token depends on later ones, which leaks, and there is no state.
        attend_across_buckets: with "published", a query also sees tokens of other buckets in its chunks.
        correct_duplicates: a key that is seen in several rounds counts once, and else once for each.
        scaled: scores are divided by √D besides.
        seed: of the rotations, which are saved with the weights.
        resample: in training, every forward pass draws new rotations from torch's generator.
    """

    mechanism: ClassVar[str] = "reformer"
    causal: ClassVar[bool] = True
    incremental: ClassVar[bool] = True
    cost: ClassVar[str] = "at most rounds·(chunks_before + 1 + chunks_after)·chunk_tokens"
    source: ClassVar[str] = "Kitaev et al. 2020, arXiv 2001.04451, section 2 and appendix A"
    exempt: ClassVar[Mapping[str, str]] = {
        "globals": "what a token sees is the affair of its bucket",
        "time": "tokens are sorted by their buckets, in T · log T",
    }

    chunk_tokens: Count = 64
    chunks_before: Whole = 1
    chunks_after: Whole = 1
    rounds: Annotated[int, Range(1, 64)] = 2
    buckets: Annotated[int, Range(1, MOST_BUCKETS)] | None = None
    bucket_tokens: Count = 64
    causal_tokens: Count = 4096
    chunks: Literal["bucket", "published"] = "bucket"
    attend_across_buckets: bool = True
    correct_duplicates: bool = True
    scaled: bool = False
    seed: Seed = 0
    resample: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buckets is not None and self.buckets > 1 and self.buckets % 2:
            raise InputError(
                f"buckets={self.buckets} is odd, and half of them are the others turned round; give an even number"
            )

    @property
    def idle(self) -> frozenset[str]:
        """Options that mean nothing beside the values of the others."""
        published = {"bucket_tokens", "causal_tokens"} if self.chunks == "published" else {"attend_across_buckets"}
        return frozenset(published | ({"bucket_tokens", "causal_tokens"} if self.buckets is not None else set()))

    def seen_chunks(self, causal: bool) -> int:
        """Chunks that a query sees, its own included."""
        after = 0 if causal and self.chunks == "bucket" else self.chunks_after
        return self.chunks_before + 1 + after

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        """Those of full chunks, of which a bucket's last one is not."""
        return min(float(length), self.rounds * self.seen_chunks(causal) * float(self.chunk_tokens))

    @property
    def projections(self) -> tuple[str, ...]:
        """No key: the query is one."""
        return ("query", "value", "output")

    def costs(self, *, length: int, width: int, heads: int, causal: bool = False) -> AttentionCost:
        """Hashing multiplies every query by the directions of each round: half as many as there are buckets, or about
        their root where these are more than 128, and none for one bucket."""
        cost = super().costs(length=length, width=width, heads=heads, causal=causal)
        most = self.count_buckets(length, causal)
        first, second = (int(each) for each in split(torch.tensor(most)))
        columns = most // 2 if most <= MOST_PER_HASH else (first + second) // 2
        return replace(cost, mixing=cost.mixing + self.rounds * width * columns * length)

    def count_buckets(self, length: int, causal: bool) -> int:
        """The number of buckets for so many tokens."""
        if self.buckets is not None:
            return self.buckets
        if self.chunks == "published":
            return min(max(2 * -(-length // self.chunk_tokens), 2), MOST_BUCKETS)
        return int(even_share(torch.tensor(self.causal_tokens if causal else length), self.bucket_tokens))

    def depends_on(self, needed: Tensor, *, is_global: Tensor | None = None, causal: bool = False) -> Tensor:
        # Which tokens share a bucket is the data's affair: an upper bound.
        if causal and self.chunks == "bucket":
            return needed.flip(0).cumsum(0).flip(0) > 0
        return needed.any().expand(needed.shape)

    def covers(self, tokens: int) -> bool:
        one = self.chunks == "published" or self.buckets == 1 or (self.buckets is None and tokens <= self.bucket_tokens)
        return tokens <= 1 or (one and tokens <= self.chunk_tokens)

    def widened(self, tokens: int) -> Self:
        if self.covers(tokens):
            return self
        sizes = {name: max(getattr(self, name), tokens) for name in ("chunk_tokens", "bucket_tokens")}
        return replace(self, **sizes, buckets=None if self.buckets is None else 1)

    def build(self, *, width: int, heads: int, causal: bool = False) -> ReformerAttention:
        return ReformerAttention(self, width=width, heads=heads, causal=causal)


class ReformerAttention(ProjectedAttention):
    """The module of `ReformerConfig`."""

    config: ReformerConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    inherits = ("query", "value", "output")
    rotations: Tensor

    def __init__(self, config: ReformerConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal)
        del self.key
        self.seen = Chunks(
            size=config.chunk_tokens,
            before=config.chunks_before,
            after=config.seen_chunks(causal) - 1 - config.chunks_before,
            causal=causal,
            scale=self.scale if config.scaled else 1.0,
            once=config.correct_duplicates,
        )
        self.register_buffer("rotations", torch.empty(heads, config.rounds, 2, self.head_width, MOST_PER_HASH // 2))
        self.init_extra_weights()

    @torch.no_grad()
    def init_extra_weights(self, std: float = 0.02) -> None:
        """Draw the rotations from the configuration's seed."""
        if not getattr(self.rotations, "_is_hf_initialized", False):
            generator = torch.Generator().manual_seed(self.config.seed)
            self.rotations.copy_(draw_rotations(self.heads, self.config.rounds, self.head_width, generator))

    def new_state(self) -> State:
        """The last tokens of every bucket, in memory that does not grow with the sequence."""
        if not self.causal or self.config.chunks == "published":
            return super().new_state()
        from longspan.attention.parts.state import RecurrentLayer

        return RecurrentLayer()

    def check_tokens(self, hidden: Tensor, tokens: Tokens, state: State | None = None) -> None:
        super().check_tokens(hidden, tokens, state)
        if state is not None and self.config.chunks == "published":
            raise InputError(
                "attention 'reformer' with chunks='published' got state=, which it does not take, since a later token "
                "moves earlier ones into other chunks; choose chunks='bucket'"
            )

    def context(self, hidden: Tensor, tokens: Tokens, state: State | None = None) -> Tensor:
        query, value, ids, most = self._hash(hidden, tokens)
        if state is not None:
            from longspan.attention.parts.state import recurrent

            return self.merge_heads(self._continue(query, value, ids, most, recurrent(state, "buckets")))
        chunks, one = self._chunks(hidden.shape[1])
        if self.config.chunks == "bucket" or one:
            context = attend_hashed(query, value, ids, chunks, most=most, dropout_prob=self.dropout_prob)
        else:
            across = self.config.attend_across_buckets
            context = attend_sorted(query, value, ids, chunks, across=across, dropout_prob=self.dropout_prob)
        return self.merge_heads(context)

    def context_weights(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        query, _, ids, _ = self._hash(hidden, tokens)
        chunks, one = self._chunks(hidden.shape[1])
        if self.config.chunks == "bucket" or one:
            return hashed_weights(query, ids, chunks)
        return hashed_weights(
            query, ids, chunks, published_times(ids, chunks, across=self.config.attend_across_buckets)
        )

    def _chunks(self, length: int) -> tuple[Chunks, bool]:
        """What a query sees, and whether that is one chunk of everything, as published where the text is no longer."""
        if self.config.chunks == "bucket" or length > self.config.chunk_tokens:
            return self.seen, False
        return replace(self.seen, size=max(length, 1), before=0, after=0), True

    def _hash(self, hidden: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor, Tensor, int]:
        """Queries and values `(B, H, T, D)`, the buckets `(B, H, R, T)` of the former, and a bound on how many there
        are.

        Autocast would round the queries, and so move tokens to other buckets.
        """
        with full_precision(hidden):
            query = self.split_heads(self.query(hidden.to(self.query.weight.dtype)))
        value, length, config = self.split_heads(self.value(hidden)), hidden.shape[1], self.config
        mask = tokens.last_mask(length)
        if config.chunks == "published" and self._chunks(length)[1]:
            count = torch.ones(1, dtype=torch.int64, device=hidden.device)
            most = 1
        elif config.buckets is not None or self.causal or config.chunks == "published":
            number = config.count_buckets(length, self.causal)
            count = torch.tensor([number], device=hidden.device)
            most = self._most(number)
        else:
            real = torch.full((1,), length, device=hidden.device) if mask is None else mask.sum(1)
            count = even_share(real, config.bucket_tokens)
            halves = (length + 2 * config.bucket_tokens - 1) // (2 * config.bucket_tokens)
            most = most_buckets(2 * halves, not torch.compiler.is_compiling())
        rotations = self.rotations
        if config.resample and self.training:
            rotations = torch.randn_like(rotations)
        return query, value, buckets_of(query, rotations, count, most, mask), most

    @staticmethod
    def _most(number: int) -> int:
        """How many buckets there are, where a number of them was asked for."""
        first, second = split(torch.tensor(number))
        return int(first * second)

    def _continue(self, query: Tensor, value: Tensor, ids: Tensor, most: int, state: RecurrentLayer) -> Tensor:
        """What tokens that continue a sequence gather; the first ones as without a state."""
        rings = state.tensors
        if not rings:
            context = attend_hashed(query, value, ids, self.seen, most=most, dropout_prob=self.dropout_prob)
            rings = new_rings(query, value, self.config.rounds, most, self.seen)
            rings = filled(rings, query, value, ids, self.seen)
        else:
            context, rings = attend_rings(query, value, ids, self.seen, rings, self.dropout_prob)
        state.advance(query.shape[2], **rings)
        return context
