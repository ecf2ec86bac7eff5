"""The trees of a batch in the stack `binary_partition`: of whole texts, and of texts that continue a state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from longspan.ops.attend.reference import full_precision
from longspan.ops.tiles.partition import Partition, left_neighbours
from longspan.ops.tiles.partition_operator import attend_partition

GATHERED = 1 << 22
"""Approximate number of elements of keys that are gathered at once with a state."""


class WholeTree:
    """Trees over whole texts.

    Args:
        partition: the partition of the longest row.
        counts: `(B,)` int64, tokens of each row, which come first; `None` means all.

    Attributes:
        absent: `(B, N)` bool, nodes that do not exist in a row; `None` for none.
    """

    def __init__(self, partition: Partition, counts: Tensor | None = None) -> None:
        self.partition, self.counts = partition, counts
        self.tokens, self.nodes = partition.tokens, partition.nodes
        self.absent = None if counts is None else ~partition.present(counts)

    def present(self, nodes: Tensor) -> Tensor:
        """Returns the mask of nodes, `(B, N)` bool, for states `(B, N, E)`."""
        if self.absent is None:
            return nodes.new_ones(nodes.shape[:2], dtype=torch.bool)
        return ~self.absent

    def roots(self, nodes: Tensor) -> Tensor:
        """Returns the root of each row's tree, `(B, N, E)` → `(B, E)`; zeros for a row without a token."""
        if self.nodes == 0:
            return nodes.new_zeros(nodes.shape[0], nodes.shape[2])
        level, _ = self.partition.node_starts(nodes.device)
        # A row's root is the first node of its last level.
        highest = torch.where(self.present(nodes), level, -1)
        root = highest.argmax(1)[:, None, None].expand(-1, 1, nodes.shape[2])
        return nodes.gather(1, root)[:, 0]

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, table: Tensor, *, state: Any = None, dropout_prob: float = 0.0
    ) -> Tensor:
        """Computes attention of each node, `(B, H, N, D)` → `(B, H, N, D)`; stores tokens and complete spans in
        an empty state.
        """
        if state is not None:
            level, start = self.partition.node_starts(key.device)
            places = torch.where(start + (1 << level) <= self.tokens, number_of(level, start >> level), -1)
            state.store(self.tokens, self.tokens, places[None], key, value)
        return attend_partition(query, key, value, table, self.partition, counts=self.counts, dropout_prob=dropout_prob)


