"""What FlexAttention asks of every pair in a block that is shown in part: patterns as index arithmetic and captured
tables, so that one compiled program serves all lengths, rows and layers."""

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
"""The number of no block."""


def mask_mod_of(
    pattern: Pattern,
    queries: int,
    keys: int,
    offset: int,
    key_mask: Tensor | None,
    visible_keys: Tensor | None,
    device: torch.device,
) -> MaskMod:
    """The predicate of a pattern over so many queries and keys.

    Args:
        offset: position of the first query.
        key_mask: `(B, S)` bool, which of the keys are real, by which rows have a length.
        visible_keys: `(B, S + G)` bool, which keys anybody may see; those behind the text are seen by all. `None` for
            all keys of the text, and none behind.
    """
    shown = _shown(pattern, max(queries + offset, keys), keys, key_mask, device)
    end, first = captured(keys, device), captured(offset, device)

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        visible = shown(b, h, q_idx + first[0 * b] if offset else q_idx, kv_idx)
        return visible if visible_keys is None else (visible | (kv_idx >= end[0 * b])) & visible_keys[b, kv_idx]

    return mask_mod


@cached
def captured(number: int, device: torch.device) -> Tensor:
    """`(1,)` int64, a length as data: a program would be made for each number that stands in it."""
    return torch.full((1,), number, device=device)


def _shown(pattern: Pattern, positions: int, keys: int, key_mask: Tensor | None, device: torch.device) -> MaskMod:
    """What each head shows: what all heads share is asked once, and blocks that each draws at random, as in BigBird,
    are looked up in one table, since they would be drawn again for every pair. Where heads differ in another way each
    pattern is asked, and counts for those that have it."""
    heads = [pattern.head(index).alternatives() for index in range(pattern.heads or 1)]
    common = [part for part in heads[0] if all(part in each for each in heads)]
    own = [[part for part in each if part not in common] for each in heads]
    asked = [part.block_draws() for parts in own for part in parts]
    drawn = [draws for draws in asked if draws is not None]
    alike = len({(part.block, part.start, part.count) for part in drawn}) == 1 and len(drawn) == len(heads)
    options = (positions, keys, key_mask, device)
    if not any(own):
        return _any_of([_part(part, *options) for part in common])
    if alike and all(len(parts) == 1 for parts in own):
        return _any_of([*(_part(part, *options) for part in common), _looked_up(tuple(drawn), *options)])
    members = [_members(tuple(heads), pattern.heads or 1, device) for heads in by_pattern(pattern).values()]
    shared = [_shown(each, *options) for each in by_pattern(pattern)]

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
    """`(count,)` bool, True at these heads."""
    return torch.zeros(count, dtype=torch.bool).index_fill_(0, torch.tensor(heads), True).to(device)


def _part(part: Pattern, positions: int, keys: int, key_mask: Tensor | None, device: torch.device) -> MaskMod:
    """One of the patterns that are joined by `|`; lengths are data."""
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
    """Blocks drawn by each head, or by all alike."""
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
    """`(B or 1, H or 1, 1 + blocks, count)` int32, which blocks those of each row and head draw, `NONE` for none; the
    first line is that of what stands before the first block."""
    blocks = -(-positions // drawn[0].block)
    if torch.compiler.is_compiling():  # nothing of the data is known
        lengths = _lengths(keys, key_mask, device)[:, None]
        row = torch.arange(blocks, device=device)[None]
        draws = [torch.stack(each.of_length(lengths).draws(row), -1) for each in drawn]
        whole = torch.stack([each.expand(len(lengths), -1, -1) for each in draws], 1)
        return F.pad(torch.where(whole < 0, NONE, whole).int(), (0, 0, 1, 0), value=NONE)
    heads = []
    for each in drawn:
        shared = patterns_of_rows(each, key_mask, keys) if each.reads_length else {each: []}
        shown = {row: of_length for of_length, rows in shared.items() for row in rows or [0]}
        heads.append(torch.cat([_draws_of(shown[row], blocks, device) for row in sorted(shown)]))  # pyright: ignore[reportArgumentType]
    return torch.stack(heads, 1)


@cached
def _draws_of(drawn: DrawnBlocks, blocks: int, device: torch.device) -> Tensor:
    """`(1, 1 + blocks, count)` int32, those of one head and length."""
    draws = torch.stack(drawn.draws(torch.arange(blocks)), -1)
    return F.pad(torch.where(draws < 0, NONE, draws).int(), (0, 0, 1, 0), value=NONE)[None].to(device)


def _lengths(keys: int, key_mask: Tensor | None, device: torch.device) -> Tensor:
    """`(B or 1,)` int64."""
    return torch.full((1,), keys, device=device) if key_mask is None else row_lengths(key_mask)
