"""Linformer: keys and values are projected along the length to a fixed number of slots."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention.base import LayerState, ProjectedAttention, projected
from longspan.attention.config import Activations, AttentionConfig, AttentionCost, Reach, SharedTables
from longspan.attention.parts.tokens import Tokens, in_order, real_first
from longspan.attention.support import Support
from longspan.errors import InputError
from longspan.ops.attend import attend
from longspan.ops.attend.blocks import block_mask, block_shares, pool_blocks
from longspan.ops.attend.reference import dense_weights
from longspan.patterns import Full
from longspan.settings import Count, Seed

TRAINED = ("slots", "max_tokens", "projection", "seed")
"""Options that trained tables determine."""


@dataclass(frozen=True, kw_only=True)
class LinformerConfig(AttentionConfig):
    """Every token attends to every token through `slots` sums of them: `softmax(Q (E K)ᵀ/√D) (F V)`.

    Tables are indexed by real tokens of a row: token number t has column t of E and F, so a shorter text uses the first
    columns, for any padding. Global tokens change nothing, because every slot contains every token (or, with pools,
    every token is in a slot that every query attends to).

    Attributes:
        slots: number of slots (paper: k), for pools the maximal number; it may exceed the number of tokens.
        max_tokens: the most real tokens of a text (paper: n).
        projection: how slots are computed: `"linear"`, learned sums of all tokens; `"random"`, sums drawn once from
            N(0, 1/k) with `seed` and never trained; or adjacent blocks of ⌈max_tokens / slots⌉ tokens, pooled by
            `"mean"`, `"max"`, or `"conv"`, a learned factor for each position of a block and each channel,
            initially a mean.
        sharing: the number of tables: two for each head, `"none"`; one for keys and one for values, `"headwise"`; one
            for both, `"key_value"`; or one for both in all layers of an encoder, `"layerwise"`.
        compress_input: compress the layer's input before the projection to keys and values, as fairseq does; this is
            cheaper, and weights the projections' biases differently.
        seed: random seed of `"random"`.
    """

    mechanism: ClassVar[str] = "linformer"
    sees_everything: ClassVar[bool] = True
    cost: ClassVar[str] = "slots, or in pools T / ⌈max_tokens / slots⌉"
    source: ClassVar[str] = "Wang et al. 2020, arXiv 2006.04768, equation 7 and section 4"
    support: ClassVar[Mapping[str, Support]] = {
        "causal": "a slot contains tokens of the whole text, later ones too",
    }

    slots: Count = 256
    max_tokens: Count = 4096
    projection: Literal["linear", "random", "mean", "max", "conv"] = "linear"
    sharing: Literal["none", "headwise", "key_value", "layerwise"] = "headwise"
    compress_input: bool = False
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compress_input and self.sharing == "none":
            raise InputError(
                "sharing='none' gives each head a projection of its own, but compress_input=True shortens before there "
                "are heads; choose sharing='headwise' or compress_input=False"
            )
        if self.sharing == "layerwise" and self.projection == "conv":
            raise InputError(
                "sharing='layerwise' has no tables of projection='conv', whose factors belong to the channels of a "
                "layer; choose sharing='key_value' or projection='linear'"
            )

    @property
    def block_tokens(self) -> int:
        """The number of tokens of a pooled block, `⌈max_tokens / slots⌉`."""
        return -(-self.max_tokens // self.slots)

    @property
    def pools(self) -> bool:
        """Whether slots are blocks of tokens, not sums of all."""
        return self.projection in ("mean", "max", "conv")

    @property
    def has_tables(self) -> bool:
        """Whether slots are computed with tables: `"linear"`, `"random"` and `"conv"`."""
        return self.projection not in ("mean", "max")

    @property
    def compresses_once(self) -> bool:
        """Whether keys and values come from the same slots of the input."""
        return self.compress_input and (not self.has_tables or self.sharing in ("key_value", "layerwise"))

    def reach(self) -> Reach:
        return Reach(longest=self.max_tokens)

    def activations(self) -> Activations:
        return Activations(projections=("query", "output")) if self.compress_input else Activations()

    @property
    def idle(self) -> frozenset[str]:
        idle = set() if self.has_tables else {"sharing"}
        return frozenset(idle if self.projection == "random" else {*idle, "seed"})

    @classmethod
    def defaults_for(cls, tokens: int, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"max_tokens": tokens}

    def slots_of(self, length: int) -> int:
        """Returns the number of slots of a text of `length` tokens: one per block with pools, else always `slots`."""
        return min(self.slots, -(-length // self.block_tokens)) if self.pools else self.slots

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        return float(self.slots_of(length))

    def costs(self, *, length: int, width: int, heads: int, causal: bool = False) -> AttentionCost:
        """Keys and values are each compressed: a slot costs E for each token in it."""
        cost = super().costs(length=length, width=width, heads=heads, causal=causal)
        slots = self.slots_of(length)
        per_tensor = (length if self.pools else slots * length) * width
        projected = 2 * slots * width**2 if self.compress_input else 0
        times = 1 if self.compresses_once else 2
        return replace(
            cost,
            pooling=times * per_tensor,
            projections=cost.projections + projected,
            saved_activations=cost.saved_activations + cost.weights,  # few, so they are saved too
        )

    def shared_tables(self) -> SharedTables | None:
        if self.sharing != "layerwise" or not self.has_tables:
            return None
        return SharedTables(
            build=lambda width, heads: self.make_tables(heads=1),
            agreed=(*TRAINED, "sharing"),
            trained=TRAINED,
            handed_on={name: getattr(self, name) for name in (*TRAINED, "sharing", "compress_input")},
            what="projections along the length",
        )

    def make_tables(self, *, heads: int, head_width: int = 1) -> LengthTables:
        """Returns the tables of one layer, or of all."""
        count = heads if self.sharing == "none" else 1
        shape = (self.block_tokens, head_width) if self.projection == "conv" else (self.slots, self.max_tokens)
        apart = self.sharing in ("none", "headwise")
        seed = self.seed if self.projection == "random" else None
        return LengthTables((count, *shape), apart=apart, seed=seed, mean=self.projection == "conv")

    def build(self, *, width: int, heads: int, causal: bool = False) -> LinformerAttention:
        return LinformerAttention(self, width=width, heads=heads, causal=causal)


class LinformerAttention(ProjectedAttention):
    """The module of `LinformerConfig`.

    The module owns its `tables` until an encoder that shares them calls `share_positions` and passes
    them in `Tokens(relative=…)`.
    """

    config: LinformerConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    tables: LengthTables | None

    def __init__(self, config: LinformerConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal)
        has = config.has_tables
        self.tables = config.make_tables(heads=heads, head_width=self.head_width) if has else None

    def init_extra_weights(self, std: float = 0.02) -> None:
        """Initialises the tables as `LengthTables` does."""
        if self.tables is not None:
            self.tables.init_extra_weights(std)

    def share_positions(self) -> None:
        """Deletes the module's own tables if the encoder shares them."""
        if self.config.shared_tables() is not None:
            self.tables = None

    def context(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        key, value, key_mask, _ = self.shortened(hidden, tokens)
        query = self.heads_of(self.query, hidden)
        options = {"pattern": Full(), "key_mask": key_mask, "dropout_prob": self.dropout_prob}
        return self.merge_heads(attend(query, key, value, **options))

    def context_weights(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        """Returns each query's weight of each token: its weights of the slots times the tokens' shares in these. With
        sums it can be negative; for `"max"` and `"conv"`, which treat each channel separately, it is a mean.
        """
        key, _, key_mask, shares = self.shortened(hidden, tokens, dense=True)
        query = self.heads_of(self.query, hidden)
        visible = torch.ones(1, 1, 1, key.shape[2], dtype=torch.bool, device=key.device)
        weights = dense_weights(query, key, visible if key_mask is None else key_mask[:, None, None], scale=self.scale)
        weights = weights @ shares.to(weights.dtype)
        order, _ = self._order(hidden, tokens.mask)
        if order is None:
            return weights
        places = order[:, None, None].expand(-1, *weights.shape[1:3], -1)
        return weights.new_zeros(*weights.shape[:3], hidden.shape[1]).scatter(3, places, weights)

    def shortened(
        self, hidden: Tensor, tokens: Tokens, *, dense: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Returns keys and values of the slots, `(B, H, M, D)` each, the mask of slots with a token `(B, M)`, and the
        values again; with `dense`, the share of each token in each slot, `(B, H, M, T)`, in their place.
        """
        order, mask = self._order(hidden, tokens.mask)
        hidden, tables = in_order(hidden, order), self._tables(tokens)
        slot_mask = None
        if self.config.pools:
            slot_mask = block_mask(mask, hidden.shape[1], self.config.block_tokens, hidden.device)
            slot_mask = None if slot_mask is None else slot_mask.expand(hidden.shape[0], -1)
        if not self.config.compress_input:
            vectors = [self.heads_of(layer, hidden) for layer in (self.key, self.value)]
            key, value = (self._shorten(vector, mask, table) for vector, table in zip(vectors, tables, strict=True))
        else:
            inputs, vectors = self.split_heads(hidden), [self.split_heads(hidden)] * 2
            first = self._shorten(inputs, mask, tables[0])
            second = first if self.config.compresses_once else self._shorten(inputs, mask, tables[1])
            key, value = projected(self.key, self.merge_heads(first)), projected(self.value, self.merge_heads(second))
            key, value = self.split_heads(key), self.split_heads(value)
        shares = self._shares(vectors[1], mask, tables[1]) if dense else value
        return key, value, slot_mask, shares

    def _order(self, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Returns an order with the real tokens first, limited to the number of columns, and its mask.

        Raises:
            InputError: a row has more real tokens than there are columns.
        """
        length, most = hidden.shape[1], self.config.max_tokens
        if length > most:
            self._check_count(length if mask is None else mask.sum(1))
        if mask is None:
            return None, None
        order = real_first(mask)
        order = order[:, :most] if length > most else order
        return order, in_order(mask, order)

    def _check_count(self, count: Tensor | int) -> None:
        """Raises unless every row's count `(B,)` is within the columns; a compiled program asserts it."""
        most = self.config.max_tokens
        if isinstance(count, Tensor) and torch.compiler.is_compiling():
            torch._assert_async((count <= most).all(), "max_tokens is fewer than the real tokens of a row")
            return
        longest = count if isinstance(count, int) else int(count.max()) if len(count) else 0
        if longest > most:
            raise InputError(
                f"a text of {longest} tokens is longer than max_tokens={most} of attention 'linformer', whose "
                "projections have a column for each token; shorten it, or build with a larger max_tokens"
            )

    def _tables(self, tokens: Tokens) -> tuple[Tensor | None, Tensor | None]:
        """Returns the tables of keys and values: the module's own, or those of `tokens`.

        Raises:
            InputError: they are missing, or have another shape than the configuration requires.
        """
        config = self.config
        if not config.has_tables:
            return None, None
        if config.shared_tables() is None or tokens.relative is None:
            if self.tables is None:
                raise InputError(
                    "relative=None of Tokens leaves this layer without the projection along the length, which its "
                    "encoder holds for all layers; give Tokens(relative=…) the encoder's"
                )
            tables = self.tables()
            return tables[0], tables[-1]
        shapes, wanted = [tuple(table.shape) for table in tokens.relative], (1, config.slots, config.max_tokens)
        if shapes != [wanted]:
            raise InputError(
                f"relative has tables of shapes {shapes}; attention 'linformer' with these options needs [{wanted}]"
            )
        return tokens.relative[0], tokens.relative[0]

    def _shorten(self, hidden: Tensor, mask: Tensor | None, table: Tensor | None) -> Tensor:
        """Compresses `(B, H, T, D)` to `(B, H, M, D)`, without padding."""
        if self.config.pools:
            options = {"size": self.config.block_tokens, "pooling": self.config.projection, "weight": table}
            return pool_blocks(hidden, mask=mask, **options)
        assert table is not None
        if mask is not None:
            hidden = hidden.masked_fill(~mask[:, None, :, None], 0)
        columns = _leading(table, hidden.shape[2])
        if table.shape[0] > 1:
            return columns @ hidden
        return self.split_heads(columns @ self.merge_heads(hidden))  # all heads at once

    def _shares(self, hidden: Tensor, mask: Tensor | None, table: Tensor | None) -> Tensor:
        """Returns the share of each token in each slot, `(B, H, M, T)`, for plots."""
        if self.config.pools:
            options = {"size": self.config.block_tokens, "pooling": self.config.projection, "weight": table}
            return block_shares(hidden, mask=mask, **options)
        assert table is not None
        columns = _leading(table, hidden.shape[2]).expand(hidden.shape[0], self.heads, -1, -1)
        return columns if mask is None else columns.masked_fill(~mask[:, None, None], 0)


def _leading(table: Tensor, length: int) -> Tensor:
    """Returns the columns `(H or 1, k, T)` of the first tokens by negative padding: a slice would limit an exported
    program to lengths below the longest.
    """
    return F.pad(table, (0, length - table.shape[2]))


class LengthTables(nn.Module):
    """One table for keys and values, or one for each: `key` and `value`.

    Args:
        shape: the shape of a table, with heads, or 1 for all, first: slots and tokens, `(H or 1, k, n)`, whose rows are
            sums of tokens, or positions of a block and channels, `(H or 1, n, D)`, for weighted means.
        apart: whether keys and values have separate tables.
        seed: random seed of tables that are not learned, N(0, 1/k); `None` for learned ones. They are saved with the
            weights, and do not depend on the device.
        mean: whether a table is initialised as a mean over its positions, not as `U(±√(6 / (k + n)) / √2)` (fairseq).
    """

    def __init__(
        self, shape: tuple[int, int, int], *, apart: bool, seed: int | None = None, mean: bool = False
    ) -> None:
        super().__init__()
        self.seed, self.mean = seed, mean
        self.names = ("key", "value") if apart else ("key",)
        for name in self.names:
            table = torch.empty(shape)
            if seed is None:
                self.register_parameter(name, nn.Parameter(table))
            else:
                self.register_buffer(name, table)
        self.init_extra_weights()

    @torch.no_grad()
    def init_extra_weights(self, std: float = 0.02) -> None:
        """Initialises what transformers has not marked as loaded."""
        for number, name in enumerate(self.names):
            table = getattr(self, name)
            if self.seed is not None:  # the same numbers for the same seed, on any device and after any other draws
                if not getattr(table, "_is_hf_initialized", False):
                    generator = torch.Generator().manual_seed(2 * self.seed + number)
                    drawn = torch.randn(table.shape, generator=generator, device="cpu")
                    table.copy_(drawn / math.sqrt(table.shape[1]))
            elif self.mean:
                nn.init.constant_(table, 1 / table.shape[1])
            else:
                bound = math.sqrt(3 / (table.shape[1] + table.shape[2]))
                nn.init.uniform_(table, -bound, bound)

    def forward(self) -> tuple[Tensor, ...]:
        """Returns the tables for `Tokens(relative=…)`: that of keys, and that of values if it is separate."""
        return tuple(getattr(self, name) for name in self.names)
