"""States of pooled levels in their causal form, and attention of tokens that continue a sequence.

Pools of a row lie on a grid that begins with its first real token. The grids of rows that begin with padding are
shifted, so each row is moved to the right, by less than the stride, until all grids align: then a pool has the same
index in every row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from longspan.attention.parts.state import WindowLayer
from longspan.attention.parts.tokens import Tokens, in_order
from longspan.ops.attend import attend
from longspan.patterns import Full

Pools = Any
"""A `Pools` of `longspan.attention.parts.pooled`, which imports this module."""


class PoolState:
    """The state of one level, in constant memory: keys and values of the tokens of unfinished pools, and the finished
    pools that a later token can attend to.

    Args:
        pools: the level, causal.
    """

    def __init__(self, pools: Pools) -> None:
        self.pools = pools
        # A row's grid can lag behind another's by a stride, so its open pool begins that much earlier.
        self.recent = WindowLayer(pools.kernel - 1 + pools.stride - 1)
        self.finished = WindowLayer(max(1, (pools.left_tokens - pools.kernel) // pools.stride + 1))

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        tokens: Tokens,
        pooled: Callable[[str, Tensor, Tensor | None], Tensor],
        dropout_prob: float,
    ) -> Tensor:
        """Appends T tokens and computes their attention to the visible pools, `(B, H, T, D)` each.

        Args:
            tokens: properties of all S tokens so far, with the mask `(B, S)`.
            pooled: `(name, hidden, mask)` → pools of `(B, H, N, D)` keys or values, one for each stride.
        """
        pools, past, new = self.pools, self.recent.get_seq_length(), query.shape[2]
        if not new:
            return query
        recent = self.recent.update(key, value)
        leading = tokens.leading_places()
        shift = None if leading is None else (-leading[:, None]) % pools.stride
        number, done = pools.complete(past), pools.complete(past + new)
        if shift is None and number == done:  # a pool is finished once it is finished in all rows
            keys, values = (tensor[:, :, :0] for tensor in recent)
        else:
            local, mask, start = self._on_the_grid(recent, past + new, tokens.mask, shift)
            keys, values = (
                pooled(name, tensor, mask)[:, :, number - start // pools.stride :]
                for name, tensor in zip(("key", "value"), local, strict=True)
            )
        kept = self.finished.update(keys[:, :, : done - number], values[:, :, : done - number])
        first = done - kept[0].shape[2]
        if shift is None:
            keys, values = kept
        else:
            keys, values = (
                torch.cat([tensor, more[:, :, done - number :]], 2)
                for tensor, more in zip(kept, (keys, values), strict=True)
            )
        centres = (first + torch.arange(keys.shape[2], device=query.device)) * pools.stride
        real = None if tokens.mask is None else _at(tokens.mask, centres[None] if shift is None else centres - shift)
        options = {"dropout_prob": dropout_prob, "query_offset": past - first * pools.stride}
        if shift is None:
            return attend(query, keys, values, pattern=pools.pattern, key_mask=real, **options)
        assert real is not None
        if new == 1:  # the visible pools of the one token differ by row
            visible = pools.pattern.visible(past + shift, centres[None] // pools.stride) & real
            return attend(query, keys, values, pattern=Full(), key_mask=visible, dropout_prob=dropout_prob)
        places = torch.arange(new + pools.stride - 1, device=query.device) - shift
        query = in_order(query, places.clamp(0, new - 1), 2)
        context = attend(query, keys, values, pattern=pools.pattern, key_mask=real, **options)
        return in_order(context, torch.arange(new, device=query.device) + shift, 2)

    def _on_the_grid(
        self, recent: Sequence[Tensor], end: int, mask: Tensor | None, shift: Tensor | None
    ) -> tuple[list[Tensor], Tensor | None, int]:
        """Returns the last tokens up to `end`, shifted, from the centre of a pool on; their mask; and
        the centre's position.
        """
        held = recent[0].shape[2]
        first = end - held
        start = first - first % self.pools.stride
        if shift is None:
            local = [F.pad(tensor, (0, 0, first - start, 0)) for tensor in recent]
            if mask is None and start == first:
                return local, None, start
            real = recent[0].new_ones(len(recent[0]), held, dtype=torch.bool) if mask is None else mask[:, first:end]
            return local, F.pad(real, (first - start, 0), value=False), start
        assert mask is not None
        places = torch.arange(start, end + self.pools.stride - 1, device=mask.device) - shift
        local = [in_order(tensor, (places - first).clamp(0, held - 1), 2) for tensor in recent]
        return local, _at(mask, places) & (places >= first), start

    @property
    def layers(self) -> tuple[WindowLayer, WindowLayer]:
        """Returns both windows."""
        return self.recent, self.finished

    def crop(self, tokens_to_remove: int) -> None:
        tokens = self.recent.get_seq_length()
        self.recent.crop(tokens_to_remove)
        self.finished.crop(self.pools.complete(tokens + tokens_to_remove) - self.pools.complete(tokens))


class PooledLayer(WindowLayer):
    """Keys and values of the first level's window, and the state of each further level.

    Args:
        reach: how many past positions a later token can attend to at the first level.
        pools: the further levels, causal.
    """

    def __init__(self, reach: int, pools: Sequence[Pools]) -> None:
        super().__init__(reach)
        self.levels = [PoolState(level) for level in pools]

    @property
    def _further(self) -> Iterator[WindowLayer]:
        return (layer for level in self.levels for layer in level.layers)

    def reset(self) -> None:
        super().reset()
        for layer in self._further:
            layer.reset()

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)
        for level in self.levels:
            level.crop(int(tokens_to_remove))

    def offload(self) -> None:
        super().offload()
        for layer in self._further:
            layer.offload()

    def prefetch(self) -> None:
        super().prefetch()
        for layer in self._further:
            layer.prefetch()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)  # pyright: ignore[reportArgumentType]
        self._change(lambda hidden: hidden[beam_idx.to(hidden.device)])

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._change(lambda hidden: hidden[indices.to(hidden.device)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._change(lambda hidden: hidden.repeat_interleave(repeats, dim=0))

    def _change(self, change: Callable[[Tensor], Tensor]) -> None:
        """Applies `change` to the rows of every level, including levels without a finished pool."""
        for layer in self._further:
            if layer.keys is not None and layer.values is not None:
                layer.keys, layer.values = change(layer.keys), change(layer.values)


def _at(mask: Tensor, places: Tensor) -> Tensor:
    """Returns the mask `(B, S)` at places `(B or 1, N)`; False outside."""
    inside = (places >= 0) & (places < mask.shape[1])
    return mask.gather(1, places.clamp(0, mask.shape[1] - 1).expand(len(mask), -1)) & inside
