"""Sparse Transformer: a token attends to nearby tokens, and to one position in every stride of distant ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from longspan.attention.config import Activations, Lengthening, Reach
from longspan.attention.patterned import PatternConfig
from longspan.attention.support import Support
from longspan.errors import InputError
from longspan.patterns import Causal, Fixed, Pattern, PerHead, Strided, Window
from longspan.settings import Count


@dataclass(frozen=True, kw_only=True)
class SparseConfig(PatternConfig):
    """Two sets of keys for each query, with which every token reaches every other in two steps.

    Positions count the real tokens of a row: the result for a document is the same alone, padded or batched.

    Attributes:
        kind: "fixed" for text: the query's own block of `stride` tokens, and the last `summary_tokens` of every block.
            "strided" for periodic data such as images and music: the nearest `stride` tokens, including itself, and
            every `stride`-th token.
        stride: tokens of a block, or between two positions of a column (paper: l). About √T makes the cost T·√T in all;
            with a constant stride, it grows with the square of the length.
        summary_tokens: with "fixed", how many positions of a block are visible to all tokens (paper: c).
        heads: "merged": every head attends to both sets. "per_head": with "strided", heads alternate between the two;
            with "fixed", each head attends to its own block and to other `summary_tokens` of the blocks.
        sub_blocks: with "fixed" and "per_head", the number of sub-blocks of `summary_tokens` between which heads
            alternate, counted from the end of a block.
    """

    mechanism: ClassVar[str] = "sparse"
    cost: ClassVar[str] = "stride + summary_tokens·T / stride + 2G (strided: 2·stride + T / stride; causal: half)"
    source: ClassVar[str] = "Child et al. 2019, arXiv 1904.10509, sections 4.2 and 4.3"
    support: ClassVar[Mapping[str, Support]] = {
        "linear": "every token sees a share of all others",
        "static_cache": True,
    }

    kind: Literal["fixed", "strided"] = "fixed"
    stride: Count = 128
    summary_tokens: Count = 32
    heads: Literal["merged", "per_head"] = "merged"
    sub_blocks: Count = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "strided":
            return
        if self.summary_tokens > self.stride:
            raise InputError(
                f"summary_tokens={self.summary_tokens} are more than the stride={self.stride} of a block; give at most "
                "the stride"
            )
        if self.distinct_heads * self.summary_tokens > self.stride:
            raise InputError(
                f"sub_blocks={self.sub_blocks} of summary_tokens={self.summary_tokens} do not fit into a block of "
                f"stride={self.stride}; give at most {self.stride // self.summary_tokens}"
            )

    def activations(self) -> Activations:
        """Merged heads save the output of the second set of keys too."""
        return Activations(copies=1 if self.heads == "merged" else 0)

    @property
    def distinct_heads(self) -> int:
        """The number of patterns between which heads alternate: 1 merged, 2 strided, `sub_blocks` fixed."""
        return 1 if self.heads == "merged" else 2 if self.kind == "strided" else self.sub_blocks

    def reach(self) -> Reach:
        return Reach(period=self.stride)

    @property
    def idle(self) -> frozenset[str]:
        strided = {"summary_tokens", "sub_blocks"} if self.kind == "strided" else set()
        return frozenset(strided | ({"sub_blocks"} if self.heads == "merged" else set()))

    @classmethod
    def defaults_for(cls, tokens: int, given: Mapping[str, Any]) -> dict[str, Any]:
        """The stride for inputs so long that the published one costs more than the power of two next to their root."""
        stride = 1 << max(0, round(tokens**0.5).bit_length() - 1)
        return {"stride": stride} if stride > cls.stride else {}

    def lengthening(self, tokens: int = 1) -> Lengthening:
        covers = tokens <= (1 if self.kind == "strided" and self.heads == "per_head" else self.stride)
        wide = replace(self, stride=max(self.stride, tokens))
        return replace(super().lengthening(tokens), covers=covers, widened=wide)

    def pattern(self, *, heads: int, causal: bool) -> Pattern:
        """Every head that takes the same part sees the same places."""
        parts = [self._part(part, causal) for part in range(self.distinct_heads)]
        return parts[0] if len(parts) == 1 else PerHead([parts[head % len(parts)] for head in range(heads)])

    def _part(self, part: int, causal: bool) -> Pattern:
        if self.kind == "fixed":
            fixed = Fixed(self.stride, self.summary_tokens, part)
            return fixed & Causal() if causal else fixed
        near = Window(self.stride - 1, 0 if causal else self.stride - 1)
        far = Strided(self.stride) & Causal() if causal else Strided(self.stride)
        return near | far if self.heads == "merged" else (near, far)[part]
