"""Blockwise attention: each head pairs every block of queries with one block of keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from longspan.attention.base import LayerState, ProjectedAttention
from longspan.attention.config import Activations, AttentionConfig, Lengthening
from longspan.attention.parts.tokens import Tokens, real_first
from longspan.attention.support import Support
from longspan.errors import InputError
from longspan.ops.attend import attend
from longspan.ops.attend.call import gather_slots, mask_of_slots, put_slots
from longspan.ops.attend.reference import dense_weights
from longspan.ops.runtime import cached
from longspan.patterns import Full
from longspan.settings import Count, Whole

WIDE = 4096
"""Compiled graphs, which do not know the length, use full blocks up to this size."""


@dataclass(frozen=True, kw_only=True)
class BlockwiseConfig(AttentionConfig):
    """Block i of a text attends to block `(i + shift) mod m`, with a shift for each head; 0 is the block itself.

    The m blocks of a row contain its real tokens and have sizes as equal as possible, so that none is empty: the result
    for a document is the same alone, padded or batched. Global tokens attend to all tokens and are attended to by all.

    Attributes:
        block_tokens: most tokens of a block. A text of T tokens has the fewest blocks that this allows.
        least_blocks: fewest blocks, for texts with at least that many tokens. The published models have 2 or 3, at any
            length: set `least_blocks=2` and a `block_tokens` that no text exceeds.
        shifts: one shift for each head, modulo the number of blocks. If empty, the last sixth of the heads (at least
            one, of several) has shift 1 and the others 0: 2 and 10 of 12, as published for two blocks.
    """

    mechanism: ClassVar[str] = "blockwise"
    cost: ClassVar[str] = "block_tokens, or T / least_blocks where that is less; + 2G"
    source: ClassVar[str] = "Qiu et al. 2020, arXiv 1911.02972, section 3"
    support: ClassVar[Mapping[str, Support]] = {
        "causal": "its blocks are cut by the length of the whole text, which a token cannot know before the end",
    }

    block_tokens: Count = 256
    least_blocks: Count = 1
    shifts: tuple[Whole, ...] = ()

    def blocks_of(self, tokens: int) -> int:
        """Returns the number of blocks m of a text of `tokens` tokens."""
        return min(tokens, max(self.least_blocks, -(-tokens // self.block_tokens)))

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        """Includes the edges; assumes six heads if `shifts` is empty. Every query attends to global tokens, and they to
        every key; a global token in a visible block counts for both.
        """
        if not length:
            return 0.0
        edges = torch.arange(self.blocks_of(length) + 1) * length // self.blocks_of(length)
        sizes, shifts = edges.diff(), self.shifts or (0, 0, 0, 0, 0, 1)
        pairs = sum(int((sizes * sizes.roll(-shift)).sum()) for shift in shifts)
        return min(float(length), pairs / len(shifts) / length + 2 * global_tokens)

    def activations(self) -> Activations:
        """Queries, keys, values and outputs also in the order of the blocks."""
        return Activations(copies=4)

    def lengthening(self, tokens: int = 1) -> Lengthening:
        wide = replace(self, block_tokens=max(self.block_tokens, tokens), least_blocks=1)
        return replace(super().lengthening(tokens), covers=self.blocks_of(tokens) <= 1, widened=wide)

    def depends_on(self, needed: Tensor, *, is_global: Tensor | None = None, causal: bool = False) -> Tensor:
        if not needed.any() or (is_global is not None and bool((needed & is_global).any())):
            return needed.any().expand(needed.shape)
        blocks = self.blocks_of(len(needed))
        block = ((torch.arange(len(needed)) + 1) * blocks - 1) // len(needed)
        visible = torch.zeros(blocks, dtype=torch.bool)
        for shift in set(self.shifts) or {0, 1}:
            visible[(block[needed] + shift) % blocks] = True
        visible = needed | visible[block]
        return visible if is_global is None else visible | is_global

    def build(self, *, width: int, heads: int, causal: bool = False) -> BlockwiseAttention:
        return BlockwiseAttention(self, width=width, heads=heads, causal=causal)


class BlockwiseAttention(ProjectedAttention):
    """The module of `BlockwiseConfig`."""

    config: BlockwiseConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    pattern = Full()

    def __init__(self, config: BlockwiseConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal)
        moved = max(1, round(heads / 6)) if heads > 1 else 0
        self.shifts = config.shifts or (0,) * (heads - moved) + (1,) * moved
        if len(self.shifts) != heads:
            raise InputError(
                f"shifts has {len(self.shifts)} numbers and the attention {heads} heads; give one for each head"
            )

    def context(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        if not (hidden.shape[0] and hidden.shape[1]):
            return hidden
        slots = tokens.with_slots().real_slots()
        query, key, value = self.project(hidden)
        cut = Cut(self.config, tokens.mask, hidden)
        context = self._blocks_context(query, key, value, cut, slots)
        if slots is not None:
            rows = self._attend(gather_slots(query, slots), key, value, tokens.mask)
            context = put_slots(context, rows, slots)
        merged = self.merge_heads(context)
        return merged if tokens.mask is None else merged.masked_fill(~tokens.mask[:, :, None], 0)

    def _blocks_context(self, query: Tensor, key: Tensor, value: Tensor, cut: Cut, slots: Tensor | None) -> Tensor:
        """Computes attention of `(B, H, T, D)` queries to their blocks of keys, and to global keys."""
        paired = cut.paired(_on_device(tuple(self.shifts), query.device))
        near = [_gathered(tensor, paired) for tensor in (key, value)]
        real = paired.flatten(0, 2) >= 0
        if slots is not None:
            beside = ~mask_of_slots(slots, query.shape[2])[:, None].expand(-1, self.heads, -1)
            real = real & _gathered(beside, paired)[:, 0]
            places = slots[:, None, None].expand(*paired.shape[:3], -1)
            near = [
                torch.cat([tensor, _gathered(all_, places)], 2) for tensor, all_ in zip(near, (key, value), strict=True)
            ]
            real = torch.cat([real, places.flatten(0, 2) >= 0], 1)
        mask = None if cut.is_even and slots is None else real
        context = self._attend(_gathered(query, cut.blocks[:, None].expand(paired.shape)), near[0], near[1], mask)
        context = context[:, 0].unflatten(0, (*paired.shape[:2], -1)).flatten(2, 3)
        return context.gather(2, cut.slots[:, None, :, None].expand(-1, self.heads, -1, self.head_width))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return attend(query, key, value, pattern=self.pattern, key_mask=mask, dropout_prob=self.dropout_prob)

    def context_weights(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        query, key, _ = self.project(hidden)
        cut = Cut(self.config, tokens.mask, hidden)
        shift = torch.tensor(self.shifts, device=hidden.device)[None, :, None, None]
        block = cut.block[:, None]
        visible = block[:, :, None] == (block[..., None] + shift) % cut.count[:, None, None, None]
        is_global = tokens.global_mask(hidden.shape[1])
        if is_global is not None:
            visible = visible | is_global[:, None, None] | is_global[:, None, :, None]
        real = cut.mask[:, None]
        return dense_weights(query, key, visible & real[:, :, None] & real[..., None], scale=self.scale)


@cached
def _on_device(shifts: tuple[int, ...], device: torch.device) -> Tensor:
    """Returns the shifts of heads, `(H,)`, copied to the device once for all calls."""
    return torch.tensor(shifts, device=device)


class Cut:
    """The blocks of each row of a batch.

    Attributes:
        mask: `(B, T)` bool, True where a token is real.
        count: `(B,)`, the number of blocks of a row, at least one.
        block: `(B, T)`, the block of each real token.
        blocks: `(B, M, W)`, the positions of the tokens of each block, −1 if there are fewer.
        slots: `(B, T)`, the index of each real token among the M·W places.
        is_even: whether no place is −1, known without reading the data.
    """

    def __init__(self, config: BlockwiseConfig, mask: Tensor | None, hidden: Tensor) -> None:
        batch, length, device = *hidden.shape[:2], hidden.device
        size, least = config.block_tokens, config.least_blocks
        if torch.compiler.is_compiling():  # one graph for every length: no least and greatest, never one block alone
            most = (length + size - 1) // size + least
            width = size if size <= WIDE else (length + least - 1) // least
        else:
            most = max(1, config.blocks_of(length))
            width = -(-length // most) if mask is None else min(size, -(-length // least))
        self.is_even = mask is None and not torch.compiler.is_compiling() and most * width == length
        self.mask = torch.ones(batch, length, dtype=torch.bool, device=device) if mask is None else mask
        tokens = self.mask.sum(1)
        self.count = torch.minimum(tokens, ((tokens + size - 1) // size).clamp(min=least)).clamp(min=1)
        total, count = tokens.clamp(min=1)[:, None], self.count[:, None]
        place = (self.mask.cumsum(1) - 1).clamp(min=0)
        self.block = ((place + 1) * count - 1) // total
        self.slots = self.block * width + place - self.block * total // count
        # The first token of each block, and the position in the padded row of each of its tokens.
        number, inside = torch.arange(most, device=device), torch.arange(width, device=device)
        first = torch.minimum(number * total // count, tokens[:, None])
        last = torch.minimum((number + 1) * total // count, tokens[:, None])
        counted = first[:, :, None] + inside
        taken = counted.clamp(max=length - 1)
        if mask is not None:
            rows = torch.arange(batch, device=device)[:, None, None]
            taken = real_first(mask)[rows, taken]
        self.blocks = torch.where(counted < last[:, :, None], taken, -1)

    def paired(self, shifts: Tensor) -> Tensor:
        """Returns the positions of the keys for each block of queries, `(B, H, M, W)`, with the shifts `(H,)`."""
        number = torch.arange(self.blocks.shape[1], device=shifts.device)
        other = (number + shifts[:, None]) % self.count[:, None, None]
        rows = torch.arange(self.blocks.shape[0], device=shifts.device)[:, None, None]
        return self.blocks[rows, other]


def _gathered(tensor: Tensor, places: Tensor) -> Tensor:
    """Gathers `(B, H, T, …)` at positions `(B, H, M, W)`, −1 for any, as `(B·H·M, 1, W, …)`.

    Gathered as W·M, since a compiled graph can divide by W, which is static, but not by M.
    """
    index, width = places.clamp(min=0).transpose(2, 3).flatten(2), places.shape[3]
    if tensor.ndim == 4:
        index = index[..., None].expand(-1, -1, -1, tensor.shape[3])
    return tensor.gather(2, index).unflatten(2, (width, -1)).transpose(2, 3).flatten(0, 2)[:, None]
