"""A binary tree over the tokens of a text, and the nodes that each token reads.

Level 0 holds the T tokens; node m of level j covers the tokens `m·2^j … min((m + 1)·2^j, T) − 1`. On each side a token
reads k nodes of every level, starting next to itself and continuing where the level below ends, so that its neighbours
are covered exactly once (Ye et al. 2019, "BP-Transformer", arXiv 1911.04070, section 3).

The authors move a pointer from level to level. In closed form, that of token i at level j is `((i + 1 − k) >> j) + k`
on the right and `((i − 1 + k) >> j) − k` on the left. So all tokens of a block of 2^j read the same k nodes, except for
the first: where the level below ends in the middle of a pair, the affected half of the block reads the other node of
that pair instead of their parent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def level_count(tokens: int) -> int:
    """Returns the number of levels of the tree over `tokens` tokens, including tokens and root."""
    levels = 1
    while tokens > 1:
        tokens, levels = (tokens + 1) // 2, levels + 1
    return levels


@dataclass(frozen=True)
class Partition:
    """The tree over T tokens, with nodes numbered level by level, starting with the tokens.

    Attributes:
        tokens: T.
        levels: number of levels; more than `level_count` adds roots that no token reads.
        neighbours: k, nodes on each side and level.
        clip: c, the last level with separate labels.
        causal: whether tokens read nodes to their left only.
        spare: absent nodes added to each level above the tokens, for exported programs that take texts of any length,
            which would otherwise specialise on levels of one node.
    """

    tokens: int
    levels: int
    neighbours: int
    clip: int
    causal: bool
    spare: int = 0

    @property
    def labels(self) -> int:
        """The number of edge labels: `2k + 1` for each level up to the clip."""
        return (2 * self.neighbours + 1) * (self.clip + 1)

    def label_rows(self, device: torch.device) -> Tensor:
        """Returns the labels of edges into tokens: of the token itself, then of the neighbours at each level up to the
        last that is read, `(labels,)` int64. Labels of `windows` index into these."""
        neighbours = torch.arange(1, 2 * self.neighbours + 1, 2 // self._sides, device=device)
        levels = torch.arange(min(self.clip, max(self.levels - 2, 0)) + 1, device=device)
        rows = (2 * self.neighbours + 1) * levels[:, None] + neighbours
        return torch.cat([rows.new_zeros(1), rows.flatten()])

    @property
    def _sides(self) -> int:
        return 1 if self.causal else 2

    @property
    def unread(self) -> int:
        """The label of a missing edge."""
        return 1 + self._sides * self.neighbours * (min(self.clip, max(self.levels - 2, 0)) + 1)

    @property
    def counts(self) -> list[int]:
        """Nodes of each level."""
        counts = [(self.tokens + (1 << level) - 1) // (1 << level) for level in range(self.levels)]
        return counts[:1] + [count + self.spare for count in counts[1:]]

    @property
    def offsets(self) -> list[int]:
        """The index of the first node of each level, and finally the number of nodes."""
        offsets = [0]
        for count in self.counts:
            offsets.append(offsets[-1] + count)
        return offsets

    @property
    def nodes(self) -> int:
        """The total number of nodes, about 2T."""
        return self.offsets[-1]

    def node_starts(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Returns the level and the first token of each node, `(N,)` int64 both."""
        indices = [torch.arange(count, device=device) for count in self.counts]
        levels = [torch.full_like(index, level) for level, index in enumerate(indices)]
        return torch.cat(levels), torch.cat([index << level for level, index in enumerate(indices)])

    def present(self, counts: Tensor) -> Tensor:
        """Returns which nodes exist in the trees of rows with `counts` `(B,)` tokens, `(B, N)` bool."""
        level, start = self.node_starts(counts.device)
        length = counts[:, None]
        # A level exists if the one below has two nodes; beyond it there would be roots of roots.
        return (start < length) & ((level == 0) | ((1 << (level - 1).clamp(min=0)) < length))

    def edges(self) -> int:
        """Returns the number of nodes that all tokens read, including themselves: about T·k·log₂(T/k) on each side."""
        tokens, reach, total = torch.arange(self.tokens), self.neighbours, self.tokens
        for level, count in enumerate(self.counts):
            left = ((tokens - 1 + reach) >> level) - reach
            total += int((left + 1).clamp(0, reach).sum())
            if self.causal:
                continue
            right = ((tokens + 1 - reach) >> level) + reach
            total += int((count - right).clamp(0, reach).sum())
            if level:
                child = ((tokens + 1 - reach) >> (level - 1)) + 2 * reach
                total -= int(((child & 1 == 1) & (child >= self.counts[level - 1]) & (right < count)).sum())
        return total

    def windows(self, first: int, count: int, size: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Returns what `count` consecutive chunks of `size` tokens read, the first chunk beginning at `first`.

        Returns:
            Node indices `(n, C)`, all that any token of a chunk reads; the label of the edge from each node to each
            token, `(n, size, C)`, as an index into `label_rows`, or `unread`; and the first token that each node
            covers, `(n, C)`.
        """
        starts = first + size * torch.arange(count, device=device)[:, None]
        ends = first, first + size * (count - 1)
        parts = [self._beside(starts, ends, size)]
        for level in range(1, self.levels - 1):  # the root covers every token, so none reads it
            parts += self._side(starts, ends, size, level, right=False)
            parts += [] if self.causal else self._side(starts, ends, size, level, right=True)
        numbers, labels, begins = [], [], []
        for level, index, label in parts:
            begin = index << level
            there = (index >= 0) & (begin < self.tokens)
            numbers.append(torch.where(there, index, 0) + self.offsets[level])
            labels.append(label.masked_fill(~there[:, None], self.unread))
            begins.append(begin)
        return torch.cat(numbers, -1), torch.cat(labels, -1), torch.cat(begins, -1)

    def _beside(self, starts: Tensor, ends: tuple[int, int], size: int) -> tuple[int, Tensor, Tensor]:
        """Returns the tokens that chunks read, including themselves: level, indices and labels as in `windows`."""
        reach = self.neighbours
        tokens = starts + torch.arange(size, device=starts.device)
        wanted = _those_there(-reach, size if self.causal else size + reach, ends, self.tokens)
        index = starts + torch.arange(*wanted, device=starts.device)
        distance = index[:, None, :] - tokens[:, :, None]
        label = -distance if self.causal else torch.where(distance > 0, 2 * distance, -2 * distance - 1).clamp(min=0)
        seen = (distance >= -reach) & (distance <= (0 if self.causal else reach))
        return 0, index, label.masked_fill(~seen, self.unread)

    def _side(
        self, starts: Tensor, ends: tuple[int, int], size: int, level: int, *, right: bool
    ) -> list[tuple[int, Tensor, Tensor]]:
        """Returns the nodes of one level on one side, and those of the level below that replace the first of them:
        level, indices and labels as in `windows`."""
        reach, device, shift = self.neighbours, starts.device, 1 - self.neighbours if right else self.neighbours - 1
        tokens = starts + shift + torch.arange(size, device=device)
        block, replaced = tokens >> level, ((tokens >> (level - 1)) & 1) == (1 if right else 0)
        first, ends = (starts + shift) >> level, ((ends[0] + shift) >> level, (ends[1] + shift) >> level)
        blocks = (size + (1 << level) - 1) // (1 << level) + 1
        away, count = (reach, self.counts[level]) if right else (1 - 2 * reach, self.counts[level])
        index = first + torch.arange(*_those_there(away, away + blocks + reach - 1, ends, count), device=device)
        slot = (index[:, None, :] - block[:, :, None] - reach) if right else block[:, :, None] - reach - index[:, None]
        seen = (slot >= replaced[:, :, None].long()) & (slot < reach)
        first_label = 1 + self._sides * reach * min(level, self.clip) + int(right)
        label = (first_label + self._sides * slot).masked_fill(~seen, self.unread)
        away = reach if right else -reach
        parent = first + torch.arange(*_those_there(away, away + blocks, ends, count), device=device)
        is_replaced = (parent[:, None, :] == block[:, :, None] + away) & replaced[:, :, None]
        child_label = torch.full_like(is_replaced, first_label, dtype=torch.int64).masked_fill(
            ~is_replaced, self.unread
        )
        return [(level, index, label), (level - 1, 2 * parent + (1 if right else 0), child_label)]


def _those_there(low: int, high: int, ends: tuple[int, int], count: int) -> tuple[int, int]:
    """Clips the range from `low` to `high`, relative to the first and last chunks at `ends`, to `count` existing nodes;
    not in a program for texts of any length."""
    if not isinstance(count, int):
        return low, high
    low, high = max(low, -ends[1]), min(high, count - ends[0])
    return low, max(low, high)


def left_neighbours(places: Tensor, level: int, neighbours: int) -> tuple[Tensor, Tensor]:
    """Returns the k nodes to the left of tokens at `places` `(…,)` at one level: level and index of each, `(…, k)`
    int64 both, nearest first. Negative indices do not exist; all other nodes end before the token."""
    pointer = ((places - 1 + neighbours) >> level) - neighbours
    index = pointer[..., None] - torch.arange(neighbours, device=places.device)
    levels = torch.full_like(index, level)
    if level:
        below = ((places - 1 + neighbours) >> (level - 1)) - 2 * neighbours
        replaced = (below & 1) == 0
        index[..., 0] = torch.where(replaced, below, index[..., 0])
        levels[..., 0] = torch.where(replaced, level - 1, levels[..., 0])
    return levels, index
