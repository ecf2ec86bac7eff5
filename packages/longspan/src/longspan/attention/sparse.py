"""Sparse Transformer: a token attends to nearby tokens, and to one position in every stride of distant ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from longspan.attention.config import Activations, AttentionConfig, Lengthening, Reach
from longspan.attention.parts.windowed import CountedAttention, pairs_within, shifted
from longspan.attention.support import Support
from longspan.errors import InputError
from longspan.patterns import Causal, Fixed, Pattern, PerHead, Strided, Window
from longspan.settings import Count


@dataclass(frozen=True, kw_only=True)
class SparseConfig(AttentionConfig):
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
        separate_global_projections: whether global queries use `global_query`, `global_key`, `global_value`.
    """

    mechanism: ClassVar[str] = "sparse"
    causal: ClassVar[bool] = True
    incremental: ClassVar[bool] = True
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
    separate_global_projections: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "strided":
            return
        if self.summary_tokens > self.stride:
            raise InputError(
                f"summary_tokens={self.summary_tokens} are more than the stride={self.stride} of a block; give at most "
                "the stride"
            )
        if self.parts * self.summary_tokens > self.stride:
            raise InputError(
                f"sub_blocks={self.sub_blocks} of summary_tokens={self.summary_tokens} do not fit into a block of "
                f"stride={self.stride}; give at most {self.stride // self.summary_tokens}"
            )

    def activations(self) -> Activations:
        """Merged heads save the output of the second set of keys too."""
        return Activations(copies=1 if self.heads == "merged" else 0)

    @property
    def parts(self) -> int:
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

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        """Includes the edges. Every query attends to global tokens, and they to every key; a global token that is
        visible anyway counts for both.
        """
        counts = [self._pairs(length, part, causal) for part in range(self.parts)]
        most = (length + 1) / 2 if causal else float(length)
        return min(most, sum(counts) / self.parts / max(length, 1) + 2 * global_tokens)

    def _pairs(self, length: int, part: int, causal: bool) -> int:
        """Returns the number of pairs of a head with this pattern."""
        stride, count, (blocks, rest) = self.stride, self.summary_tokens, divmod(length, self.stride)
        before = stride * blocks * (blocks - 1) // 2 + rest * blocks  # whole blocks before a token, over all tokens
        if self.kind == "strided":
            near = pairs_within(length, 1 - stride, 0 if causal else stride - 1)
            far = before if causal else 2 * before
            return near + far if self.heads == "merged" else near if part == 0 else far + length
        if causal:
            return (blocks * stride * (stride + 1) + rest * (rest + 1)) // 2 + count * before
        last = min(max(rest - stride + (part + 1) * count, 0), count)  # columns of the last block, truncated at the end
        in_block = blocks * stride * (stride - count) + rest * (rest - last)
        return in_block + length * (blocks * count + last)

    def depends_on(self, needed: Tensor, *, is_global: Tensor | None = None, causal: bool = False) -> Tensor:
        """Exact, except for an upper bound with fewer heads than `sub_blocks`."""
        if not needed.any() or (is_global is not None and bool((needed & is_global).any())):
            return needed.any().expand(needed.shape)
        place = torch.arange(len(needed))
        if self.kind == "strided":
            last = _last_in_class(needed, place % self.stride)
            near = shifted(needed, 1 - self.stride, 0 if causal else self.stride - 1)
        else:
            last = _last_in_class(needed, place // self.stride)
            columns = place % self.stride >= self.stride - self.parts * self.summary_tokens
            near = columns & (place <= place[needed].max()) if causal else columns
        visible = needed | near | (place <= last if causal else last >= 0)
        return visible if is_global is None else visible | is_global

    def build(self, *, width: int, heads: int, causal: bool = False) -> SparseAttention:
        return SparseAttention(self, width=width, heads=heads, causal=causal)


def _last_in_class(needed: Tensor, kind: Tensor) -> Tensor:
    """Returns for each position of `(T,)` the last needed one of its kind, −1 if there is none."""
    last = torch.full((int(kind.max()) + 1,), -1)
    return last.scatter_reduce(0, kind[needed], needed.nonzero()[:, 0], "amax")[kind]


class SparseAttention(CountedAttention):
    """The module of `SparseConfig`."""

    config: SparseConfig

    def make_pattern(self) -> Pattern:
        """Returns the pattern of each head over the positions of real tokens."""
        parts = [self._part(part) for part in range(self.config.parts)]
        return parts[0] if len(parts) == 1 else PerHead([parts[head % len(parts)] for head in range(self.heads)])

    def _part(self, part: int) -> Pattern:
        config = self.config
        if config.kind == "fixed":
            fixed = Fixed(config.stride, config.summary_tokens, part)
            return fixed & Causal() if self.causal else fixed
        near = Window(config.stride - 1, 0 if self.causal else config.stride - 1)
        far = Strided(config.stride) & Causal() if self.causal else Strided(config.stride)
        return near | far if config.heads == "merged" else (near, far)[part]
