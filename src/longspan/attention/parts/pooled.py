"""The forward pass of levels: a window, then attention from the sum of the levels below to pools of that sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longspan.attention.base import LayerState
from longspan.attention.parts.levels import Pools
from longspan.attention.parts.tokens import Tokens, in_order, inverse_order
from longspan.attention.parts.windowed import WindowedAttention
from longspan.errors import InputError
from longspan.ops.attend import attend
from longspan.ops.tiles.pooling import pool, pool_reference, pool_shares, slot_mask
from longspan.patterns import PooledWindow, Window

if TYPE_CHECKING:
    from longspan.attention.parts.pooled_state import PoolState


class PooledAttention(WindowedAttention):
    """A window, and levels over pools, whose weights a subclass makes in `add_weights`.

    Parts of the second level have no number in their names, those of further ones have: `pooled_key_3`.

    Attributes:
        pools: the levels beyond the first.
    """

    pools: tuple[Pools, ...]

    @property
    def levels(self) -> range:
        """The numbers of the levels beyond the first."""
        return range(2, 2 + len(self.pools))

    def projection(self, name: str, level: int = 2) -> nn.Linear:
        """A further level's `query`, `key` or `value` projection `(E, E)`: that of the first where levels are tied."""
        return getattr(self, name if self.config.tie_levels else numbered(f"pooled_{name}", level))

    def pool_weight(self, name: str, level: int = 2) -> Tensor | None:
        """LDConv's weight `(H, κ, D)` of a level's keys or values; `None` with another pooling."""
        learned = self.pools[level - 2].pooling == "ldconv"
        return getattr(self, numbered(f"pool_{name}_weight", level)) if learned else None

    def new_state(self) -> LayerState:
        """Keys and values within reach, and of every further level its pools, where the form is causal."""
        if not (self.causal and self.pools):
            return super().new_state()
        from longspan.attention.parts.pooled_state import PooledLayer

        return PooledLayer(self.config.left_tokens, self.pools)

    window_context = WindowedAttention.context

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
        """What a state holds of each further level; `None` without one."""
        if state is None:
            return None
        if not self.pools:
            return []
        from longspan.attention.parts.pooled_state import PooledLayer

        if not isinstance(state, PooledLayer):
            raise InputError(f"state is a {type(state).__name__}, which keeps no pools; give attention.new_state()")
        return state.levels

    def pooled_context(self, below: Tensor, tokens: Tokens, level: int = 2) -> Tensor:
        """What a level adds to the sum of those below it, before the output projection: `(B, T, E)` both."""
        below, mask, back = self._from_the_first(below, tokens)
        context = self.merge_heads(self.attend_pools(*self._project_pools(below, level), mask, level))
        context = context if mask is None else context.masked_fill(~mask[:, :, None], 0)
        return in_order(context, back)

    def _from_the_first(self, below: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Rows that begin with a real token, on which the grid of shared pools lies, their mask, and the way back."""
        order = tokens.places_from_the_first() if self.pools[0].shared else None
        if order is None or tokens.mask is None:
            return below, tokens.mask, None
        return in_order(below, order), in_order(tokens.mask, order), inverse_order(order)

    def _project_pools(self, below: Tensor, level: int) -> tuple[Tensor, Tensor, Tensor]:
        """A level's queries, keys and values before pooling, `(B, H, T, D)` each."""
        query, key, value = (
            self.split_heads(self.projection(name, level)(below)) for name in ("query", "key", "value")
        )
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
        """A level without projections: keys and values are pooled here; `(B, H, T, D)` each and out.

        Args:
            dense: give the weights of the tokens `(B, H, T, T)` in place of what they gather, as the values are pooled.
        """
        pools, length = self.pools[level - 2], query.shape[2]
        stride = pools.stride if pools.shared else 1
        if pools.shared and torch.compiler.is_compiling():
            # A graph for every length would demand two pools. Padding adds one that nobody sees.
            mask = key.new_ones((key.shape[0], length), dtype=torch.bool) if mask is None else mask
            mask = F.pad(mask, (0, stride), value=False)
            key, value = (F.pad(each, (0, 0, 0, stride)) for each in (key, value))
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
        """Pools of keys or values, `(B, H, T, D)` → `(B, H, ⌈T / stride⌉, D)`, or the shares of tokens in them."""
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
        """Every query looks at every `stride`-th pool, counted from its own window's left end.

        Pools are taken around every token. Shifted by that phase, they make this a window dilated by the stride, which
        `attend` computes residue by residue; no window is ever materialised. Queries and pools are filled up to the
        same length.
        """
        length = query.shape[2]
        shift, before, after = pools.phase()
        ahead, behind = max(shift, 0), max(-shift, 0)
        real = query.new_ones((query.shape[0], length), dtype=torch.bool) if mask is None else mask
        key, value = (F.pad(each[:, :, behind:], (0, 0, ahead, behind)) for each in (key, value))
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
        """As `pooled_context`, of tokens that continue a sequence whose pools a state holds: `(B, T, E)` both."""

        def pooled(name: str, hidden: Tensor, mask: Tensor | None) -> Tensor:
            few = hidden.shape[2] <= 4 * self.pools[level - 2].kernel  # gathering all taps takes one step, not κ
            return self._pool(pool_reference if few else pool, name, hidden, mask, level)

        context = state.attend(*self._project_pools(below, level), tokens, pooled, self.dropout_prob)
        mask = tokens.last_mask(below.shape[1])
        context = self.merge_heads(context)
        return context if mask is None else context.masked_fill(~mask[:, :, None], 0)

    def weights(self, hidden: Tensor, tokens: Tokens | None = None, level: int | None = None) -> Tensor:
        """Dense weights `(B, H, T, T)` of one level, or the mean of all; rows of padded queries are 0.

        A further level's weights are spread over the tokens of each pool as the value pooling weighs them; for `"max"`,
        by the share of channels each token won. They are weights over the sum of the levels below it.
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
        """A level's weights over the tokens of the sum `(B, T, E)` of the levels below it: `(B, H, T, T)`."""
        below, mask, back = self._from_the_first(below, tokens)
        wide = torch.promote_types(below.dtype, torch.float32)
        query, key, value = (each.to(wide) for each in self._project_pools(below, level))
        weights = self.attend_pools(query, key, value, mask, level, dense=True)
        weights = weights if mask is None else weights * mask[:, None, :, None]
        return in_order(weights, back, 2, 3)


def numbered(name: str, level: int) -> str:
    """The name of a part of a level beyond the first."""
    return name if level == 2 else f"{name}_{level}"
