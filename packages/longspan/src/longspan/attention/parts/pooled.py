"""Levels over pools: their receptive fields, and the forward pass, in which each level attends from the sum of the
levels below it to pools of that sum. The first level is a window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longspan.attention.base import LayerState
from longspan.attention.parts.tokens import Tokens, in_order, inverse_order, places_from
from longspan.attention.parts.windowed import WindowedAttention, pairs_within, shifted
from longspan.errors import InputError
from longspan.ops.attend import attend
from longspan.ops.tiles.pooling import pool, pool_reference, pool_shares, slot_mask
from longspan.patterns import PooledWindow, Window
from longspan.settings import Range

if TYPE_CHECKING:
    from longspan.attention.parts.pooled_state import PoolState


Pooling = Literal["ldconv", "mean", "max"]
PoolSize = Annotated[int, Range(1, 4096)]


@dataclass(frozen=True, kw_only=True)
class Pools:
    """A level beyond the first: a window over pools of the outputs of the levels below it.

    Attributes:
        left_tokens, right_tokens: the window in tokens; a query attends to the pools whose whole kernel lies inside it.
        kernel, stride: tokens per pool, κ, and from one pool to the next, ξ.
        pooling: how a pool is computed from its tokens.
        shared: whether the sequence is pooled once; otherwise the window of every query is.
    """

    left_tokens: int
    right_tokens: int
    kernel: int
    stride: int
    pooling: Pooling
    shared: bool = True

    @property
    def before(self) -> int:
        """The number of tokens of a pool before its centre."""
        return self.kernel // 2

    @property
    def after(self) -> int:
        """The number of tokens of a pool after its centre."""
        return self.kernel - 1 - self.before

    @property
    def centre_reach(self) -> tuple[int, int]:
        """How far left and right of a query a pool's centre can be if its whole kernel is in the window."""
        return self.left_tokens - self.before, self.right_tokens - self.after

    @property
    def pattern(self) -> PooledWindow:
        """The pools that a query attends to, of a sequence that is pooled once."""
        return PooledWindow(self.left_tokens, self.right_tokens, self.kernel, self.stride)

    def pool_count(self, length: int) -> int:
        """Returns the number of pools of `length` tokens."""
        return -(-length // self.stride) if self.shared else length

    def complete(self, length: int) -> int:
        """Returns how many pools of a sequence that is pooled once have their last token among the first `length`."""
        return max(0, (length - 1 - self.after) // self.stride + 1)

    def pairs(self, length: int) -> int:
        """Returns the number of pairs of a query and a visible pool, for `length` tokens."""
        left, right = self.centre_reach
        if not self.shared:
            return pairs_within(length, -left, right, self.stride)
        centres = torch.arange(0, length, self.stride)
        seen = (centres + left).clamp(max=length - 1) - (centres - right).clamp(min=0) + 1
        return int(seen.clamp(min=0).sum())

    def centres_of(self, needed: Tensor) -> Tensor:
        """Returns the centres of the pools that the `needed` queries attend to, both `(T,)` bool."""
        left, right = self.centre_reach
        if not self.shared:
            return shifted(needed, -left, right, self.stride)
        return shifted(needed, -left, right) & (torch.arange(len(needed)) % self.stride == 0)

    def tokens_of(self, centres: Tensor) -> Tensor:
        """Returns the tokens in the pools around these centres, both `(T,)` bool."""
        return shifted(centres, -self.before, self.after)

    def phase(self) -> tuple[int, int, int]:
        """Returns how far to shift a query's own pools so that one of the centres `i − left + m·stride` is i, and how
        many of them are before and after that one.
        """
        left, right = self.centre_reach
        count = (left + right) // self.stride + 1
        before = min(max(0, left // self.stride), count - 1)
        return left - before * self.stride, before, count - 1 - before

    @property
    def reach(self) -> tuple[int, int]:
        """Returns the most tokens on each side that a query depends on through pools."""
        left, right = self.centre_reach
        if not self.shared:  # the last centre can be before the window's end
            right -= (left + right) % self.stride
        return self.left_tokens, max(0, right + self.after)

    def furthest(self, token: Tensor, left: bool) -> Tensor:
        """Returns the furthest token to one side in the pools that these tokens attend to, each to at least one."""
        reach = self.centre_reach
        if not self.shared:
            return token - self.left_tokens if left else token + self.reach[1]
        if left:
            centre = -((reach[0] - token) // self.stride) * self.stride
            return torch.minimum(token, centre - self.before)
        return torch.maximum(token, (token + reach[1]) // self.stride * self.stride + self.after)


def furthest_reach(levels: Sequence[Pools], period: int) -> tuple[int, int]:
    """Returns how far to each side the last of these levels reaches, through all of them.

    At most the sum of their windows; less if the pools of one level do not end where the next level's begin: then the
    furthest over one period is computed.
    """
    left, right = (sum(sides) for sides in zip(*(pools.reach for pools in levels), strict=True))
    every_token_sees_one = all(not pools.shared or sum(pools.centre_reach) >= pools.stride - 1 for pools in levels)
    if len(levels) == 1 or not every_token_sees_one or period > 1 << 16:
        return left, right
    places = torch.arange(period)
    first = last = places
    for pools in reversed(levels):
        first, last = pools.furthest(first, left=True), pools.furthest(last, left=False)
    return int((places - first).max()), int((last - places).max())


class PooledAttention(WindowedAttention):
    """A window, and levels over pools, whose weights a subclass creates in `add_weights`.

    Weights of the second level have no number in their names, those of further levels have one: `pooled_key_3`.

    Attributes:
        pools: the levels beyond the first.
    """

    pools: tuple[Pools, ...]

    @property
    def window_alone(self) -> bool:
        return not self.pools

    @property
    def levels(self) -> range:
        """The indices of the levels beyond the first."""
        return range(2, 2 + len(self.pools))

    def projection(self, name: str, level: int = 2) -> nn.Linear:
        """Returns a further level's `query`, `key` or `value` projection `(E, E)`: that of the first if
        levels are tied.
        """
        return getattr(self, name if self.config.tie_levels else numbered(f"pooled_{name}", level))

    def pool_weight(self, name: str, level: int = 2) -> Tensor | None:
        """Returns LDConv's weight `(H, κ, D)` of a level's keys or values; `None` for other poolings."""
        learned = self.pools[level - 2].pooling == "ldconv"
        return getattr(self, numbered(f"pool_{name}_weight", level)) if learned else None

    def new_state(self) -> LayerState:
        """Returns a state of keys and values within reach, and of the pools of every further level, if causal."""
        if not (self.causal and self.pools):
            return super().new_state()
        from longspan.attention.parts.pooled_state import PooledLayer

        return PooledLayer(self.config.left_tokens, self.pools)

    def context(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        total = self.window_context(hidden, tokens, state)
        states = self._pool_states(state)
        for level in self.levels:
            if states is None:
                total = total + self.pooled_context(total, tokens, level)
            else:
                total = total + self._continued(total, tokens, level, states[level - 2])
        return total

    def _pool_states(self, state: LayerState | None) -> list[PoolState] | None:
        """Returns the state of each further level; `None` without a state."""
        if state is None:
            return None
        if not self.pools:
            return []
        from longspan.attention.parts.pooled_state import PooledLayer

        if not isinstance(state, PooledLayer):
            raise InputError(f"state is a {type(state).__name__}, which keeps no pools; give attention.new_state()")
        return state.levels

    def pooled_context(
        self, below: Tensor, tokens: Tokens, level: int = 2, before: Tensor | Literal[0] | None = None
    ) -> Tensor:
        """Computes the output of a level for the sum of those below it, before the output projection, both `(B, T,
        E)`. The grid of shared pools begins after `before` `(B,)` places, which are ignored; by default at the
        first real token.
        """
        below, mask, back = self._from_the_first(below, tokens, before)
        context = self.merge_heads(self.attend_pools(*self._project_pools(below, level), mask, level))
        context = context if mask is None else context.masked_fill(~mask[:, :, None], 0)
        return in_order(context, back)

    def _from_the_first(
        self, below: Tensor, tokens: Tokens, before: Tensor | Literal[0] | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Moves the first real token of each row, where the grid of shared pools begins, to the front. Also returns the
        mask and the inverse order.
        """
        mask = tokens.mask
        if mask is None or isinstance(before, int) or not self.pools[0].shared:
            return below, mask, None
        order = tokens.places_from_the_first() if before is None else places_from(before, mask.shape[1])
        if order is None:
            return below, mask, None
        shown = in_order(mask, order)
        if before is not None:  # positions before the grid may be real
            shown = shown & (order >= before[:, None])
        return in_order(below, order), shown, inverse_order(order)

    def _project_pools(self, below: Tensor, level: int) -> tuple[Tensor, Tensor, Tensor]:
        """Projects a level's queries, keys and values before pooling, `(B, H, T, D)` each."""
        query, key, value = (self.heads_of(self.projection(name, level), below) for name in ("query", "key", "value"))
        return query, key, value

    def attend_pools(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        level: int = 2,
        *,
        dense: bool = False,
    ) -> Tensor:
        """Computes a level without projections; keys and values are pooled here, all `(B, H, T, D)`.

        Args:
            dense: return the weights of the tokens `(B, H, T, T)` instead of the outputs, spread as the
                values are pooled.
        """
        pools, length = self.pools[level - 2], query.shape[2]
        stride = pools.stride if pools.shared else 1
        if pools.shared and torch.compiler.is_compiling():
            # A graph for every length requires two pools. Padding adds one that no query attends to.
            mask = key.new_ones((key.shape[0], length), dtype=torch.bool) if mask is None else mask
            mask = F.pad(mask, (0, stride), value=False)
            key, value = (F.pad(tensor, (0, 0, 0, stride)) for tensor in (key, value))
        key = self._pool(pool, "key", key, mask, level)
        value = self._pool(pool_shares if dense else pool, "value", value, mask, level)
        options: dict[str, Any] = {"backend": "reference"} if dense else {"dropout_prob": self.dropout_prob}
        if not pools.shared:
            return self._per_query(query, key, value, mask, pools, options)
        window = PooledWindow(pools.left_tokens, pools.right_tokens, pools.kernel, stride)
        return attend(query, key, value, pattern=window, key_mask=slot_mask(mask, stride), **options)

    def _pool(
        self, pooled: Callable[..., Tensor], name: str, hidden: Tensor, mask: Tensor | None, level: int
    ) -> Tensor:
        """Pools keys or values, `(B, H, T, D)` → `(B, H, ⌈T / stride⌉, D)`, or returns the shares of tokens
        in the pools.
        """
        pools = self.pools[level - 2]
        return pooled(
            hidden,
            kernel=pools.kernel,
            stride=pools.stride if pools.shared else 1,
            pooling=pools.pooling,
            mask=mask,
            weight=self.pool_weight(name, level),
        )

    def _per_query(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, pools: Pools, options: dict[str, Any]
    ) -> Tensor:
        """Attends from every query to every `stride`-th pool, counted from its own window's left end.

        Pools are computed around every token. Shifted by `phase`, they become a window dilated by the stride,
        which `attend` computes residue by residue; no window is ever materialised. Queries and pools are padded to
        the same length.
        """
        length = query.shape[2]
        shift, before, after = pools.phase()
        ahead, behind = max(shift, 0), max(-shift, 0)
        real = query.new_ones((query.shape[0], length), dtype=torch.bool) if mask is None else mask
        key, value = (F.pad(tensor[:, :, behind:], (0, 0, ahead, behind)) for tensor in (key, value))
        context = attend(
            F.pad(query, (0, 0, 0, ahead)),
            key,
            value,
            pattern=Window(before, after, pools.stride),
            key_mask=F.pad(real[:, behind:], (ahead, behind), value=False),
            **options,
        )
        return context[:, :, :length]

    def _continued(self, below: Tensor, tokens: Tokens, level: int, state: PoolState) -> Tensor:
        """As `pooled_context`, for tokens that continue a sequence with a state of pools, both `(B, T, E)`."""

        def pooled(name: str, hidden: Tensor, mask: Tensor | None) -> Tensor:
            few = hidden.shape[2] <= 4 * self.pools[level - 2].kernel  # gathering all taps takes one step, not κ
            return self._pool(pool_reference if few else pool, name, hidden, mask, level)

        context = state.attend(*self._project_pools(below, level), tokens, pooled, self.dropout_prob)
        mask = tokens.last_mask(below.shape[1])
        context = self.merge_heads(context)
        return context if mask is None else context.masked_fill(~mask[:, :, None], 0)

    def weights(self, hidden: Tensor, tokens: Tokens | None = None, level: int | None = None) -> Tensor:
        """Returns dense weights `(B, H, T, T)` of one level, or the mean of all; rows of padded queries are 0.

        A further level's weights are spread over the tokens of each pool as the value pooling weights them; for
        `"max"`, by the share of channels for which each token is the maximum. They refer to the sum of the
        levels below it.
        """
        tokens, last = tokens or Tokens(), 1 + len(self.pools)
        if level is not None and level not in range(1, last + 1):
            levels = "1" if last == 1 else f"1 to {last}"
            raise InputError(
                f"level={level!r} is no level of {self.config.describe()}; give {levels}, or None for the mean of all"
            )
        every = [super().weights(hidden, tokens)]
        total = self.window_context(hidden, tokens) if self.pools and level != 1 else hidden
        for number in self.levels if level is None else range(2, level + 1):
            every.append(self._pooled_weights(total, tokens, number))
            total = total + self.pooled_context(total, tokens, number)
        return sum(every[1:], every[0]) / len(every) if level is None else every[level - 1]

    def _pooled_weights(self, below: Tensor, tokens: Tokens, level: int) -> Tensor:
        """Returns a level's weights over the tokens of the sum `(B, T, E)` of the levels below it, `(B, H, T, T)`."""
        below, mask, back = self._from_the_first(below, tokens)
        wide = torch.promote_types(below.dtype, torch.float32)
        query, key, value = (tensor.to(wide) for tensor in self._project_pools(below, level))
        weights = self.attend_pools(query, key, value, mask, level, dense=True)
        weights = weights if mask is None else weights * mask[:, None, :, None]
        return in_order(weights, back, 2, 3)


def numbered(name: str, level: int) -> str:
    return name if level == 2 else f"{name}_{level}"
