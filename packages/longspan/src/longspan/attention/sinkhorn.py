"""Sparse Sinkhorn attention: a block of tokens attends to itself and to the blocks that a learned sorting assigns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention.base import LayerState, ProjectedAttention, projected
from longspan.attention.config import AttentionConfig, AttentionCost, Lengthening, full_inputs
from longspan.attention.features.starts import FurtherWeights
from longspan.attention.parts.tokens import Tokens, inverse_order, real_first
from longspan.attention.support import Support, Unless
from longspan.errors import InputError
from longspan.ops.attend import attend
from longspan.ops.runtime import full_precision
from longspan.ops.sorted.block_attention import attend_blocks
from longspan.ops.sorted.sinkhorn import NOTHING, block_means, block_weights, earlier, means_so_far, sinkhorn
from longspan.patterns import Causal
from longspan.settings import Count, Range

TIES = 1024
"""Units of rounding within which entries of a sorting count as equal: the logit, its logarithm and the sums over rows
and columns each lose some, depending on the number of blocks, including padded ones.
"""


@dataclass(frozen=True, kw_only=True)
class SinkhornConfig(AttentionConfig):
    """Every block of tokens also attends to one mixture of all blocks, sorted for it by a matrix that is nearly doubly
    stochastic. Blocks contain the real tokens of each row.

    Attributes:
        block_tokens: tokens of a block, b.
        sort_net: how the score of block j for block i is computed. "bilinear" has no weights: the mean query of i times
            the mean key of j, over √D. "linear" and "mlp" predict a number for each of `most_blocks` from the mean
            query and key of block i; "mlp" with a hidden layer of width 2D.
        most_blocks: with "linear" and "mlp", the number of blocks of the longest text.
        iterations: number of times that rows, and after them columns, are normalised.
        temperature: divisor of the logits, τ.
        noise: factor of the Gumbel noise that is added to the logits in training; 0 for none.
        hard_sort: each block gets the block with the highest score instead of a mixture; gradients are those of the
            mixture. If scores are equal up to rounding, it gets the first.
        target_attention: the pattern of the causal form: "sorted", a token's own block and the blocks sorted to it from
            before; or "full", all earlier tokens. The latter is the layer of DialogLM's hybrid: a source
            (`Tokens.prefix`) is processed in sorted blocks, bidirectionally, with queries, keys and values of its own
            (`source_query` and so on, initialised as copies), and the target after it attends to all of it.
    """

    mechanism: ClassVar[str] = "sinkhorn"
    causal: ClassVar[bool] = True
    incremental: ClassVar[bool] = True
    cost: ClassVar[str] = "2·block_tokens + T / block_tokens"
    source: ClassVar[str] = "Tay et al. 2020, arXiv 2002.11296, section 3"
    support: ClassVar[Mapping[str, Support]] = {
        "linear": "sorting mixes every block with every other",
        "globals": "what a token sees is decided by its block alone",
        "prefix": Unless("a target sees sorted blocks of what comes before", {"target_attention": "full"}),
    }

    block_tokens: Count = 64
    sort_net: Literal["bilinear", "linear", "mlp"] = "bilinear"
    most_blocks: Count = 64
    iterations: Annotated[int, Range(1, 1000)] = 7
    temperature: Annotated[float, Range(above=0, maximum=1000)] = 0.75
    noise: Annotated[float, Range(0, 1000)] = 1.0
    hard_sort: bool = False
    target_attention: Literal["sorted", "full"] = "sorted"

    @property
    def idle(self) -> frozenset[str]:
        return frozenset({"most_blocks"} if self.sort_net == "bilinear" else ())

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        """The scores of a block's own tokens and of as many sorted ones, and the work of sorting: mixing a pair of
        blocks costs as many multiply-adds as b scores. A target without a source has the scores of full attention.
        """
        if causal and self.target_attention == "full":
            return (length + 1) / 2
        return 2.0 * self.block_tokens + self._blocks(length) ** 2 * self.block_tokens / max(length, 1)

    def _blocks(self, length: int) -> int:
        return -(-length // self.block_tokens)

    def costs(self, *, length: int, width: int, heads: int, causal: bool = False) -> AttentionCost:
        """Scores, including the mixing of blocks; the sort net's own products are added."""
        cost, blocks = super().costs(length=length, width=width, heads=heads, causal=causal), self._blocks(length)
        if causal and self.target_attention == "full":
            return cost
        descriptor, columns = 2 * width // heads, self.most_blocks
        nets = {
            "bilinear": width * blocks**2,
            "linear": heads * blocks * descriptor * columns,
            "mlp": heads * blocks * descriptor * (descriptor + columns),
        }
        full = 2 * self.block_tokens * blocks * self.block_tokens + blocks**2 * self.block_tokens
        return replace(cost, mixing=2 * width * full + nets[self.sort_net] + heads * blocks**2 * self.block_tokens)

    def depends_on(self, needed: Tensor, *, is_global: Tensor | None = None, causal: bool = False) -> Tensor:
        # Every block is mixed with every other, and changes how they are mixed.
        return full_inputs(needed, causal=causal)

    def lengthening(self, tokens: int = 1) -> Lengthening:
        wide = replace(self, block_tokens=max(self.block_tokens, tokens))
        return replace(super().lengthening(tokens), covers=tokens <= self.block_tokens, widened=wide)

    def build(self, *, width: int, heads: int, causal: bool = False) -> SinkhornAttention:
        return SinkhornAttention(self, width=width, heads=heads, causal=causal)


