"""Tables of relative positions that all layers of an encoder share, and the row of each pair of tokens."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class RelativeTables(NamedTuple):
    """The tables as tensors, which an encoder passes to its layers in `Tokens.relative`.

    Attributes:
        near: `(2k, E)`, one row per clipped offset (paper: P), or per logarithmic bucket of offsets (DeBERTa-v2).
        far: `(2k_g, E)`, one row per bucket of offsets, for pairs with a global token (thesis: P_g).
    """

    near: Tensor
    far: Tensor


class RelativePositions(nn.Module):
    """Learned tables of relative positions: one for windows, one for pairs with a global token.

    Args:
        span: offsets from −span to span − 1 have rows of their own in `near` (paper: k).
        width: the model width E.
        buckets: number of buckets on each side in `far` (thesis: k_g).
        near_buckets: rows on each side of `near` for logarithmic buckets of `span` offsets, as in DeBERTa-v2; `None`
            gives each offset a row.
        norm_eps: ε of a LayerNorm over the rows of both tables (DeBERTa-v2); `None` for no LayerNorm.
    """

    def __init__(
        self,
        span: int,
        width: int,
        *,
        buckets: int = 64,
        near_buckets: int | None = None,
        norm_eps: float | None = None,
    ) -> None:
        super().__init__()
        self.span, self.near_buckets = span, near_buckets
        self.near = nn.Embedding(2 * (near_buckets or span), width)
        self.far = nn.Embedding(2 * buckets, width)
        self.norm = None if norm_eps is None else nn.LayerNorm(width, eps=norm_eps)
        for table in (self.near, self.far):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self) -> RelativeTables:
        """Returns both tables for `Tokens(relative=…)`: `near` `(2k, E)` and `far` `(2k_g, E)`, after the
        LayerNorm if any.
        """
        near, far = self.near.weight, self.far.weight
        return RelativeTables(near, far) if self.norm is None else RelativeTables(self.norm(near), self.norm(far))

    @torch.no_grad()
    def copy_to_buckets(self, global_span: int) -> None:
        """Copies to each row of `far` the row of `near` at the middle of its bucket, clipped; for published weights.

        Args:
            global_span: number of offsets on each side that the buckets divide (thesis: N_max).
        """
        offset = bucket_middles(self.far.num_embeddings // 2, global_span).to(self.near.weight.device)
        self.far.weight.copy_(self.near.weight[near_row(offset, self.span, self.near_buckets)])


def near_row(offset: Tensor, span: int, buckets: int | None = None) -> Tensor:
    """Returns the row of `near` for an offset: `δ = clip(offset + span, 0, 2·span − 1)` (DeBERTa, He et al. 2020,
    equation 3), or that of its logarithmic bucket if there are `buckets` on each side.
    """
    row = offset + span if buckets is None else log_bucket(offset, buckets, span) + buckets
    return row.clamp(0, 2 * (buckets or span) - 1)


def log_bucket(offset: Tensor, buckets: int, span: int) -> Tensor:
    """Returns the signed bucket of an offset: itself up to m = ⌊buckets / 2⌋, further away `m + ⌈(m − 1) · ln(|offset|
    / m) / ln((span − 1) / m)⌉`, so that `span − 1` offsets fill the buckets.

    Source: `make_log_bucket_position` of DeBERTa-v2 (He et al. 2021, DeBERTaV3, arXiv 2111.09543, released code), also
    in float32, since rounding determines the edges of buckets.
    """
    exact = buckets // 2
    distance = offset.abs()
    ratio = (distance.clamp(min=exact) / exact).float().log() / torch.tensor((span - 1) / exact).log()
    further = (ratio * (exact - 1)).ceil().long() + exact
    return torch.where(distance <= exact, offset, further * offset.sign())


def bucket(offset: Tensor, buckets: int, global_span: int) -> Tensor:
    """Returns the row of `far` for any offset: `global_span` offsets on each side, evenly over `buckets` rows each.

    `b(r) = k_g + min(k_g − 1, ⌊r·k_g / N_max⌋)` for r ≥ 0, and `k_g − 1 − min(k_g − 1, ⌊(−r − 1)·k_g / N_max⌋)` for r <
    0; letters: r = `offset` (query − key), k_g = `buckets`, N_max = `global_span`. The thesis applies b to a clipped
    offset, which would not distinguish distant pairs; here it is applied to the offset itself.
    """
    ahead = offset >= 0
    distance = torch.where(ahead, offset, -offset - 1)
    code = (distance * buckets // global_span).clamp(max=buckets - 1)
    return torch.where(ahead, buckets + code, buckets - 1 - code)


def bucket_middles(buckets: int, global_span: int) -> Tensor:
    """Returns the offset in the middle of each of the `2 · buckets` rows of `far`, `(2k_g,)`."""
    code = torch.arange(2 * buckets)
    return (2 * (code - buckets) + 1) * global_span // (2 * buckets)
