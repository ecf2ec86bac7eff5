"""Splits a sequence into global tokens and the long part, and relates pairs across the two."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from longspan.attention.parts.tokens import Tokens, in_order, inverse_order, real_first
from longspan.ops.attend.call import gather_slots, mask_of_slots, slots_of_mask
from longspan.ops.attend.terms import content_scores


class Parts(NamedTuple):
    """The global and the long part of a batch.

    Attributes:
        long: `(B, T, E)`, the long tokens first; the rest is meaningless.
        mask: `(B, T)` bool, True for long tokens; `None` means all.
        back: the inverse order for `in_order`; `None` if long tokens keep their places.
        slots: `(B, G)` int64, the positions of the global tokens in rising order, −1 in unused slots; `None` for none.
        globals: `(B, G, E)`, the global tokens.
        belongs: `(B, T)` int64, the slot to which each long token belongs, −1 for none; `None` without structure.
    """

    long: Tensor
    mask: Tensor | None = None
    back: Tensor | None = None
    slots: Tensor | None = None
    globals: Tensor | None = None
    belongs: Tensor | None = None

    @property
    def global_keys(self) -> int:
        """The number of global keys, G, before the long ones."""
        return 0 if self.slots is None else self.slots.shape[1]


def taken_apart(hidden: Tensor, tokens: Tokens, multiple: int = 1) -> Parts:
    """Splits `(B, T, E)` into the long and the global part; the number of slots is rounded up to a `multiple`."""
    length, slots = hidden.shape[1], None
    has_globals = tokens.is_global is not None or tokens.global_slots is not None
    if has_globals and length:
        slots = tokens.with_slots().real_slots()
    if slots is None:
        if tokens.mask is None:
            return Parts(hidden)
        order = real_first(tokens.mask)
        return Parts(in_order(hidden, order), in_order(tokens.mask, order), inverse_order(order))
    is_global = mask_of_slots(slots, length)
    slots = slots_of_mask(is_global, slots.shape[1] + -slots.shape[1] % multiple)
    is_long = ~is_global if tokens.mask is None else tokens.mask & ~is_global
    order = real_first(is_long)
    return Parts(
        in_order(hidden, order),
        in_order(is_long, order),
        inverse_order(order),
        slots,
        gather_slots(hidden[:, None], slots)[:, 0],
        None if tokens.belongs_to is None else in_order(tokens.belongs_to, order),
    )


def relations(parts: Parts) -> tuple[Tensor, Tensor | None]:
    """Returns whether each long token belongs to each global one, `(B, T, G)` bool, and the pairs that hard masks
    allow: the same, or all for a token that belongs to none; `None` without structure.
    """
    assert parts.slots is not None
    count = parts.slots.shape[1]
    if parts.belongs is None:
        return torch.zeros((*parts.long.shape[:2], count), dtype=torch.bool, device=parts.long.device), None
    belongs = parts.belongs[:, :, None] == torch.arange(count, device=parts.belongs.device)
    return belongs, belongs | (parts.belongs < 0)[:, :, None]


def labelled(query: Tensor, table: Tensor, bias: Tensor, row: Tensor) -> Tensor:
    """Returns `q·a + b` of each pair's label, `(B, H, T, S)` in float32 at least: queries `(B, H, T, D)`, a `(H, R,
    D)`, b `(H, R)`, labels `(B, T, S)`.
    """
    scores = content_scores(query, table, row)
    return scores + bias.to(scores.dtype)[:, row].transpose(0, 1)


def hidden_outside(bias: Tensor | None, query: Tensor, shown: Tensor | None) -> Tensor | None:
    """Returns a bias `(B, H, T, S)` that is −∞ where `shown` `(B, T, S)` is False; `None` if nothing is added."""
    if shown is None:
        return bias
    if bias is None:
        bias = query.new_zeros(*query.shape[:3], shown.shape[2])
    return bias.masked_fill(~shown[:, None], -torch.inf)


def put_rows(tensor: Tensor, rows: Tensor, slots: Tensor, dim: int) -> Tensor:
    """Writes the G rows of `(B, G)` slots into a tensor's T places along `dim`; unused slots are ignored."""

    def along(places: Tensor) -> Tensor:
        return places.view([places.shape[0] if axis == 0 else -1 if axis == dim else 1 for axis in range(tensor.ndim)])

    rows = rows.masked_fill(along(slots < 0), 0).to(tensor.dtype)
    tensor = tensor.masked_fill(along(mask_of_slots(slots, tensor.shape[dim])), 0)
    return tensor.scatter_add(dim, along(slots.clamp(min=0)).expand(rows.shape), rows)
