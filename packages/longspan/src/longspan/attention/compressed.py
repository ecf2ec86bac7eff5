"""Memory-compressed attention: keys and values compressed by a strided convolution, queries at full length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention.base import LayerState, ProjectedAttention, projected
from longspan.attention.config import AttentionConfig, AttentionCost, Lengthening
from longspan.attention.parts.tokens import Tokens, in_order, inverse_order, real_first
from longspan.attention.support import Support
from longspan.ops.attend import attend
from longspan.ops.attend.blocks import attend_blocks, block_mask, block_shares, pool_blocks, visible_blocks
from longspan.ops.attend.reference import dense_weights
from longspan.patterns import Full
from longspan.settings import Range

if TYPE_CHECKING:
    from longspan.attention.parts.state import RecurrentLayer


@dataclass(frozen=True, kw_only=True)
class CompressedConfig(AttentionConfig):
    """Every token attends to blocks of `stride` tokens, each compressed to one key and one value, and to
    a learned null.

    In the causal form a query attends to a block that ends before or at the query; the null is for the first queries,
    before any such block. Blocks consist of a row's real tokens, for any padding. Global tokens change nothing, because
    every token is in a block that every query attends to.

    Attributes:
        stride: tokens of a block, which is the kernel of the convolution and its stride (paper: 3).
        pooling: how a block is compressed to a key or a value: `"conv"`, a learned matrix for each position of a block,
            in each head, initially a mean; or `"mean"`, `"max"`.
    """

    mechanism: ClassVar[str] = "compressed"
    causal: ClassVar[bool] = True
    incremental: ClassVar[bool] = True
    cost: ClassVar[str] = "1 + T / stride (causal: about half)"
    source: ClassVar[str] = "Liu et al. 2018, arXiv 1801.10198, section 4.2.3"
    support: ClassVar[Mapping[str, Support]] = {"linear": "the blocks are a fixed share of the tokens"}

    stride: Annotated[int, Range(1, 4096)] = 3
    pooling: Literal["conv", "mean", "max"] = "conv"

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        """Returns the mean slots per token: the null, and the blocks of `stride` tokens that a query attends to."""
        blocks = length // self.stride
        if not causal:
            return 1.0 - (-length // self.stride)
        pairs = self.stride * blocks * (blocks - 1) // 2 + blocks * (length - blocks * self.stride + 1)
        return 1 + pairs / max(length, 1)

    def costs(self, *, length: int, width: int, heads: int, causal: bool = False) -> AttentionCost:
        """Keys and values are each pooled: a token costs E, or ED in a convolution, whose last block is padded."""
        cost = super().costs(length=length, width=width, heads=heads, causal=causal)
        per_tensor = -(-length // self.stride) * self.stride * width // heads if self.pooling == "conv" else length
        return replace(cost, pooling=2 * per_tensor * width)

    def depends_on(self, needed: Tensor, *, is_global: Tensor | None = None, causal: bool = False) -> Tensor:
        if not causal or not needed.any():
            return needed.any().expand(needed.shape)
        last = int(needed.nonzero().max())
        complete = (last + 1) // self.stride * self.stride
        return needed | (torch.arange(len(needed)) < complete)

    def lengthening(self, tokens: int = 1) -> Lengthening:
        return replace(super().lengthening(tokens), covers=True)

    def build(self, *, width: int, heads: int, causal: bool = False) -> CompressedAttention:
        return CompressedAttention(self, width=width, heads=heads, causal=causal)


class CompressedAttention(ProjectedAttention):
    """The module of `CompressedConfig`."""

    config: CompressedConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    state_kind = "sums"  # the blocks so far, and the tokens of the unfinished one

    def __init__(self, config: CompressedConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal)
        size = self.head_width
        for name in ("key", "value"):
            setattr(self, f"null_{name}", nn.Parameter(torch.empty(heads, size)))
            if config.pooling == "conv":
                setattr(self, f"pool_{name}_weight", nn.Parameter(torch.empty(heads, config.stride, size, size)))
                setattr(self, f"pool_{name}_bias", nn.Parameter(torch.empty(heads, size)))
        self.init_extra_weights()

    @torch.no_grad()
    def init_extra_weights(self, std: float = 0.02) -> None:
        """Initialises the null with zero, and a convolution as a mean."""
        for name in ("key", "value"):
            nn.init.zeros_(getattr(self, f"null_{name}"))
            if self.config.pooling == "conv":
                nn.init.zeros_(getattr(self, f"pool_{name}_bias"))
                weight = getattr(self, f"pool_{name}_weight")
                if not getattr(weight, "_is_hf_initialized", False):
                    weight.copy_(torch.eye(self.head_width, device=weight.device) / self.config.stride)

    def context(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        mask = tokens.last_mask(hidden.shape[1])
        if state is not None:
            from longspan.attention.parts.state import recurrent

            context = self._continued(hidden, mask, recurrent(state, "blocks"))
        else:
            context = self._whole(hidden, mask)
        return context if mask is None else context.masked_fill(~mask[:, :, None], 0)

    def context_weights(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        """Returns each query's weight of each token: its weights of the blocks times the tokens' shares in these; the
        weight of the null is not included.
        """
        order, mask = _order(tokens.mask)
        query, key, value = self.project(in_order(hidden, order))
        slots, length = self._slots("key", key, mask), hidden.shape[1]
        if self.causal:
            visible = visible_blocks(length, slots.shape[2], self.config.stride, hidden.device)[None, None]
        else:
            visible = torch.ones(1, 1, 1, slots.shape[2], dtype=torch.bool, device=hidden.device)
            real = block_mask(mask, length, self.config.stride, hidden.device)
            visible = visible if real is None else F.pad(real, (1, 0), value=True)[:, None, None]
        weights = dense_weights(query, slots, visible, scale=self.scale)[..., 1:]
        shares = block_shares(value, mask=mask, **self._pooling("value"))
        weights = weights @ shares.to(weights.dtype)
        weights = weights if order is None else in_order(weights, inverse_order(order), 2, 3)
        return weights if tokens.mask is None else weights.masked_fill(~tokens.mask[:, None, :, None], 0)

    def _whole(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Computes a whole text, with the real tokens in order, `(B, T, E)`."""
        order, mask = _order(mask)
        query, key, value = self.project(in_order(hidden, order))
        # In the causal form no query attends to the last, unfinished block, so its padding need not be known.
        slots = [self._slots(*named, None if self.causal else mask) for named in (("key", key), ("value", value))]
        if self.causal:
            context = attend_blocks(query, *slots, size=self.config.stride, dropout_prob=self.dropout_prob)
        else:
            real = block_mask(mask, hidden.shape[1], self.config.stride, hidden.device)
            slot_mask = None if real is None else F.pad(real.expand(hidden.shape[0], -1), (1, 0), value=True)
            context = attend(query, *slots, pattern=Full(), key_mask=slot_mask, dropout_prob=self.dropout_prob)
        return in_order(self.merge_heads(context), None if order is None else inverse_order(order))

    def _continued(self, hidden: Tensor, mask: Tensor | None, past: RecurrentLayer) -> Tensor:
        """Computes the next tokens of a sequence, `(B, T, E)`, and the blocks that they complete."""
        held, size, new = past.tensors or self._nothing(hidden), self.config.stride, hidden.shape[1]
        real = hidden.new_ones(hidden.shape[:2], dtype=torch.bool) if mask is None else mask
        count, before, opened = held["count"], held["keys"].shape[2], held["open_key"].shape[1]
        left, device = (count % size)[:, None], hidden.device
        order = None
        if opened or mask is not None:  # the tokens of the unfinished block, then the new ones, each row without gaps
            order = real_first(torch.cat([torch.arange(opened, device=device) < left, real], dim=1))
        query = projected(self.query, hidden)
        local = {
            name: torch.cat([held[f"open_{name}"], projected(getattr(self, name), hidden)], 1)
            for name in ("key", "value")
        }
        local = {name: in_order(vectors, order) for name, vectors in local.items()}
        slots = {f"{name}s": self._slots(name, self.split_heads(vectors), None) for name, vectors in local.items()}
        after = count + real.sum(1)
        blocks, finished = (past.cumulative_length + new) // size, after // size - count // size
        finished_slots = {
            name: _put(held[name], slots[name][:, :, 1:], count // size, finished, blocks) for name in slots
        }
        rest = (finished * size)[:, None] + torch.arange(size - 1, device=device)
        left_open = {
            f"open_{name}": in_order(F.pad(vectors, (0, 0, 0, size - 1)), rest) for name, vectors in local.items()
        }
        past.advance(new, **finished_slots, **left_open, count=after)
        if new == 1:  # which attends to all existing blocks
            keys, values = (torch.cat([slots[name][:, :, :1], finished_slots[name]], 2) for name in slots)
            slot_mask = None if mask is None else torch.arange(blocks + 1, device=device) <= after[:, None] // size
            context = attend(
                self.split_heads(query),
                keys,
                values,
                pattern=Full(),
                key_mask=slot_mask,
                dropout_prob=self.dropout_prob,
            )
            return self.merge_heads(context)
        keys, values = (torch.cat([held[name], slots[name]], 2) for name in slots)
        slot_mask = None
        if mask is not None and before:
            places = torch.arange(keys.shape[2], device=device)
            slot_mask = (places < count[:, None] // size) | (places >= before)
        query = self.split_heads(in_order(F.pad(query, (0, 0, opened, 0)), order))
        options = {"size": size, "before": before, "key_mask": slot_mask, "dropout_prob": self.dropout_prob}
        context = self.merge_heads(attend_blocks(query, keys, values, **options))
        return (context if order is None else in_order(context, inverse_order(order)))[:, opened:]

    def _nothing(self, hidden: Tensor) -> dict[str, Tensor]:
        """Returns the state before the first token."""
        batch, kind = hidden.shape[0], projected(self.key, hidden[:, :0]).dtype  # the dtype of autocast, if enabled
        none = hidden.new_zeros(batch, self.heads, 0, self.head_width, dtype=kind)
        opened = hidden.new_zeros(batch, 0, self.width, dtype=kind)
        count = hidden.new_zeros(batch, dtype=torch.int64)
        return {"keys": none, "values": none, "open_key": opened, "open_value": opened, "count": count}

    def _slots(self, name: str, vectors: Tensor, mask: Tensor | None) -> Tensor:
        """Returns the null and the blocks of keys or values `(B, H, T, D)`: `(B, H, 1 + M, D)`."""
        blocks = pool_blocks(vectors, mask=mask, **self._pooling(name))
        if self.config.pooling == "conv":
            blocks = blocks + getattr(self, f"pool_{name}_bias")[:, None].to(blocks.dtype)
        null = getattr(self, f"null_{name}")[:, None].to(blocks.dtype).expand(vectors.shape[0], -1, -1, -1)
        return torch.cat([null, blocks], dim=2)

    def _pooling(self, name: str) -> dict:
        weight = getattr(self, f"pool_{name}_weight") if self.config.pooling == "conv" else None
        return {"size": self.config.stride, "pooling": self.config.pooling, "weight": weight}


def _order(mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Returns an order with the real tokens first, and the mask in it."""
    order = None if mask is None else real_first(mask)
    return order, mask if mask is None else in_order(mask, order)


def _put(held: Tensor, new: Tensor, first: Tensor, count: Tensor, total: int) -> Tensor:
    """Writes the first `count` `(B,)` new blocks `(B, H, P, D)` after the `first` ones of each row, with `total` places
    in all.
    """
    places = torch.arange(new.shape[2], device=new.device)
    places = torch.where(places < count[:, None], first[:, None] + places, total)  # the last place is dropped
    places = places[:, None, :, None].expand_as(new)
    return F.pad(held, (0, 0, 0, total + 1 - held.shape[2])).scatter(2, places, new)[:, :, :total]
