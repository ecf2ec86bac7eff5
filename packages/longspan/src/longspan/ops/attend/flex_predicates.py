"""FlexAttention's predicate for pairs in partial blocks: patterns as index arithmetic and captured tables, so that one
compiled program serves all lengths, rows and layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.call import patterns_of_rows, row_lengths
from longspan.ops.attend.flex_tables import MaskMod
from longspan.ops.runtime import cached
from longspan.ops.tiles.arranged import by_pattern
from longspan.patterns import DrawnBlocks, Pattern

NONE = -(1 << 30)
"""The index of no block."""


def mask_mod_of(
    pattern: Pattern,
    queries: int,
    keys: int,
    offset: int,
    key_mask: Tensor | None,
    visible_keys: Tensor | None,
    device: torch.device,
) -> MaskMod:
    """Returns the predicate of a pattern over `queries` and `keys`.

    Args:
        offset: position of the first query.
        key_mask: `(B, S)` bool, the real keys, which define the length of each row.
        visible_keys: `(B, S + G)` bool, keys that may be seen; those after the text are visible to all queries. `None`
            for all keys of the text, without additional keys.
    """
    shown = _shown(pattern, max(queries + offset, keys), keys, key_mask, device)
    end, first = captured(keys, device), captured(offset, device)

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        visible = shown(b, h, q_idx + first[0 * b] if offset else q_idx, kv_idx)
        return visible if visible_keys is None else (visible | (kv_idx >= end[0 * b])) & visible_keys[b, kv_idx]

    return mask_mod


@cached
def captured(number: int, device: torch.device) -> Tensor:
    """Returns a length as data, `(1,)` int64: as a constant, each value would compile a program of its own."""
    return torch.full((1,), number, device=device)


def _shown(pattern: Pattern, positions: int, keys: int, key_mask: Tensor | None, device: torch.device) -> MaskMod:
    """Returns the predicate of each head. Parts common to all heads are evaluated once, and random blocks per head, as
    in BigBird, are looked up in one table instead of being drawn for every pair. If heads differ otherwise, each
    pattern is evaluated and applied to its heads."""
    heads = [pattern.head(index).alternatives() for index in range(pattern.heads or 1)]
    common = [part for part in heads[0] if all(part in head for head in heads)]
    own = [[part for part in head if part not in common] for head in heads]
    head_draws = [part.block_draws() for parts in own for part in parts]
    drawn = [draws for draws in head_draws if draws is not None]
    alike = len({(part.block, part.start, part.count) for part in drawn}) == 1 and len(drawn) == len(heads)
    options = (positions, keys, key_mask, device)
    if not any(own):
        return _any_of([_part(part, *options) for part in common])
    if alike and all(len(parts) == 1 for parts in own):
        return _any_of([*(_part(part, *options) for part in common), _looked_up(tuple(drawn), *options)])
    members = [_members(tuple(heads), pattern.heads or 1, device) for heads in by_pattern(pattern).values()]
    shared = [_shown(pattern_, *options) for pattern_ in by_pattern(pattern)]

    def shown(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        visible = shared[0](b, h, query, key) & members[0][h]
        for each, own in zip(shared[1:], members[1:], strict=True):
            visible = visible | (each(b, h, query, key) & own[h])
        return visible

    return shown


def _any_of(parts: list[MaskMod]) -> MaskMod:
    def shown(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        visible = parts[0](b, h, query, key)
        for part in parts[1:]:
            visible = visible | part(b, h, query, key)
        return visible

    return shown


@cached
def _members(heads: tuple[int, ...], count: int, device: torch.device) -> Tensor:
    """Returns `(count,)` bool, True at these heads."""
    return torch.zeros(count, dtype=torch.bool).index_fill_(0, torch.tensor(heads), True).to(device)


def _part(part: Pattern, positions: int, keys: int, key_mask: Tensor | None, device: torch.device) -> MaskMod:
    """Returns the predicate of one operand of `|`, with lengths as data."""
    if (drawn := part.block_draws()) is not None:
        return _looked_up((drawn,), positions, keys, key_mask, device)
    lengths = _lengths(keys, key_mask, device) if part.reads_length else None

    def shown(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        at = part if lengths is None else part.of_length(lengths[b if len(lengths) > 1 else 0 * b])
        return at.visible(query, key)

    return shown


def _looked_up(
    drawn: tuple[DrawnBlocks, ...], positions: int, keys: int, key_mask: Tensor | None, device: torch.device
) -> MaskMod:
    """Returns the predicate of random blocks, per head or shared."""
    block, start, count = drawn[0].block, drawn[0].start, drawn[0].count
    draws = _draws_of_rows(drawn, positions, keys, key_mask, device)
    by_row, by_head = draws.shape[0] > 1, draws.shape[1] > 1

    def shown(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        row, column = ((query - start) // block + 1).clamp(min=0), (key - start) // block
        places = (b if by_row else 0 * b), (h if by_head else 0 * h), row
        visible = draws[(*places, 0 * row)] == column
        for number in range(1, count):
            visible = visible | (draws[(*places, 0 * row + number)] == column)
        return visible

    return shown


def _draws_of_rows(
    drawn: tuple[DrawnBlocks, ...], positions: int, keys: int, key_mask: Tensor | None, device: torch.device
) -> Tensor:
    """Returns the blocks drawn for each row and head, `(B or 1, H or 1, 1 + blocks, count)` int32, `NONE` for none; the
    first entry is for positions before the first block."""
    blocks = -(-positions // drawn[0].block)
    if torch.compiler.is_compiling():  # values are unknown
        lengths = _lengths(keys, key_mask, device)[:, None]
        row = torch.arange(blocks, device=device)[None]
        draws = [torch.stack(pattern_.of_length(lengths).draws(row), -1) for pattern_ in drawn]
        whole = torch.stack([draw.expand(len(lengths), -1, -1) for draw in draws], 1)
        return F.pad(torch.where(whole < 0, NONE, whole).int(), (0, 0, 1, 0), value=NONE)
    heads = []
    for each in drawn:
        shared = patterns_of_rows(each, key_mask, keys) if each.reads_length else {each: []}
        shown = {row: of_length for of_length, rows in shared.items() for row in rows or [0]}
        heads.append(torch.cat([_draws_of(shown[row], blocks, device) for row in sorted(shown)]))  # pyright: ignore[reportArgumentType]
    return torch.stack(heads, 1)


@cached
def _draws_of(drawn: DrawnBlocks, blocks: int, device: torch.device) -> Tensor:
    """Returns the blocks drawn for one head and length, `(1, 1 + blocks, count)` int32."""
    draws = torch.stack(drawn.draws(torch.arange(blocks)), -1)
    return F.pad(torch.where(draws < 0, NONE, draws).int(), (0, 0, 1, 0), value=NONE)[None].to(device)


def _lengths(keys: int, key_mask: Tensor | None, device: torch.device) -> Tensor:
    return torch.full((1,), keys, device=device) if key_mask is None else row_lengths(key_mask)
