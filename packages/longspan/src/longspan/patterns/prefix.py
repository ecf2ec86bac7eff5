"""The attention mask of a prefix language model: a bidirectional source and a causal target in one sequence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.patterns.base import LARGEST_TILE, Pattern, Span
from longspan.patterns.kinds import LARGEST, whole


@dataclass(frozen=True)
class Prefix(Pattern):
    """The first `count` positions, the source, are bidirectional; each later position sees the source and all positions
    up to itself.

    The source does not see the target. With `targets`, that many target positions are followed by as many pseudo masks:
    mask j takes the position of target j, sees the source, the true targets before j and itself, and is not seen by any
    other position. So all targets are predicted in one pass, each from the true targets before it.

    Source: UniLM (Dong et al. 2019, arXiv 1905.03197, §2.3); pseudo masks from UniLMv2 (Bao et al. 2020, 2002.12804).
    """

    count: int
    targets: int = 0

    def __post_init__(self) -> None:
        whole(self, "count", 0)
        whole(self, "targets", 0)

    @property
    def _end(self) -> int:
        """The end (exclusive) of the true targets."""
        return self.count + (self.targets or LARGEST)

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        true = key_index < query_index - self.targets
        masked = (true & (key_index < self._end)) | (key_index == query_index)
        target = torch.where(query_index < self._end, key_index <= query_index, masked)
        return (key_index < self.count) | target

    def some(self, span: Span) -> Tensor:
        end = self._end
        target = (span.q0 < end) & (span.k0 <= span.q1.clamp(max=end - 1))
        true = span.k0 < (span.q1 - self.targets).clamp(max=end)
        itself = (span.q0.clamp(min=end) <= span.k1) & (span.k0 <= span.q1)
        return (span.k0 < self.count) | target | ((span.q1 >= end) & (true | itself))

    def every(self, span: Span) -> Tensor:
        end = self._end
        target = (span.q1 < end) & (span.k1 <= span.q0)
        true = (span.q0 >= end) & (span.k1 < (span.q0 - self.targets).clamp(max=end))
        return (span.k1 < self.count) | target | true

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        # The ends of the source and of the true targets relative to the tile, and the tile's distance from both
        # diagonals.
        apart = key_start - query_start
        edges = (self.count - key_start, self._end - key_start, self._end - query_start)
        phases = [torch.clamp(edge, 0, LARGEST_TILE) for edge in edges]
        phases += [torch.clamp(apart + shift, -LARGEST_TILE, LARGEST_TILE) for shift in (0, self.targets)]
        return list(torch.broadcast_tensors(*phases))
