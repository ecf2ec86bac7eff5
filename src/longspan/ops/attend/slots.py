"""Global tokens as slots: a static number of positions for each row of a batch, −1 where unused."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.errors import InputError


def distinct_slots(slots: Tensor) -> Tensor:
    """`(B, G)` int64 with every position once: what names an earlier one again becomes −1."""
    earlier = (slots[:, :, None] == slots[:, None, :]).tril(-1).any(-1)
    return torch.where(earlier | (slots < 0), -1, slots)


def check_slots(name: str, slots: Tensor, length: int) -> None:
    """Raise unless all `(B, G)` slots are positions of `length` tokens or −1.

    A compiled or exported program, in which no value is known yet, holds the check as an assertion instead.

    Raises:
        InputError: a slot beyond the sequence, or below −1.
    """
    fits = (slots >= -1) & (slots < length)
    if torch.compiler.is_compiling():
        torch._assert_async(fits.all(), f"{name} names a position beyond the sequence")
    elif not bool(fits.all()):
        wrong = int(slots[~fits][0])
        raise InputError(
            f"{name} holds {wrong}, which is no position of {length} tokens; give 0 to {length - 1}, or -1 where unused"
        )


def slots_of_mask(mask: Tensor, count: int | None = None) -> Tensor:
    """`(B, T)` bool → `(B, count)` int64 positions of the first True entries in order, then −1.

    Without `count` it is the largest number in a row, which depends on the data; give it under `torch.compile` and
    `torch.export`.
    """
    rank = mask.cumsum(1)
    if count is None:
        count = int(rank[:, -1].max()) if mask.numel() else 0
    # Everything that is not kept is written to one spare column, which is then dropped: no data-dependent shape.
    column = torch.where(mask, (rank - 1).clamp(max=count), count)
    positions = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    slots = torch.full((mask.shape[0], count + 1), -1, device=mask.device, dtype=torch.int64)
    return slots.scatter(1, column, positions)[:, :count]


def mask_of_slots(slots: Tensor, length: int) -> Tensor:
    """`(B, G)` slots, −1 where unused → `(B, length)` bool, True at the positions they name."""
    mask = torch.zeros(slots.shape[0], length + 1, dtype=torch.bool, device=slots.device)
    return mask.scatter(1, torch.where(slots < 0, length, slots), True)[:, :length]


def gather_slots(tensor: Tensor, slots: Tensor) -> Tensor:
    """`(B, H, S, D)`, `(B, G)` → `(B, H, G, D)`; unused slots read position 0."""
    index = torch.clamp(slots, min=0)[:, None, :, None].expand(-1, tensor.shape[1], -1, tensor.shape[3])
    return torch.gather(tensor, 2, index)


def put_slots(tensor: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    """`(B, H, T, D)` with the `(B, H, G, D)` rows of `(B, G)` slots in their places; unused slots are dropped."""
    index = torch.where(slots < 0, tensor.shape[2], slots)[:, None, :, None].expand(rows.shape)
    return F.pad(tensor, (0, 0, 0, 1)).scatter_(2, index, rows)[:, :, : tensor.shape[2]]
