"""Mechanisms in which positions alone decide what a query attends to: a pattern is all that they define."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from longspan.attention.base import Attention
from longspan.attention.config import AttentionConfig, Reach
from longspan.attention.parts.windowed import PAIRS, CountedAttention
from longspan.patterns import Pattern


@dataclass(frozen=True, kw_only=True)
class PatternConfig(AttentionConfig):
    """Base of mechanisms that attend by a pattern over the positions of real tokens, and to global tokens.

    A subclass defines its key, fields, source and `pattern`. Scores per token, dependencies, reach, global tokens,
    states for decoding and the module follow from the pattern.

    Attributes:
        separate_global_projections: global queries use `global_query`, `global_key`, `global_value`.
    """

    causal: ClassVar[bool] = True
    incremental: ClassVar[bool] = True

    separate_global_projections: bool = False

    def pattern(self, *, heads: int, causal: bool) -> Pattern:
        """Returns the pattern of `heads` heads, bidirectional or causal; a `PerHead` if heads differ."""
        raise NotImplementedError(f"attention {self.mechanism!r} must define pattern(heads=…, causal=…)")

    @property
    def distinct_heads(self) -> int:
        """The number of different heads, which the heads of a layer repeat in turn."""
        return 1

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        """Counts every visible pair. With globals, every query attends to them and they attend to every key; a global
        that is visible by the pattern counts twice."""
        pattern = self.pattern(heads=self.distinct_heads, causal=causal)
        most = (length + 1) / 2 if causal else float(length)
        pairs = pattern.count_visible(length) / (pattern.heads or 1)
        return min(most, pairs / max(length, 1) + 2 * global_tokens)

    def depends_on(self, needed: Tensor, *, is_global: Tensor | None = None, causal: bool = False) -> Tensor:
        """Exact, except that a layer may have fewer heads than `distinct_heads`."""
        if is_global is not None and bool((needed & is_global).any()):
            return needed.any().expand(needed.shape)
        pattern = self.pattern(heads=self.distinct_heads, causal=causal).of_length(len(needed))
        keys, visible = torch.arange(len(needed)), needed.clone()
        for queries in keys[needed].split(max(1, PAIRS // max(1, len(needed)))):
            shown = pattern.visible(queries[:, None], keys[None, :]).expand(*[-1] * bool(pattern.heads), -1, len(keys))
            visible |= shown.flatten(0, -2).any(0)
        return visible if is_global is None else visible | (is_global & needed.any())

    def reach(self) -> Reach:
        """Bounded if the pattern is a window; derived classes with other bounded patterns must state theirs."""
        first, last, step = self.pattern(heads=self.distinct_heads, causal=False).reach()
        bounded = step is not None and -sys.maxsize < first and last < sys.maxsize
        return Reach(left=max(0, -first), right=max(0, last)) if bounded else Reach()

    def build(self, *, width: int, heads: int, causal: bool = False) -> Attention:
        return PatternAttention(self, width=width, heads=heads, causal=causal)


class PatternAttention(CountedAttention):
    """The module of a `PatternConfig`."""

    config: PatternConfig

    def make_pattern(self) -> Pattern:
        return self.config.pattern(heads=self.heads, causal=self.causal)
