"""Causal patterns inside unmodified transformers decoders: positions of tokens, and attention over cached keys.

transformers passes only tensors to the attention of a layer, so the positions replace its mask: `(B or 1, 1, 1, S + T +
1)` int64, the positions of the keys, those of the queries, and the model's own sliding window. A position is the number
of real tokens before a token, −1 for padding: the output of a row does not depend on padding on the left, on the right
or in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.errors import InputError
from longspan.ops.attend import attend
from longspan.patterns import Causal, Pattern, Span, Window
from longspan.patterns.base import shortened

FEW_QUERIES = 32
"""Up to this many queries, one mask over all keys is cheaper than a tile layout for each new length."""
MOST_RANGES = 8
"""Up to this many ranges of keys are copied as slices; more are gathered by index."""
MOST_PAIRS = 1 << 22
"""Query–key pairs whose visibility is computed at once if the first keys of a cache have been dropped."""


def position_mask(
    attention_mask: Tensor | None,
    queries: tuple[int | Tensor, int],
    keys: tuple[int, int],
    window: int | None,
    device: torch.device | str,
) -> Tensor:
    """Returns the tensor of positions that replaces a decoder's mask; `queries` and `keys` are the first index and the
    length of each.

    Raises:
        InputError: `attention_mask` ends before the last query, or has holes in combination with a sliding window.
    """
    if attention_mask is not None:
        device = attention_mask.device
    first_key, last_key = keys[0], keys[0] + keys[1]
    query_index = torch.arange(queries[1], device=device) + queries[0]
    if attention_mask is None:
        positions = torch.cat([torch.arange(first_key, last_key, device=device), query_index])[None]
    else:
        _check_reach(attention_mask, int(queries[0]) + queries[1], window)
        real = F.pad(attention_mask.to(torch.bool), (0, max(0, last_key - attention_mask.shape[1])))
        counted = torch.where(real, real.cumsum(1) - 1, -1)
        positions = torch.cat([counted[:, first_key:last_key], counted[:, query_index]], dim=1)
    return F.pad(positions, (0, 1), value=window or 0)[:, None, None]


def _check_reach(attention_mask: Tensor, needed: int, window: int | None) -> None:
    if attention_mask.shape[1] < needed:
        raise InputError(
            f"attention_mask has {attention_mask.shape[1]} columns and the text has {needed} tokens with the cached "
            "ones; give one column for each of them"
        )
    starts = attention_mask[:, 1:].bool() & ~attention_mask[:, :-1].bool()
    if window and bool((starts.sum(1) + attention_mask[:, 0].bool() > 1).any()):
        raise InputError(
            f"attention_mask has zeros between ones, and the model a sliding window of {window} tokens, which counts "
            "them; pad on the left or on the right only"
        )


Columns = list[slice] | Tensor | None
"""The keys to read: slices, indices, or all."""
VisibleKeys = tuple[Columns, Tensor | None, Tensor | None]
"""The keys to read, their mask `(B or 1, H or 1, T, W)`, and the queries that see nothing `(…, T, 1)`."""


@dataclass
class TokenPositions:
    """Positions of queries and keys, computed once for all layers that share a mask.

    Attributes:
        keys: `(B or 1, S)` int64, number of real tokens before each key; −1 for padding.
        queries: `(B or 1, T)` int64, likewise for each query.
        window: size of the model's own sliding window, including the query; 0 for none.
    """

    keys: Tensor
    queries: Tensor
    window: int
    _visible_keys: dict[tuple[Pattern, int, int], VisibleKeys] = field(default_factory=dict)

    @classmethod
    def of(cls, mask: Tensor, queries: int, keys: int) -> TokenPositions:
        """Returns the positions of a mask from `position_mask`, cached as its attribute."""
        positions = getattr(mask, "_longspan_positions", None)
        if positions is None:
            position = mask[:, 0, 0]
            positions = cls(position[:, :keys], position[:, keys : keys + queries], int(position[0, -1]))
            mask._longspan_positions = positions  # type: ignore[attr-defined]
        return positions

    @cached_property
    def from_start(self) -> bool:
        """Whether every row still has its first keys, which a sliding cache drops."""
        return bool(((self.keys == 0).any(1) | (self.keys < 0).all(1)).all())

    @cached_property
    def offsets(self) -> Tensor:
        """`(B or 1)` position of the first real query of each row."""
        beyond = torch.where(self.queries < 0, self.queries.shape[1] + self.keys.shape[1], self.queries)
        return torch.where((self.queries >= 0).any(1), beyond.amin(1), 0)

    @cached_property
    def key_order(self) -> Tensor | None:
        """Indices that move the real keys of each row to its front; `None` if they are there."""
        return _order(self.keys, self.keys.new_zeros(1, 1))

    @cached_property
    def query_order(self) -> Tensor | None:
        """Indices `(B, T)` that move the real queries of each row to its front; `None` if they are there."""
        return _order(self.queries, self.offsets[:, None])

    def causal(self, pattern: Pattern) -> Pattern:
        """Returns the causal part of a pattern, within the model's own window."""
        whole = pattern.is_full or pattern.is_causal
        if self.window:
            window = Window(self.window - 1, 0)
            return window if whole else pattern & window
        return Causal() if whole else pattern & Causal()

    def visible_keys(self, pattern: Pattern, first: int, last: int) -> VisibleKeys:
        """Returns the keys that some query from `first` to `last` sees, and their mask."""
        name = pattern, first, last
        if name in self._visible_keys:
            return self._visible_keys[name]
        query, key = self.queries[:, first:last, None], self.keys[:, None, :]
        visible = pattern.visible(query.clamp(min=0), key.clamp(min=0))
        real = ((query >= 0) & (key >= 0))[:, None]
        columns, visible = _selected((visible.movedim(0, 1) if pattern.heads else visible[:, None]) & real)
        blind = ~visible.any(-1, keepdim=True)
        result = columns, None if bool(visible.all()) else visible | blind, blind if bool(blind.any()) else None
        if self.queries.shape[1] <= FEW_QUERIES:
            self._visible_keys[name] = result
        return result


