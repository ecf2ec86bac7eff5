"""All terms of one call in the tiles of the blocked backend."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longspan.ops.attend.call import Call
from longspan.ops.attend.terms import Bias, GlobalKeyBias, OffsetTerm, PositionBias
from longspan.ops.tiles.bias_tiles import BiasTiles, GlobalKeyTiles, PositionBiasTiles
from longspan.ops.tiles.content_tiles import ContentTiles, Offsets
from longspan.ops.tiles.tile_memory import Buffers, put
from longspan.ops.tiles.tiles import Chunk, Layout
from longspan.patterns import Blocks, Both, Causal, Full, Pattern, Window


class TermTiles:
    """Where the scores of a chunk start, what is added to them, and where their gradients go.

    Args:
        wanted: for each tensor of each term whether its gradient is.
    """

    def __init__(
        self, call: Call, tiling: Layout, buffers: Buffers, key_tiles: Tensor, wanted: Sequence[bool] = ()
    ) -> None:
        self.call, self.tiling, self.keys = call, tiling, key_tiles
        self.offsets = offsets_of(call, tiling)
        self.parts: list[Any] = []
        flags = list(wanted) or [False] * sum(len(term.tensors) for term in call.terms)
        for term in call.terms:
            own, flags = flags[: len(term.tensors)], flags[len(term.tensors) :]
            if isinstance(term, Bias):
                self.parts.append(BiasTiles(term, tiling, own))
            elif isinstance(term, PositionBias):
                self.parts.append(PositionBiasTiles(term, tiling, self.offsets, own))
            elif isinstance(term, GlobalKeyBias):
                self.parts.append(GlobalKeyTiles(term, tiling, own))
            elif isinstance(term, OffsetTerm):
                # Only what is put into the scores first may hide what the pattern does not show.
                hides = self.offsets.exact and not any(isinstance(part, ContentTiles) for part in self.parts)
                self.parts.append(ContentTiles(term, tiling, self.offsets, buffers, own, hides))
        self.content = [part for part in self.parts if isinstance(part, ContentTiles)]
        self.added = [part for part in self.parts if isinstance(part, BiasTiles | PositionBiasTiles)]
        self.columns = [part for part in self.parts if isinstance(part, GlobalKeyTiles)]
        self.starts = bool(self.content or self.columns)
        self.may_hide = any(
            bool(torch.isneginf(part.values).any())
            for part in self.parts
            if isinstance(part, BiasTiles | GlobalKeyTiles)
        )

    def hides_pattern(self, chunk: Chunk) -> bool:
        """Whether what `start` writes hides all near keys that the pattern does not show."""
        if not self.content or not self.offsets.exact or not self.content[0].uses_band(chunk):
            return False
        last = chunk.first_column + chunk.width + (chunk.count - 1) * (chunk.group.step or 0)
        return last * self.tiling.size <= self.tiling.keys

    def start(self, scores: Tensor, query: Tensor, keys: Tensor, chunk: Chunk) -> None:
        """Write the content terms and those of global keys to the scores `(b, h, n, size, L + G)`, in their type."""
        width = chunk.width * self.tiling.size
        near = scores[..., :width].flatten(0, 1)
        run, pairs = self._keys(keys, chunk)
        for index, part in enumerate(reversed(self.content) if width else ()):
            found = part.scores(query, run, pairs, chunk, self.call.scale, scores.dtype)
            near.add_(found) if index else near.copy_(found)
        if not self.content:
            near.zero_()
        for index, part in enumerate(self.columns):
            scores[..., width:].add_(part.of(chunk)) if index else scores[..., width:].copy_(part.of(chunk))
        if not self.columns and scores.shape[-1] > width:
            scores[..., width:].zero_()

    def added_to(self, chunk: Chunk) -> Tensor | None:
        """The sum of all biases of the near keys of a chunk."""
        found = [part.of(chunk) for part in self.added]
        return None if not found else sum(found[1:], start=found[0])

    def add_gradients(
        self,
        grad: Tensor,
        query: Tensor,
        grad_query: Tensor,
        keys: Tensor,
        grad_keys: Tensor,
        total: Tensor,
        chunk: Chunk,
    ) -> None:
        """From the gradient of the scores `(b, h, n, size, L + G)` add to those of all that they were made of.

        Args:
            grad_query: that of the queries of the chunk.
            grad_keys: that of the keys of the chunk `(b, h, n, L + G, D)`, still without the scale.
            total: that of all key tiles, still without the scale.
        """
        width, scale = chunk.width * self.tiling.size, self.call.scale
        for part in self.added if width else ():
            part.add_gradient(grad[..., :width], chunk)
        for part in self.columns:
            if part.total is not None:
                put(part.total, grad[..., width:], chunk)
        near, (run, pairs) = grad[..., :width].flatten(0, 1), self._keys(keys, chunk)
        for part in self.content if width else ():
            found = part.add_gradients(near, query, run, pairs, chunk)
            if part.by_query:
                grad_query.add_(found, alpha=scale)
            elif part.uses_band(chunk):
                self._run(total, chunk).add_(found)
            else:
                grad_keys[..., :width, :].add_(found.flatten(3, 4))

    def gradients(self) -> list[Tensor]:
        """Those of all tensors of all terms, empty where they are not wanted."""
        scale = self.call.scale
        return [
            each
            for part in self.parts
            for each in (part.gradients(scale) if isinstance(part, ContentTiles) else part.gradients())
        ]

    def _keys(self, keys: Tensor, chunk: Chunk) -> tuple[Tensor | None, Tensor]:
        """The key tiles of a band, each once, and the near keys of a chunk by pair of tiles."""
        width, size = chunk.width, self.tiling.size
        run = self._run(self.keys, chunk) if chunk.is_band else None
        return run, keys[..., : width * size, :].unflatten(3, (width, size))

    def _run(self, tiles: Tensor, chunk: Chunk) -> Tensor:
        """The key tiles that a band sees, each once: `(b, h, n + m − 1, size, D)`."""
        first = chunk.first_column
        return tiles[chunk.batch, chunk.heads, first : first + chunk.count + chunk.width - 1]


def offsets_of(call: Call, tiling: Layout) -> Offsets:
    """The offsets that the pattern may show between any two places in the tiles."""
    low, high, exact = bounds(call.pattern)
    least = 1 - tiling.query_tiles * tiling.size - call.query_offset
    most = tiling.key_tiles * tiling.size - 1 - call.query_offset
    low, high = min(max(low, least), most), max(min(high, most), least)
    return Offsets(low, max(low, high), exact, -call.query_offset, call.step)


def bounds(pattern: Pattern) -> tuple[int, int, bool]:
    """The smallest and the largest offset key − query that a pattern of one head shows, and whether it shows just those
    between them."""
    if isinstance(pattern, Window):
        return -pattern.left * pattern.dilation, pattern.right * pattern.dilation, pattern.dilation == 1
    if isinstance(pattern, Causal):
        return -sys.maxsize, 0, True
    if isinstance(pattern, Blocks):
        return 1 - pattern.size, pattern.size - 1, False
    if isinstance(pattern, Both):
        first, second = bounds(pattern.first), bounds(pattern.second)
        return max(first[0], second[0]), min(first[1], second[1]), first[2] and second[2]
    return -sys.maxsize, sys.maxsize, isinstance(pattern, Full)
