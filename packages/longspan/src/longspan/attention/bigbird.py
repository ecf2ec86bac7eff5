"""BigBird: blocks that attend to their neighbours, to random blocks, and to global tokens; and its published form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.attention.base import Attention, LayerState, ProjectedAttention
from longspan.attention.config import AttentionConfig, AttentionCost, Lengthening
from longspan.attention.parts.tokens import Tokens, real_first
from longspan.attention.parts.windowed import CountedAttention, shifted
from longspan.attention.support import Support, Unless
from longspan.errors import InputError
from longspan.ops.attend import attend
from longspan.ops.runtime import shared_in_pass
from longspan.patterns import Blocks, DrawnBlocks, Full, Pattern, PerHead, PlannedBlocks
from longspan.patterns.random_blocks import MOST_BLOCKS
from longspan.settings import Count, Range, Whole

if TYPE_CHECKING:
    import numpy as np

MOST_HEADS = 1024
"""The number of heads with different random blocks."""


@dataclass(frozen=True, kw_only=True)
class BigBirdConfig(AttentionConfig):
    """Blocks of tokens attend to themselves, their neighbours and random blocks; global tokens attend to all tokens.

    The published "internal" construction (ITC) makes existing tokens global: those of the first and of the last block.
    The "extended" one (ETC) adds `extra_tokens` before the document, and usually has no random blocks and
    `global_blocks=0`. Tokens that are marked as global are global in both.

    Attributes:
        block_tokens: tokens of a block.
        side_blocks: neighbours that a block attends to on each side; the published window of three blocks is 1.
        global_blocks: blocks at each end of the document whose tokens are global.
        extra_tokens: global tokens before the document; blocks are counted after them.
        random_blocks: random blocks that a block attends to, or all remaining ones if there are fewer.
        random: "paper" counts the real tokens of each row, so that the result for a document is the same alone, padded
            or batched, and draws `random_blocks` for every block of queries and every head, uniformly among the blocks
            of the document that are neither its neighbours nor global. The draw depends on the number of blocks, so the
            beginning of a document has other random blocks than the same text alone. "transformers" computes the same
            as transformers' `attention_type="block_sparse"`: up to (5 + 2·random_blocks)·block_tokens tokens full
            attention; beyond, blocks of the padded input, of which random ones can coincide with others and then count
            twice. In evaluation all of them are the first block, which therefore counts 1 + random_blocks times.
        random_scope: the blocks among which "paper" draws: "all"; "prefix1024" those within the first 1,024 tokens, as
            in the released models at 1,024, 3,072 and 4,096 tokens; "plan" as in these at other lengths, mostly among
            the first 2·random_blocks + 5, see `PlannedBlocks`.
        seed: random seed; the published models use the number of the layer.
        drawn_tokens: with "transformers", the positions of the published model, on which its draws depend.
        separate_global_projections: whether global queries use `global_query`, `global_key`, `global_value`.
    """

    mechanism: ClassVar[str] = "bigbird"
    cost: ClassVar[str] = "(2·side_blocks + 1 + random_blocks)·block_tokens + 2G"
    source: ClassVar[str] = "Zaheer et al. 2020, arXiv 2007.14062, section 2"
    support: ClassVar[Mapping[str, Support]] = {
        "causal": "all tokens see the last block",
        "globals": Unless("the published form has none but its first and last blocks", {"random": "paper"}),
        "padding": Unless("blocks are those of the padded text", {"random": "paper"}),
    }

    block_tokens: Count = 64
    side_blocks: Whole = 1
    global_blocks: Whole = 1
    extra_tokens: Whole = 0
    random_blocks: Annotated[int, Range(0, MOST_BLOCKS)] = 3
    random: Literal["paper", "transformers"] = "paper"
    random_scope: Literal["all", "prefix1024", "plan"] = "all"
    seed: Annotated[int, Range(0, 2**20)] = 0
    drawn_tokens: Count = 4096
    separate_global_projections: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.random == "transformers":
            for name, only in PUBLISHED.items():
                if getattr(self, name) != only:
                    raise InputError(
                        f"{name}={getattr(self, name)} is not what transformers' BigBird computes, which has {only}; "
                        "leave it out, or choose random='paper'"
                    )
        if self.random_scope != "all":
            self._check_scope()

    def _check_scope(self) -> None:
        """Raises if `random_scope` has no effect, or leaves nothing to draw."""
        scope = f"random_scope={self.random_scope!r}"
        if self.random == "transformers":
            raise InputError(f"{scope} belongs to random='paper', as 'transformers' draws where it does; leave it out")
        if self.extra_tokens:
            raise InputError(
                f"{scope} counts blocks from the first token, and extra_tokens={self.extra_tokens} come before; choose "
                "random_scope='all'"
            )
        if self.random_scope == "prefix1024" and PREFIX // self.block_tokens <= self.global_blocks:
            raise InputError(
                f"{scope} has no block to draw with block_tokens={self.block_tokens} and "
                f"global_blocks={self.global_blocks}; choose smaller or fewer, or random_scope='all'"
            )

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        around = (2 * self.side_blocks + 1 + self.random_blocks) * self.block_tokens
        return min(float(length), around + 2.0 * (self.own_globals + global_tokens))

    @property
    def own_globals(self) -> int:
        """The number of tokens that are global by their position in a long document: extra ones and the blocks
        at both ends.
        """
        return self.extra_tokens + 2 * self.global_blocks * self.block_tokens

    def lengthening(self, tokens: int = 1) -> Lengthening:
        blocks = 1 + self.side_blocks if self.random == "paper" else 5 + 2 * self.random_blocks
        wide = replace(self, block_tokens=max(self.block_tokens, tokens))
        return replace(super().lengthening(tokens), covers=tokens <= blocks * self.block_tokens, widened=wide)

    def costs(self, *, length: int, width: int, heads: int, causal: bool = False) -> AttentionCost:
        cost = super().costs(length=length, width=width, heads=heads, causal=causal)
        if not self.separate_global_projections or not self.own_globals:
            return cost
        # Queries of the global tokens, keys and values of all.
        return replace(cost, projections=cost.projections + (self.own_globals + 2 * length) * width**2)

    def depends_on(self, needed: Tensor, *, is_global: Tensor | None = None, causal: bool = False) -> Tensor:
        if self.random_blocks or self.random == "transformers" or not needed.any():
            # An upper bound: the random blocks differ by head.
            return needed.any().expand(needed.shape)
        place = torch.arange(len(needed)) - self.extra_tokens
        block = place.div(self.block_tokens, rounding_mode="floor")
        ends = (place < 0) | (block < self.global_blocks) | (block > block[-1] - self.global_blocks)
        if is_global is not None:
            ends = ends | is_global
        if (needed & ends).any():
            return torch.ones_like(needed)
        blocks = torch.zeros(int(block[-1]) + 1, dtype=torch.bool).index_fill(0, block[needed], True)
        near = shifted(blocks, -self.side_blocks, self.side_blocks)
        return ends | near[block.clamp(min=0)]

    def build(self, *, width: int, heads: int, causal: bool = False) -> Attention:
        kind = BigBirdAttention if self.random == "paper" else PublishedBigBirdAttention
        return kind(self, width=width, heads=heads, causal=causal)


PUBLISHED = {"side_blocks": 1, "global_blocks": 1, "extra_tokens": 0, "separate_global_projections": False}
"""Options that the published form does not have."""
PREFIX = 1024
"""The number of tokens among which `random_scope="prefix1024"` draws."""


class BigBirdAttention(CountedAttention):
    """The module of `BigBirdConfig` for `random="paper"`."""

    config: BigBirdConfig

    def make_pattern(self) -> Pattern:
        """Returns the window and random blocks; the global tokens at the document's ends are slots."""
        config = self.config
        size, sides, start = config.block_tokens, config.side_blocks, config.extra_tokens
        window = Blocks(size, sides, sides, start)
        if not config.random_blocks:
            return window
        after = start + config.global_blocks * size  # the global blocks at the beginning are visible anyway
        seeds = [config.seed * MOST_HEADS + head for head in range(self.heads)]
        drawn = [(size, config.random_blocks, seed, after, sides) for seed in seeds]
        ends = config.global_blocks
        if config.random_scope == "plan":
            return PerHead([window | PlannedBlocks(*draw, ends=ends) for draw in drawn])
        within = PREFIX // size - ends if config.random_scope == "prefix1024" else 0
        return PerHead([window | DrawnBlocks(*draw, ends=ends, within=within) for draw in drawn])

    def context(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        return super().context(hidden, self.with_ends(hidden, tokens), state)

    def context_weights(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        return super().context_weights(hidden, self.with_ends(hidden, tokens))

    def with_ends(self, hidden: Tensor, tokens: Tokens) -> Tokens:
        """Returns the tokens of `hidden` `(B, T, E)`, including those that are global by their position."""
        (batch, length), tokens = hidden.shape[:2], tokens.with_slots()
        if not length:
            return replace(tokens, is_global=None, global_slots=None)
        config = self.config
        ends = (config.extra_tokens, config.global_blocks * config.block_tokens, config.block_tokens)
        slots = _slots_with_ends(*ends, batch, length, hidden.device, tokens.mask, tokens.global_slots)
        return replace(tokens, is_global=None, global_slots=slots if slots.shape[1] else None)


@shared_in_pass
def _slots_with_ends(
    extra: int,
    each: int,
    size: int,
    batch: int,
    length: int,
    device: torch.device,
    mask: Tensor | None,
    others: Tensor | None,
) -> Tensor:
    """Returns slots `(B, G)` of the global `others`, of the first `extra` and the `each` following real tokens, and of
    `each` in the last blocks of `size` tokens.
    """
    count = torch.full((batch, 1), length, device=device) if mask is None else mask.sum(1, keepdim=True)
    first = torch.arange(extra + each, device=device).expand(batch, -1)
    block_after = torch.div(count - extra - 1, size, rounding_mode="floor") + 1
    last = block_after * size + extra - each + torch.arange(each, device=device)
    slots = torch.cat([first, last], 1)
    slots = torch.where((slots >= 0) & (slots < count), slots, -1)
    if mask is not None:
        slots = torch.where(slots < 0, -1, real_first(mask).gather(1, slots.clamp(min=0)))
    return slots if others is None else torch.cat([others, slots], 1)


class PublishedBigBirdAttention(ProjectedAttention):
    """The module of `BigBirdConfig` for `random="transformers"`: each block of queries with its blocks of keys."""

    config: BigBirdConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    pattern = Full()

    def context(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        if self._is_short(hidden.shape[1]):
            return super().context(hidden, tokens)
        context = self.merge_heads(self._context(*self.project(hidden), tokens.mask))
        return context if tokens.mask is None else context.masked_fill(~tokens.mask[:, :, None], 0)

    def _is_short(self, length: int) -> bool:
        """Whether transformers uses full attention at this length."""
        return length <= (5 + 2 * self.config.random_blocks) * self.config.block_tokens

    def _context(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Computes attention of `(B, H, T, D)` queries: the first and last block to all keys, the others
        to their blocks.
        """
        size, (batch, heads, length) = self.config.block_tokens, query.shape[:3]
        table, present = (tensor.to(query.device) for tensor in self._blocks(length))
        blocks = table.shape[1] + 2
        missing = blocks * size - length
        real = torch.ones(batch, length, dtype=torch.bool, device=query.device) if mask is None else mask
        real = F.pad(real, (0, missing))
        query, key, value = (F.pad(tensor, (0, 0, 0, missing)) for tensor in (query, key, value))
        ends = torch.cat([query[:, :, :size], query[:, :, -size:]], 2)
        ends = attend(ends, key, value, pattern=self.pattern, key_mask=real)
        head = torch.arange(heads, device=query.device)[:, None, None]
        middle = query.unflatten(2, (blocks, size))[:, :, 1:-1].flatten(0, 2)[:, None]
        # The gradient of selected rows is added row by row, that of an index by pairs number by number.
        places = (head * blocks + table).flatten()
        near = [tensor.unflatten(2, (blocks, size)).flatten(1, 2).index_select(1, places) for tensor in (key, value)]
        near = [tensor.unflatten(1, table.shape).flatten(3, 4).flatten(0, 2)[:, None] for tensor in near]
        visible = real.unflatten(1, (blocks, size))[:, table] & present[..., None]
        context = attend(middle, *near, pattern=self.pattern, key_mask=visible.flatten(3).flatten(0, 2))
        context = context.reshape(batch, heads, -1, context.shape[-1])
        return torch.cat([ends[:, :, :size], context, ends[:, :, size:]], 2)[:, :, :length]

    def _blocks(self, length: int) -> tuple[Tensor, Tensor]:
        """Returns the blocks `(H, N − 2, 5 + r)` that each block but the ends attends to, and which of these
        are no duplicates.
        """
        count, blocks = self.config.random_blocks, -(-length // self.config.block_tokens)
        row = torch.arange(1, blocks - 1)[:, None]
        columns = torch.cat([0 * row, row - 1, row, row + 1, 0 * row + blocks - 1], 1)
        # The second block and the last but one have a global block as neighbour, and attend to it once.
        once = torch.cat([row > 0, row > 1, row > 0, row < blocks - 2, row > 0], 1)
        drawn = torch.zeros(self.heads, blocks - 2, count, dtype=torch.int64)
        if self.training:
            config = self.config
            tables = published_draws(
                config.seed, self.heads, count, config.block_tokens, blocks, config.drawn_tokens // config.block_tokens
            )
            drawn = torch.from_numpy(tables)
        table = torch.cat([columns.expand(self.heads, -1, -1), drawn], 2)
        return table, F.pad(once, (0, count), value=True).expand(table.shape)

    def context_weights(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        """Counts a key that is visible n times with n times the weight."""
        length = hidden.shape[1]
        if self._is_short(length):
            return super().context_weights(hidden, tokens)
        query, key, _ = self.project(hidden)
        table, present = self._blocks(length)
        times = torch.zeros(self.heads, table.shape[1], table.shape[1] + 2).scatter_add(2, table, present.float())
        times = F.pad(times, (0, 0, 1, 1), value=1.0)
        for side in (1, 2):
            times = times.repeat_interleave(self.config.block_tokens, side)
        bias = times[:, :length, :length].to(query).log()
        weights = self.dense_weights(query, key, tokens, bias=bias)
        return weights if tokens.mask is None else weights * tokens.mask[:, None, :, None]


@lru_cache(maxsize=64)
def published_draws(seed: int, heads: int, count: int, size: int, blocks: int, most: int) -> np.ndarray:
    """Returns random blocks `(H, N − 2, r)` as transformers draws them in training, for all rows but the first
    and the last.

    They come from numpy's generator with the `seed` of each layer, in whole permutations in a fixed order. N = `blocks`
    of `size` tokens make the padded input; `most` is the longest input of the model.

    Raises:
        InputError: there are fewer than r = `count` blocks to draw from.
    """
    import numpy as np

    generator = np.random.RandomState(seed)
    drawn = np.zeros((heads, blocks - 2, count), dtype=np.int64)
    if blocks * size in (1024, 3072, 4096):  # lengths with a plan of their own: all rows of a head, then the next
        for head in range(heads):
            for row in range(1, most - 1):
                blocks_of_row = generator.permutation(_early_blocks(row, size, most))[:count]
                if row > blocks - 2:
                    continue
                if len(blocks_of_row) not in (1, count):  # numpy broadcasts one block to all places
                    raise InputError(
                        f"random_blocks={count} are more than transformers can draw at {blocks * size} tokens; choose "
                        "fewer, smaller blocks, or random='paper'"
                    )
                drawn[head, row - 1] = blocks_of_row
        return drawn
    # Others draw among a fixed number of blocks at the beginning: all heads of a row, then the next.
    first = 2 * count + 5
    for row in range(1, blocks if count else 1):
        hidden = {0, row - 1, row, row + 1, first - 1} | {1: {first - 2}, first - 2: {1}}.get(row, set())
        for head in range(heads):
            blocks_of_row = [block for block in generator.permutation(first) if block not in hidden][:count]
            if row <= blocks - 2:
                drawn[head, row - 1] = blocks_of_row
    return drawn


def _early_blocks(row: int, size: int, most: int) -> np.ndarray:
    """Returns the blocks among which transformers draws for a row: those of the first 1024 tokens
    except its neighbours.

    The last rows do not exclude the neighbours.
    """
    import numpy as np

    blocks = np.arange(1, most - 1)
    end = 1024 // size - 1 if 2 * size < 1024 else most - 1
    if row > 2 and row in (most - 3, most - 2):
        return blocks[:end]
    return np.concatenate([blocks[: min(max(row - 2, 0), end)], blocks[row + 1 : end]])