def _order(positions: Tensor, start: Tensor) -> Tensor | None:
    """Returns `(B, L)` indices that move the real tokens of each row to its front, or `None` if they are there."""
    index = torch.arange(positions.shape[1], device=positions.device)
    if bool(((positions < 0) | (positions == index + start)).all()):
        return None
    return torch.argsort((positions < 0).to(torch.int8), dim=1, stable=True)


def _selected(visible: Tensor) -> tuple[Columns, Tensor]:
    """Returns the columns in which something is visible, and their mask."""
    index = visible.flatten(0, 2).any(0).nonzero()[:, 0]
    if 2 * len(index) > visible.shape[-1]:
        return None, visible
    if len(index) == 0:  # at least one key must be read: it is masked
        return [slice(0, 1)], visible[..., :1]
    last = F.pad((index.diff() > 1).nonzero()[:, 0], (0, 1), value=len(index) - 1)
    if len(last) > MOST_RANGES:
        return index, visible[..., index]
    firsts = [0, *(last[:-1] + 1).tolist()]
    ranges = [slice(int(index[a]), int(index[b]) + 1) for a, b in zip(firsts, last.tolist(), strict=True)]
    return ranges, _taken(visible, ranges, -1)


def _taken(tensor: Tensor, columns: Columns, dim: int) -> Tensor:
    """Selects columns of a tensor; a single slice is not copied."""
    if columns is None:
        return tensor
    if isinstance(columns, Tensor):
        return tensor.index_select(dim, columns)
    parts = [tensor.narrow(dim, part.start, part.stop - part.start) for part in columns]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