class SinkhornAttention(FurtherWeights, ProjectedAttention):
    """The module of `SinkhornConfig`."""

    config: SinkhornConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    state_kind = "keys"  # with the queries, unless a target attends to all earlier tokens
    source_query: nn.Linear
    source_key: nn.Linear
    source_value: nn.Linear

    def __init__(self, config: SinkhornConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal)
        self.shows_all = causal and config.target_attention == "full"
        self.sorts_causally = causal and not self.shows_all
        self.pattern = Causal()  # if the target attends to all earlier tokens
        for name in self.starts_from:
            setattr(self, name, nn.Linear(width, heads * self.head_width))
        pair = 2 * self.head_width
        if config.sort_net == "mlp":
            self.sort_inner = nn.Parameter(torch.empty(heads, pair, pair))
        if config.sort_net != "bilinear":
            self.sort_outer = nn.Parameter(torch.empty(heads, pair, config.most_blocks))
        self.init_extra_weights()

    @torch.no_grad()
    def init_extra_weights(self, std: float = 0.02) -> None:
        """Initialises the sort net with N(0, std), so that a block initially gets a mixture of all."""
        super().init_extra_weights(std)
        for name in ("sort_inner", "sort_outer"):
            if hasattr(self, name):
                nn.init.normal_(getattr(self, name), std=std)

    @property
    def starts_from(self) -> Mapping[str, str]:
        """A source's own projections start as copies of the target's."""
        return {f"source_{name}": name for name in ("query", "key", "value")} if self.shows_all else {}

    def context(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        if self.shows_all:
            return self._source_and_target(hidden, tokens, state)
        new = hidden.shape[1]
        query, key, value = self.project(hidden)
        if state is not None:
            both, value = state.update(torch.cat([query, key], -1), value)
            if state.is_compileable:  # a preallocated layer returns unused places too
                length = int(state.get_seq_length())
                both, value = both[:, :, :length], value[:, :, :length]
            query, key = both.split(self.head_width, -1)
        if not new:
            return hidden
        mask = tokens.last_mask(key.shape[2])
        return self._in_blocks(query, key, value, mask, None if state is None else new)

    def _source_and_target(self, hidden: Tensor, tokens: Tokens, state: LayerState | None) -> Tensor:
        """Computes a source in sorted blocks, and the target's attention to all earlier tokens with the state's keys
        and values, `(B, T, E)`.
        """
        length = hidden.shape[1]
        count = 0 if tokens.prefix is None else min(tokens.prefix.count, length)
        key, value = self.heads_of(self.key, hidden), self.heads_of(self.value, hidden)
        if state is not None:
            key, value = state.update(key, value)
            if state.is_compileable:  # a preallocated layer returns unused places too
                filled = int(state.get_seq_length())
                key, value = key[:, :, :filled], value[:, :, :filled]
        target = attend(
            self.heads_of(self.query, hidden[:, count:]),
            key,
            value,
            pattern=self.shown(tokens),
            key_mask=tokens.last_mask(key.shape[2]),
            dropout_prob=self.dropout_prob,
            query_offset=key.shape[2] - length + count,
        )
        if not count:
            return self.merge_heads(target)
        source = self._in_blocks(*self._of_source(hidden[:, :count]), _first(tokens.mask, count))
        return torch.cat([source, self.merge_heads(target)], 1)

    def _of_source(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Projects queries, keys and values of a source, `(B, H, T, D)` each."""
        query, key, value = (
            projected(self.source_query, hidden),
            projected(self.source_key, hidden),
            projected(self.source_value, hidden),
        )
        return self.split_heads(query), self.split_heads(key), self.split_heads(value)

    def _in_blocks(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, new: int | None = None
    ) -> Tensor:
        """Computes attention of `(B, H, T, D)` to their block and the one sorted for it, `(B, T, E)`; for a continued
        text, of the last `new` tokens.
        """
        size, length = self.config.block_tokens, query.shape[2]
        query, key, value, real, place = self._blocks(query, key, value, mask)
        order, first = self.order(query, key, real), 0
        if new is not None:
            place = place[:, length - new :]
            first = int(place.min()) // size
        context = attend_blocks(
            query[:, :, first:],
            key,
            value,
            real,
            order[:, :, first:],
            scale=self.scale,
            causal=self.sorts_causally,
            dropout_prob=self.dropout_prob,
        )
        context = context.permute(0, 2, 3, 1, 4)
        if mask is None and new is None and not torch.compiler.is_compiling():
            return context.flatten(3).flatten(1, 2)[:, :length]
        rows = torch.arange(place.shape[0], device=place.device)[:, None]
        context = context[rows, place // size - first, place % size]
        return context.flatten(2)

    def context_weights(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        if not hidden.shape[1]:
            return hidden.new_zeros(hidden.shape[0], self.heads, 0, 0)
        query, key, value = self.project(hidden)
        if not self.shows_all:
            return self._sorted_weights(query, key, value, tokens.mask)
        weights = self.dense_weights(query, key, tokens)
        if tokens.prefix is None or not tokens.prefix.count:
            return weights
        count = min(tokens.prefix.count, hidden.shape[1])
        source = self._sorted_weights(*self._of_source(hidden[:, :count]), _first(tokens.mask, count))
        source = F.pad(source, (0, hidden.shape[1] - count)).to(weights.dtype)
        return torch.cat([source, weights[:, :, count:]], 2)

    def _sorted_weights(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        blocks = self._blocks(query, key, value, mask)
        matrix, place = self.order(blocks[0], blocks[1], blocks[3]), blocks[4]
        if mask is not None:
            place = torch.where(mask, place, -1)
        size = self.config.block_tokens
        return block_weights(query, key, place, matrix, size=size, scale=self.scale, causal=self.sorts_causally)

    def _blocks(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Any, ...]:
        """Splits queries, keys and values `(B, H, T, D)` into blocks `(B, H, N, b, D)`, real tokens first. Also returns
        the mask, `(B, N, b)`, or `None` if all are real; and the position of every token in the blocks, `(B, T)`.
        """
        (batch, _, length), size = query.shape[:3], self.config.block_tokens
        if mask is None and not torch.compiler.is_compiling():
            return self._plain_blocks(query, key, value)
        # One graph serves every length, but not both one block and several, nor one before the last.
        blocks = length // size + 3 if torch.compiler.is_compiling() else (length + size - 1) // size
        first = torch.arange(blocks, device=query.device) * size
        places = first[:, None] + torch.arange(size, device=query.device)
        index = places.clamp(max=length - 1).expand(batch, -1, -1)
        count = torch.full((batch,), length, device=query.device)
        place = torch.arange(length, device=query.device).expand(batch, -1)
        rows = torch.arange(batch, device=query.device)[:, None]
        if mask is not None:
            order = real_first(mask)
            index, count, place = order[rows[..., None], index], mask.sum(1), inverse_order(order)
        parts = (
            tensor.transpose(1, 2)[rows[..., None], index].permute(0, 3, 1, 2, 4) for tensor in (query, key, value)
        )
        return (*parts, places < count[:, None, None], place)

    def _plain_blocks(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Any, ...]:
        """Implements `_blocks` without padding; the blocks are views of the padded tokens."""
        (batch, _, length), size = query.shape[:3], self.config.block_tokens
        missing = (0, 0, 0, -length % size)
        parts = [F.pad(tensor, missing) if missing[3] else tensor for tensor in (query, key, value)]
        place = torch.arange(length + missing[3], device=query.device)
        real = (place < length).view(-1, size).expand(batch, -1, -1) if missing[3] else None
        return (*(tensor.unflatten(2, (-1, size)) for tensor in parts), real, place[:length].expand(batch, -1))

    def order(self, query: Tensor, key: Tensor, real: Tensor | None) -> Tensor:
        """Returns the sorting of blocks `(B, H, N, b, D)`: `(B, H, N, N)`, a row for each block's mixture; `real` is
        `(B, N, b)`, or `None` if all tokens are real.
        """
        wide, config = torch.promote_types(query.dtype, torch.float32), self.config
        blocks, means = None if real is None else real[:, :, 0], means_so_far if self.sorts_causally else block_means
        with full_precision(query):
            other = block_means(key, real)
            logits = self._logits(means(query, real), means(key, real) if self.sorts_causally else other, other)
        logits = (logits.relu() + NOTHING).log()
        if self.training and config.noise:
            uniform = torch.rand_like(logits).clamp(min=torch.finfo(wide).tiny, max=1 - torch.finfo(wide).eps)
            logits = logits - config.noise * (-uniform.log()).log()
        logits = logits / config.temperature
        if self.sorts_causally:
            order = earlier(logits, blocks)
        else:
            order = sinkhorn(logits, blocks, config.iterations)
        if not config.hard_sort or not order.numel():
            return order
        best = torch.zeros_like(order).scatter(-1, _first_best(order.detach()), 1)
        best = best.masked_fill(order.sum(-1, keepdim=True) == 0, 0)
        return best + (order - order.detach())

    def _logits(self, query: Tensor, key: Tensor, other: Tensor) -> Tensor:
        """Returns the scores of all pairs of blocks, `(B, H, N, N)`, from the means `(B, H, N, D)` of the one and the
        keys of the other.
        """
        if self.config.sort_net == "bilinear":
            return query @ other.mT * self.scale
        count, most = query.shape[2], self.config.most_blocks
        if count > most:
            raise InputError(
                f"the text has {count} blocks of block_tokens={self.config.block_tokens}, but most_blocks={most}; "
                "raise one of them, or choose sort_net='bilinear'"
            )
        described = torch.cat([query, key], -1)
        if self.config.sort_net == "mlp":
            described = (described @ self.sort_inner.to(described.dtype)).relu()
        return (described @ self.sort_outer.to(described.dtype))[..., :count]


def _first_best(order: Tensor) -> Tensor:
    """Returns the first column `(…, N, 1)` with the largest entry of its row, up to rounding."""
    ties = order >= order.amax(-1, keepdim=True) * (1 - TIES * torch.finfo(order.dtype).eps)
    return ties.to(torch.uint8).argmax(-1, keepdim=True)


def _first(mask: Tensor | None, count: int) -> Tensor | None:
    """Returns the mask of the first tokens of the mask `(B, T)`."""
    return None if mask is None else mask[:, :count]