class GrowingTree:
    """Growing trees: T new tokens of each row after those in a state, and the spans that they complete. Causal.

    Create it with `of`.

    Attributes:
        absent: `(B, N)` bool, new nodes that are padding, or do not exist in a row; `None` for none.
    """

    def __init__(
        self,
        places: Tensor,
        real: Tensor | None,
        spans: list[tuple[int, Tensor, Tensor]],
        length: int,
        neighbours: int,
        clip: int,
    ) -> None:
        self.places, self.spans, self.length = places, spans, length
        self.neighbours, self.clip = neighbours, clip
        self.tokens = places.shape[1]
        self.nodes = self.tokens + sum(index.shape[1] for _, index, _ in spans)
        there = torch.cat([torch.ones_like(places, dtype=torch.bool) if real is None else real,
                           *(level_numbers for _, _, level_numbers in spans)], dim=1)  # fmt: skip
        numbers = [number_of(0, places), *(number_of(level, index) for level, index, _ in spans)]
        self.numbers = torch.where(there, torch.cat(numbers, dim=1), -1)
        self.absent = None if real is None else ~there

    @staticmethod
    def of(
        past: int, tokens: int, mask: Tensor | None, device: torch.device, neighbours: int, clip: int
    ) -> GrowingTree:
        """Returns the tree of `tokens` new positions after `past` ones.

        Args:
            past: positions in the state.
            tokens: number of new positions.
            mask: `(B, past + tokens)` bool, True for real ones; `None` means all.
            device: device of the states.
            neighbours: k.
            clip: c.
        """
        if mask is None:
            real, before = None, torch.full((1,), past, dtype=torch.int64, device=device)
            places = before[:, None] + torch.arange(tokens, device=device)
            after = before + tokens
        else:
            real, before = mask[:, past:], mask[:, :past].sum(1)
            places = (before[:, None] + real.cumsum(1) - 1).clamp(min=0)
            after = before + real.sum(1)
        length, spans, level = int(after.max()), [], 1
        while 1 << level <= length:
            first, last = before >> level, after >> level
            index = first[:, None] + torch.arange(int((last - first).max()), device=device)
            if index.shape[1]:
                spans.append((level, index, index < last[:, None]))
            level += 1
        return GrowingTree(places, real, spans, length, neighbours, clip)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, table: Tensor, *, state: Any, dropout_prob: float = 0.0
    ) -> Tensor:
        """Computes attention of each new node, after the new ones are added to the state, `(B, H, N, D)` → `(B,
        H, N, D)`.
        """
        keys, values = state.store(self.tokens, self.length, self.numbers, key, value)
        wide = torch.promote_types(query.dtype, torch.float32)
        with full_precision(query):
            scaled = query.to(wide) * query.shape[-1] ** -0.5
            context = [self._read_by_tokens(scaled[:, :, : self.tokens], keys, values, table.to(wide), dropout_prob)]
            first = self.tokens
            for level, index, _ in self.spans:
                spans = scaled[:, :, first : first + index.shape[1]]
                tokens = (index[..., None] << level) + torch.arange(1 << level, device=index.device)
                numbers = number_of(0, tokens).clamp(
                    max=keys.shape[2] - 1
                )  # a span that a row lacks may lie beyond its end
                biases = spans.new_zeros(1, 1, 1, 1)  # one label for all, which changes nothing
                context.append(_gathered(spans, keys, values, numbers, biases, dropout_prob))
                first += index.shape[1]
        return torch.cat(context, dim=2).to(value.dtype)

    def _read_by_tokens(
        self, query: Tensor, keys: Tensor, values: Tensor, table: Tensor, dropout_prob: float
    ) -> Tensor:
        """Computes attention of tokens, `(B, H, T, D)`, some tokens at a time."""
        reach, numbers, rows = self.neighbours, [number_of(0, self.places[..., None])], [0]
        level = 0
        while level == 0 or (self.length - 2 + reach) >> level >= reach:
            levels, index = left_neighbours(self.places, level, reach)
            numbers.append(torch.where(index < 0, -1, number_of(levels, index)))
            rows += [(2 * reach + 1) * min(level, self.clip) + 2 * slot + 1 for slot in range(reach)]
            level += 1
        places, biases = torch.cat(numbers, dim=-1), query @ table[torch.tensor(rows, device=query.device)].T
        step = max(1, GATHERED // max(1, places.shape[-1] * query.shape[0] * query.shape[1] * query.shape[3]))
        pieces = [slice(start, start + step) for start in range(0, self.tokens, step)]
        mixed = [
            _gathered(query[:, :, piece], keys, values, places[:, piece], biases[:, :, piece], dropout_prob)
            for piece in pieces
        ]
        return torch.cat(mixed, dim=2) if mixed else query


Tree = WholeTree | GrowingTree


def number_of(level: Tensor | int, index: Tensor) -> Tensor:
    """Returns the place in a state of node `index` of a level, int64: a span is between the halves that it covers, so
    that a growing tree does not renumber its nodes.
    """
    return (2 * index + 1) * (1 << level) - 1


def _gathered(
    query: Tensor, keys: Tensor, values: Tensor, places: Tensor, biases: Tensor, dropout_prob: float
) -> Tensor:
    """Computes softmax attention of each query `(B, H, T, D)` over its own keys, at `places` `(1 or B, T, C)` of `(B,
    H, S, D)`; negative places are masked. `biases` `(B, H, T, C)` are added to scores.
    """
    near_keys, near_values = (_at(tensor, places.clamp(min=0)).to(query.dtype) for tensor in (keys, values))
    scores = (near_keys @ query[..., None])[..., 0] + biases
    scores = scores.masked_fill((places < 0)[:, None], torch.finfo(scores.dtype).min)
    weights = functional.dropout(scores.softmax(-1), dropout_prob)
    return (weights[..., None, :] @ near_values)[..., 0, :]


def _at(hidden: Tensor, places: Tensor) -> Tensor:
    """Gathers `(B, H, S, D)` at places `(1 or B, T, C)`, `(B, H, T, C, D)`."""
    if len(places) == 1:
        return hidden.index_select(2, places.flatten()).unflatten(2, tuple(places.shape[1:]))
    index = places.flatten(1)[:, None, :, None].expand(-1, hidden.shape[1], -1, hidden.shape[3])
    return hidden.gather(2, index).unflatten(2, tuple(places.shape[1:]))