@torch.compiler.disable()
def attend_causal(
    query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, places: Tensor, *, scale: float | None, dropout: float
) -> Tensor:
    """Computes attention of a decoder, with or without cached keys before the queries; zeros for padding.

    Args:
        query: `(B, H, T, D)`.
        key, value: `(B, K, S, D)` and `(B, K, S, Dv)`, each head for `H / K` heads of the queries.
        pattern: the visible pairs; future positions are always hidden.
        places: the result of `position_mask`.
        scale: factor on the scores, `D ** -0.5` by default.
        dropout: probability of dropping an attention weight.

    Returns:
        `(B, H, T, Dv)`.

    Raises:
        InputError: the number of keys differs from that of the mask, or the pattern has another number of heads or
            depends on the length of the text.
    """
    queries, keys = query.shape[2], key.shape[2]
    if places.shape[-1] != keys + queries + 1:
        raise InputError(
            f"attention_mask covers {places.shape[-1] - queries - 1} tokens and attention has {keys} keys; give "
            "one column for each token, the cached ones included"
        )
    if pattern.heads not in (None, query.shape[1]):
        raise InputError(
            f"pattern has {pattern.heads} heads and query has {query.shape[1]}; give one pattern for each head"
        )
    if pattern.reads_length:
        raise InputError(
            f"pattern '{shortened(str(pattern))}' depends on the length of the text, which grows while a decoder "
            "writes; take random_blocks instead of drawn_blocks, or give the number of blocks"
        )
    positions = TokenPositions.of(places, queries, keys)
    options = {"scale": query.shape[-1] ** -0.5 if scale is None else scale, "dropout": dropout}
    causal = positions.causal(pattern)
    if queries > FEW_QUERIES and positions.from_start:
        return _attend_tiles(query, key, value, causal, positions, **options)
    step = max(1, MOST_PAIRS // max(1, keys * positions.queries.shape[0]))
    parts = [
        _attend_visible(
            query[:, :, first : first + step],
            key,
            value,
            positions.visible_keys(causal, first, first + step),
            **options,
        )
        for first in range(0, queries, step)
    ]
    return torch.cat(parts, dim=2) if parts else query.new_zeros(*query.shape[:3], value.shape[-1])


def _attend_visible(
    query: Tensor, key: Tensor, value: Tensor, visible: VisibleKeys, *, scale: float, dropout: float
) -> Tensor:
    """Computes attention of few queries over the keys that they see; heads that share a key are stacked as queries."""
    columns, mask, blind = visible
    key, value = _taken(key, columns, 2), _taken(value, columns, 2)
    batch, heads, queries, _ = query.shape
    group = heads // key.shape[1]
    if mask is not None:
        mask = mask.expand(-1, heads if mask.shape[1] > 1 else group, -1, -1)
        mask = mask.reshape(mask.shape[0], -1, group * queries, mask.shape[-1])
    output = F.scaled_dot_product_attention(
        query.reshape(batch, -1, group * queries, query.shape[-1]), key, value, mask, dropout_p=dropout, scale=scale
    )
    output = output.reshape(batch, heads, queries, -1)
    return output if blind is None else output.masked_fill(blind, 0.0)


def _attend_tiles(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern,
    positions: TokenPositions,
    *,
    scale: float,
    dropout: float,
) -> Tensor:
    """Computes attention of many queries with `attend`: real tokens first, rows with equal starting positions together.

    Padding then follows all real queries, so that causality hides it and no mask is needed.
    """
    key, value = (_reordered(tensor, positions.key_order) for tensor in (key, value))
    ordered = _reordered(query, positions.query_order)
    if _shows_the_past(pattern, key.shape[2]):
        pattern = Causal()
    offsets = positions.offsets.expand(query.shape[0])
    parts, rows = [], []
    for offset in offsets.unique().tolist():
        chosen = (offsets == offset).nonzero()[:, 0]
        rows.append(chosen)
        selection = slice(None) if len(chosen) == len(query) else chosen
        grouped = _grouped(ordered[selection], key[selection], value[selection], pattern)
        output = attend(*grouped, pattern=pattern, scale=scale, dropout_prob=dropout, query_offset=offset)
        parts.append(output.reshape(-1, *query.shape[1:3], value.shape[-1]))
    output = parts[0] if len(parts) == 1 else torch.cat(parts)[torch.argsort(torch.cat(rows))]
    if positions.query_order is not None:
        output = _reordered(output, torch.argsort(positions.query_order, dim=1))
    padding = positions.queries < 0
    return output.masked_fill(padding[:, None, :, None], 0.0) if bool(padding.any()) else output


def _reordered(tensor: Tensor, order: Tensor | None) -> Tensor:
    """Reorders the positions of `(B, H, L, D)` by `(B, L)` indices."""
    if order is None:
        return tensor
    return tensor.gather(2, order[:, None, :, None].expand(tensor.shape[0], tensor.shape[1], -1, tensor.shape[3]))


def _shows_the_past(pattern: Pattern, length: int) -> bool:
    """Whether a pattern hides nothing before the query, such as a window wider than the text."""
    last = torch.arange(length)
    first = torch.zeros_like(last)
    return not pattern.heads and bool(pattern.every(Span(last, last, first, last)).all())


def _grouped(query: Tensor, key: Tensor, value: Tensor, pattern: Pattern) -> tuple[Tensor, Tensor, Tensor]:
    """Returns as many heads of keys as of queries, without copying keys unless the pattern differs by head."""
    group = query.shape[1] // key.shape[1]
    if group == 1:
        return query, key, value
    if pattern.heads:
        return query, key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    key, value = (x.reshape(-1, 1, *x.shape[2:]).expand(-1, group, -1, -1) for x in (key, value))
    return query.reshape(-1, group, *query.shape[2:]), key, value
