"""Attention with relative positions as one PyTorch operator, opaque to `torch.compile` and `torch.export`.

It runs on the tiles of `longspan.ops.blocked`. Keys are filled up so that every query tile sees as many key tiles, and
the first of them has its own index: one regular band, in which the relative terms are strided views.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops import blocked
from longspan.ops.chunk_masks import Problem
from longspan.ops.dense import DENSE_PAIRS
from longspan.ops.kept import kept
from longspan.ops.relative_tiles import Relative
from longspan.ops.slots import mask_of_slots
from longspan.ops.tiles import SCORE_COST, TILE_SIZES, Layout, layout
from longspan.patterns import Window


@torch.library.custom_op("longspan::relative_attention", mutates_args=())
def relative_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position_key: Tensor,
    position_query: Tensor,
    global_bias: Tensor | None,
    key_mask: Tensor | None,
    slots: Tensor | None,
    seed: Tensor | None,
    left: int,
    right: int,
    scale: float,
    dropout_prob: float,
) -> Tensor:
    """`(B, H, T, D)` → `(B, H, T, D)`; see `longspan.ops.relative.attend_relative` for the arguments."""
    if not query.numel():
        return query.new_zeros(query.shape)
    call = _Call(query, position_key, position_query, global_bias, key_mask, slots, seed, left, right)
    rows, keys, values = call.fill(query, key, value)
    problem = call.problem(scale, dropout_prob)
    result = blocked.forward(rows, keys, values, call.window, 0, problem, call.relative())
    # The operator may not return a view of its working memory.
    return result[:, :, : query.shape[2]].contiguous()


@relative_attention.register_fake
def _(query, key, value, position_key, position_query, global_bias, key_mask, slots, seed, left, right, scale, prob):  # type: ignore[no-untyped-def]
    return query.new_empty(query.shape)


@torch.library.custom_op("longspan::relative_attention_backward", mutates_args=())
def relative_attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position_key: Tensor,
    position_query: Tensor,
    global_bias: Tensor | None,
    key_mask: Tensor | None,
    slots: Tensor | None,
    seed: Tensor | None,
    left: int,
    right: int,
    scale: float,
    dropout_prob: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `relative_attention`: query, key, value, both tables, bias (empty when there is none)."""
    inputs = (query, key, value, position_key, position_query)
    no_bias = query.new_zeros(0) if global_bias is None else torch.zeros_like(global_bias)
    if not query.numel():
        zeros = [tensor.new_zeros(tensor.shape) for tensor in inputs]
        return zeros[0], zeros[1], zeros[2], zeros[3], zeros[4], no_bias
    call = _Call(query, position_key, position_query, global_bias, key_mask, slots, seed, left, right)
    rows, keys, values = call.fill(query, key, value)
    relative = call.relative(with_grads=True)
    grads = blocked.backward(
        call.fill_rows(grad), rows, keys, values, call.window, 0, call.problem(scale, dropout_prob), relative
    )
    length = query.shape[2]
    near = slice(call.margin, call.margin + length)
    grad_position_key, grad_position_query = call.table_grads(relative, scale, left, right)
    grad_bias = no_bias
    if global_bias is not None:
        grad_bias = relative.grads[2].flatten(2, 3)[:, :, :length].contiguous()
    return (
        grads[0][:, :, :length].contiguous(),
        grads[1][:, :, near].contiguous(),
        grads[2][:, :, near].contiguous(),
        grad_position_key.to(query.dtype),
        grad_position_query.to(query.dtype),
        grad_bias,
    )


@relative_attention_backward.register_fake
def _(
    grad, query, key, value, position_key, position_query, global_bias, key_mask, slots, seed, left, right, scale, prob
):  # type: ignore[no-untyped-def]
    inputs = (query, key, value, position_key, position_query)
    bias = query.new_empty(0) if global_bias is None else global_bias.new_empty(global_bias.shape)
    return *(tensor.new_empty(tensor.shape) for tensor in inputs), bias


def _setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs[:9])
    ctx.options = inputs[9:]


def _gradient(ctx, grad):  # type: ignore[no-untyped-def]
    saved = ctx.saved_tensors  # gradient checkpointing gives them once
    grads = relative_attention_backward(grad.contiguous(), *saved, *ctx.options)
    bias = None if saved[5] is None else grads[5]
    return *grads[:5], bias, *([None] * 7)


relative_attention.register_autograd(_gradient, setup_context=_setup_context)


