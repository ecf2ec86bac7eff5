"""What the queries of a chunk may see, and which weights dropout keeps, for the blocked backend.

Global keys stand in columns of their own, beside the near keys: `key_mask` holds real keys that are not global.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.call import Call
from longspan.ops.tiles.tiles import Chunk, Layout


def hiding_mask(chunk: Chunk, call: Call, seen: Tensor | None, dtype: torch.dtype, *, pattern: bool) -> Tensor | None:
    """What to add to the scores of a chunk: −∞ where a key may not be seen, else 0; `None` for nothing.

    `pattern=False` leaves out what the pattern hides; `seen` is what `seen_by_row` gives.
    """
    mask = None
    if pattern and chunk.group.masks is not None:
        mask = _masks_of(chunk, call, chunk.group.additive(dtype, call.beside))
    if seen is not None:
        hidden = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -math.inf)
        mask = hidden if mask is None else mask + hidden
    return mask


def empty_rows(chunk: Chunk, call: Call, row: Tensor | None) -> Tensor | None:
    """`(b, 1, n, size, 1)` bool, True for queries to which pattern and padding show nothing; `None` for no query.

    `row` is what `seen_by_row` gives.
    """
    hides = chunk.group.hides_whole_rows
    if row is None and not hides:
        return None
    masks = chunk.group.masks
    near = None if masks is None else _masks_of(chunk, call, masks)
    if near is None and row is None:
        return None if call.beside else torch.ones((), dtype=torch.bool, device=chunk.columns.device)
    # Where the pattern hides no whole row, only tiles that lack keys can, mostly few at the ends.
    tiles = slice(None) if row is None or hides else lacking(~row)
    if near is not None:
        near = near.expand(-1, -1, chunk.count, -1, -1)[:, :, tiles]
        near = F.pad(near, (0, call.beside), value=True) if call.slots is not None else near
        seen = near if row is None else near & row[:, :, tiles]
    else:
        assert row is not None
        seen = row[:, :, tiles]
    found = ~seen.any(dim=-1, keepdim=True)
    if not bool(found.any()):
        return None
    empty = found.new_zeros(*found.shape[:2], chunk.count, *found.shape[3:])
    empty[:, :, tiles] = found
    return empty


def lacking(hidden: Tensor) -> list[int]:
    """Query tiles from which some row of the batch hides a key, by flags `(b, 1, n, 1, L)`."""
    return hidden.any(-1).any(0)[0, :, 0].nonzero()[:, 0].tolist()


def _masks_of(chunk: Chunk, call: Call, masks: Tensor) -> Tensor:
    """`(b or 1, 1, n or 1, size, L)`: the masks of a chunk's tiles, one for all where they agree.

    Where there are several patterns, each has equally many rows of the batch.
    """
    ids = chunk.group.mask_ids[chunk.first : chunk.last]
    ids = ids[:1] if chunk.group.one_mask(chunk.first, chunk.last) else ids
    batch = call.query.shape[0]
    own = [row * masks.shape[1] // batch for row in range(*chunk.batch.indices(batch))]
    if own[0] == own[-1]:
        return masks[ids, own[0]][None, None]
    return masks[ids][:, own].transpose(0, 1)[:, None]


def seen_by_row(chunk: Chunk, tiling: Layout, call: Call) -> Tensor | None:
    """`(b, 1, n, 1, L)` bool: keys that each row of the batch has, real and not doubled; `None` if all."""
    if call.key_mask is None and call.slots is None:
        return None
    columns, size = chunk.columns, tiling.size
    batch = len(range(*chunk.batch.indices(call.query.shape[0])))
    real = torch.ones(batch, chunk.count, chunk.width * size, dtype=torch.bool, device=columns.device)
    if call.key_mask is not None:
        missing = tiling.key_tiles * size - call.key_mask.shape[1]
        tiles = F.pad(call.key_mask[chunk.batch], (0, missing), value=True).unflatten(1, (tiling.key_tiles, size))
        real = tiles[:, columns].flatten(2)
    if call.slots is not None:
        used = (call.slots[chunk.batch] >= 0)[:, None].expand(-1, chunk.count, -1)
        real = torch.cat([real, used], dim=-1)
    return None if bool(real.all()) else real[:, None, :, None, :]


def kept_weights(weights: Tensor, chunk: Chunk, call: Call) -> Tensor | None:
    """Dropout of a chunk, as `drawn_weights`."""
    return drawn_weights(weights, chunk.number, call)


def drawn_weights(weights: Tensor, number: int, call: Call) -> Tensor | None:
    """Dropout: 1/(1 − p) where a weight is kept, else 0; the same again for the same seed and number."""
    if call.dropout_prob == 0.0:
        return None
    generator = torch.Generator(device=weights.device).manual_seed((call.seed + number * 0x9E3779B1) % 2**63)
    kept = torch.empty_like(weights).bernoulli_(1 - call.dropout_prob, generator=generator)
    return kept.div_(1 - call.dropout_prob) if call.dropout_prob < 1 else kept