class _Call:
    """One call, with its positions filled up to whole tiles: `margin` places before the first key."""

    def __init__(
        self,
        query: Tensor,
        position_key: Tensor,
        position_query: Tensor,
        global_bias: Tensor | None,
        key_mask: Tensor | None,
        slots: Tensor | None,
        seed: Tensor | None,
        left: int,
        right: int,
    ) -> None:
        self.batch, self.length, self.device = query.shape[0], query.shape[2], query.device
        # No two tokens are further apart, so no other row of the tables is needed.
        self.left, self.right = min(left, self.length - 1), min(right, self.length - 1)
        self.window = Window(self.left, self.right)
        rows = slice(left - self.left, left + 1 + self.right)
        self.position_key, self.position_query = position_key[:, rows], position_query[:, rows]
        self.tiling, self.margin = band_layout(self.left, self.right, self.length, query.device)
        self.query_end = self.tiling.query_tiles * self.tiling.size - self.length
        self.key_end = self.tiling.key_tiles * self.tiling.size - self.length - self.margin
        self.key_mask, self.slots, self.global_bias, self.seed = key_mask, slots, global_bias, seed

    def fill(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries filled up behind, keys and values before and behind."""
        keys, values = (self._fill(each, self.margin, self.key_end) for each in (key, value))
        return self.fill_rows(query), keys, values

    def fill_rows(self, rows: Tensor) -> Tensor:
        """Queries, or what belongs to them, `(B, H, T, …)`, filled up behind."""
        return self._fill(rows, 0, self.query_end)

    def _fill(self, rows: Tensor, before: int, behind: int) -> Tensor:
        """`F.pad`, but what is copied is not first set to 0."""
        if not before and not behind:
            return rows
        zeros = [rows.new_zeros(*rows.shape[:2], count, rows.shape[3]) for count in (before, behind)]
        return torch.cat([zeros[0], rows, zeros[1]], dim=2)

    def problem(self, scale: float, dropout_prob: float) -> Problem:
        """What is not relative: the slots at their new places, and dropout."""
        slots = None if self.slots is None else torch.where(self.slots < 0, self.slots, self.slots + self.margin)
        return Problem(scale, None, slots, None, dropout_prob, 0 if self.seed is None else int(self.seed))

    def _near_keys(self) -> Tensor | None:
        """`(B, T)` bool, the real keys that are not global (those count once, in columns of their own)."""
        if self.slots is None:
            return self.key_mask
        near = ~mask_of_slots(self.slots, self.length)
        return near if self.key_mask is None else near & self.key_mask

    def _hidden(self, near: Tensor | None) -> Tensor | None:
        """Keys that no query may see in its window, fillings among them, by tile."""
        if near is None and not self.margin and not self.key_end:
            return None
        real = torch.ones(self.batch, self.length, dtype=torch.bool, device=self.device) if near is None else near
        real = F.pad(real, (self.margin, self.key_end), value=False)
        return ~real.unflatten(1, (self.tiling.key_tiles, self.tiling.size))

    def _empty(self, near: Tensor | None) -> Tensor | None:
        """Queries that see no key, by tile: those with no near key in the window and no global key, and fillings."""
        if near is None and not self.query_end:
            return None
        if near is None:
            near = torch.ones(1, self.length, dtype=torch.bool, device=self.device)
        count = F.pad(near.cumsum(1), (1, 0))
        place = torch.arange(self.length, device=self.device)
        last, first = (place + self.right + 1).clamp(max=self.length), (place - self.left).clamp(min=0)
        empty = (count[:, last] == count[:, first]).expand(self.batch, -1)
        if self.slots is not None:
            empty = empty & ~(self.slots >= 0).any(1, keepdim=True)
        return F.pad(empty, (0, self.query_end), value=True).unflatten(1, (self.tiling.query_tiles, self.tiling.size))

    def relative(self, *, with_grads: bool = False) -> Relative:
        """The relative terms and masks, with zeros for their gradients where these are wanted."""
        bias, near = self.global_bias, self._near_keys()
        if bias is not None and self.slots is not None:
            bias = self.fill_rows(bias.masked_fill((self.slots < 0)[:, None, None, :], -math.inf))
            bias = bias.unflatten(2, (self.tiling.query_tiles, self.tiling.size))
        queries = self.position_query.flip(1)
        grads = []
        if with_grads:
            wide = torch.promote_types(queries.dtype, torch.float32)
            grads = [queries.new_zeros(queries.shape, dtype=wide) for _ in range(2)]
            grads += [] if bias is None else [bias.new_empty(bias.shape)]
        hidden, empty = self._hidden(near), self._empty(near)
        return Relative(
            self.tiling, self.position_key, queries, self.left, self.margin, bias, hidden, empty, grads=grads
        )

    def table_grads(self, relative: Relative, scale: float, left: int, right: int) -> tuple[Tensor, Tensor]:
        """Totals of both tables in the caller's order, 0 in rows that no pair of tokens reads."""
        fill = (0, 0, left - self.left, right - self.right)
        return F.pad(relative.grads[0] * scale, fill), F.pad(relative.grads[1].flip(1) * scale, fill)


@kept
def band_layout(left: int, right: int, length: int, device: torch.device) -> tuple[Layout, int]:
    """A regular band of tiles for a window, and how many places to fill in before the first key.

    A short input is one tile, which is dense attention; else the tile size is that which costs least.
    """
    costs = {size: _band_scores(left, right, length, size) * SCORE_COST[size] for size in TILE_SIZES}
    if length * length <= DENSE_PAIRS:
        costs[length] = min(length * length * SCORE_COST[TILE_SIZES[-1]], costs.get(length, length * length))
    size = min(costs, key=lambda size: costs[size])
    margin, behind = (0, 0) if size == length else (-(-left // size) * size, -(-right // size) * size)
    queries = -(-length // size) * size
    found = layout(Window(left, right), queries, margin + queries + behind, margin, size)
    assert len(found.groups) == 1
    return found.to(device), margin


def _band_scores(left: int, right: int, length: int, size: int) -> int:
    tiles = -(-left // size) + 1 + -(-right // size)
    return -(-length // size) * size * tiles * size
