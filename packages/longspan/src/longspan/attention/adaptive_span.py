"""Adaptive spans: every head learns how far back it attends, with a penalty on the span."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention.base import LayerState, input_dtype, projected
from longspan.attention.config import AttentionConfig, AttentionCost, Reach, SharedTables
from longspan.attention.parts.sinusoidal_relative import OffsetAttention
from longspan.attention.parts.tokens import Tokens
from longspan.attention.parts.windowed import pairs_within, shifted
from longspan.attention.support import Support
from longspan.errors import InputError
from longspan.ops.attend import attend
from longspan.ops.attend.reference import full_precision
from longspan.ops.attend.terms import ContentToPosition, SoftSpan, content_scores
from longspan.patterns import Causal, Pattern, Window
from longspan.settings import Count, Range, Share

CUT = 64
"""Keys beyond the longest span are dropped in multiples of this number, so that there are few sizes of tiles."""
DYNAMIC_START = -4.0
"""The bias of dynamic spans that start near 0: a share of 0.018."""


@dataclass(frozen=True, kw_only=True)
class AdaptiveSpanConfig(AttentionConfig):
    """Each head h attends back over a learned span z_h, up to S = `span_tokens`, which ends softly over R positions.

    `softmax_r(q_t·(k_r + p_{t-r}) / √D + log m(t - r))` with `m(x) = clamp((R + z_h - x) / R, 0, 1)`, which is the
    paper's `m · exp(score)`, normalised. Keys beyond all spans of a layer are neither computed nor stored in a state. p
    is a table that all layers and heads of a model share, and the only position information. Training adds
    `span_penalty · S · mean(z share)` of each layer to the loss; with `dynamic`, only the stacks `sequential` and
    `recurrent` support this.

    Attributes:
        span_tokens: S, the longest span of a head in tokens, and the rows of p.
        ramp_tokens: R, the number of positions over which a span ends.
        initial_span: the initial span as a share of S. With `dynamic`, 0 means σ(−4) = 0.018.
        span_penalty: λ, the penalty per token of span.
        dynamic: the span of a head depends on the query's token, `z_t = S·σ(v·x_t + b)`. Keys are then never dropped,
            since their number would depend on later tokens.
        sees_itself: whether a token attends to itself; the published form attends to earlier tokens only.
        bias: whether the projections have biases; the published ones have none.
        mean_span_tokens: the mean span of trained heads, for costs and memory planning; `None` means S.
    """

    mechanism: ClassVar[str] = "adaptive_span"
    bidirectional: ClassVar[bool] = False
    causal: ClassVar[bool] = True
    incremental: ClassVar[bool] = True
    chooses: ClassVar[bool] = True
    cost: ClassVar[str] = "span_tokens (mean_span_tokens + ramp_tokens where given)"
    source: ClassVar[str] = "Sukhbaatar et al. 2019, arXiv 1905.07799, section 2.2"
    support: ClassVar[Mapping[str, Support]] = {
        "bidirectional": "its table of positions has a row for each distance back, and none ahead",
        "globals": "a key beyond the span of a head is not kept",
        "same_length": True,
        "static_cache": True,
    }

    span_tokens: Count = 1024
    ramp_tokens: Count = 32
    initial_span: Share = 0.0
    span_penalty: Annotated[float, Range(0, 1)] = 2e-6
    dynamic: bool = False
    sees_itself: bool = False
    bias: bool = False
    mean_span_tokens: Annotated[float, Range(0, 2**31 - 1)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("ramp_tokens", "mean_span_tokens"):
            value = getattr(self, name)
            if value is not None and value > self.span_tokens:
                raise InputError(
                    f"{name}={value} is longer than span_tokens={self.span_tokens}, which has a position for each "
                    "distance; give at most that, or a longer span"
                )

    @property
    def nearest(self) -> int:
        """Distance of the nearest visible key."""
        return 0 if self.sees_itself else 1

    @property
    def inputs_add_loss(self) -> bool:
        """Whether the module has an `inputs_loss` in training; only stacks that support such losses add it."""
        return self.dynamic and self.span_penalty > 0

    @property
    def idle(self) -> frozenset[str]:
        return super().idle | ({"mean_span_tokens"} if self.mean_span_tokens is None else set())

    def reach(self) -> Reach:
        return Reach(left=self.span_tokens - 1 + self.nearest, right=0)

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        most = self.span_tokens
        if self.mean_span_tokens is not None:
            most = min(most, math.ceil(self.mean_span_tokens) + self.ramp_tokens)
        return pairs_within(length, 1 - most - self.nearest, -self.nearest) / max(length, 1)

    def costs(self, *, length: int, width: int, heads: int, causal: bool = False) -> AttentionCost:
        """Each pair has one more product, with its distance; dynamic spans are a projection to H."""
        cost = super().costs(length=length, width=width, heads=heads, causal=causal)
        spans = width * heads * length if self.dynamic else 0
        return replace(cost, projections=cost.projections + spans, mixing=cost.mixing + width * cost.scores)

    def depends_on(self, needed: Tensor, *, is_global: Tensor | None = None, causal: bool = False) -> Tensor:
        """For spans of the maximal length."""
        return needed | shifted(needed, 1 - self.span_tokens - self.nearest, -self.nearest)

    def shared_tables(self) -> SharedTables | None:
        return SharedTables(
            build=lambda width, heads: DistanceTable(self.span_tokens, width // heads),
            agreed=("span_tokens",),
            trained=("span_tokens", "bias", "dynamic"),
            what="distances",
        )

    def build(self, *, width: int, heads: int, causal: bool = False) -> AdaptiveSpanAttention:
        return AdaptiveSpanAttention(self, width=width, heads=heads, causal=causal)


class DistanceTable(nn.Module):
    """p, one row `(D,)` for each of S distances, nearest first; added to the keys of every head and layer."""

    def __init__(self, rows: int, head_width: int) -> None:
        super().__init__()
        self.distances = nn.Parameter(torch.empty(rows, head_width))
        self.init_extra_weights()

    @torch.no_grad()
    def init_extra_weights(self, std: float = 0.02) -> None:
        """Initialises with N(0, 1) as published, for any `std` of the other weights."""
        nn.init.normal_(self.distances)

    def forward(self) -> tuple[Tensor, ...]:
        """Returns the table `(S, D)`, for `Tokens(relative=…)`."""
        return (self.distances,)


class AdaptiveSpanAttention(OffsetAttention):
    """The module of `AdaptiveSpanConfig`.

    The learned shares of S, `span_share`, stay in [0, 1] in any training loop: reads are always clamped, gradients pass
    unclamped, and the backward pass of a read writes the clamped value into the weight before an optimiser changes it.
    So every update starts inside the range, which equals clamping after each update; `after_step` clamps too, so that
    saved weights are in the range.

    The module owns its table of distances until a model that shares one calls `share_positions`.
    """

    config: AdaptiveSpanConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    table: DistanceTable | None
    growth = CUT

    def __init__(self, config: AdaptiveSpanConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal, bias=config.bias)
        self.pattern, self.nearest = self.make_pattern(), config.nearest
        self._known_share: tuple[tuple[int, int], float] | None = None
        self.table = DistanceTable(config.span_tokens, self.head_width)
        if config.dynamic:
            self.span = nn.Linear(width, heads)
        else:
            self.span_share = nn.Parameter(torch.empty(heads))
        self.init_extra_weights()

    def make_pattern(self) -> Pattern:
        """Returns the pattern of the maximal span with the token itself, which `context` may exclude."""
        return Window(self.config.reach().left or 0, 0)

    @torch.no_grad()
    def init_extra_weights(self, std: float = 0.02) -> None:
        """Initialises all spans to `initial_span`, and the module's own table, if any, as `DistanceTable` does."""
        if self.table is not None:
            self.table.init_extra_weights()
        share = self.config.initial_span
        if not self.config.dynamic:
            nn.init.constant_(self.span_share, share)
            return
        nn.init.zeros_(self.span.weight)
        nn.init.constant_(self.span.bias, math.log(share / (1 - share)) if 0 < share < 1 else DYNAMIC_START)

    def share_positions(self) -> None:
        """Deletes the module's own table; from now on it is passed in `Tokens(relative=…)`."""
        self.table = None

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        if not self.config.dynamic:
            self.span_share.clamp_(0, 1)

    def spans(self, hidden: Tensor) -> Tensor:
        """Returns z as a share of S in float32 at least, for tokens `(B, T, E)`: `(1, H, 1)`, or `(B, H,
        T)` if dynamic.
        """
        if self.config.dynamic:
            with full_precision(hidden):
                logits = projected(self.span, hidden.to(input_dtype(self.span)))
            return logits.to(torch.promote_types(logits.dtype, torch.float32)).sigmoid().transpose(1, 2)
        return self.clamped_share()[None, :, None]

    def clamped_share(self) -> Tensor:
        """Returns `span_share` in [0, 1], `(H,)` in float32 at least, with the gradient of the unclamped weight."""
        share = self.span_share
        clamped = share.clamp(0, 1)
        if isinstance(share, nn.Parameter) and torch.is_grad_enabled():
            clamped = share + (clamped - share).detach()
            if share.requires_grad and not torch.compiler.is_compiling():
                clamped.register_hook(lambda _: _write_clamped(share))
        return clamped.to(torch.promote_types(share.dtype, torch.float32))

    def seen_tokens(self) -> int:
        """Returns the number of keys of the longest span now, including dropped ones that no head attends to: S less a
        multiple of 64. It is S if spans are dynamic, and in compiled graphs, which serve all spans.
        """
        config = self.config
        seen = min(config.span_tokens, -self.pattern.reach().first + 1 - config.nearest)
        if config.dynamic or torch.compiler.is_compiling():
            return seen
        longest = config.span_tokens * self._longest_share()
        cut = config.span_tokens - math.ceil(longest + config.ramp_tokens)
        return min(seen, config.span_tokens - max(cut, 0) // CUT * CUT)

    def _longest_share(self) -> float:
        """Returns the largest `span_share` in [0, 1]. A GPU is synchronised only after weights have changed."""
        share = self.span_share
        version = id(share), share._version
        if not share.is_cuda or self._known_share is None or self._known_share[0] != version:
            self._known_share = version, float(share.detach().double().clamp(0, 1).max())
        return self._known_share[1]

    @property
    def shown_offsets(self) -> tuple[int, int]:
        """Returns the smallest offset j - i of any current span, and 0."""
        return 1 - self.seen_tokens() - self.config.nearest, 0

    def new_state(self) -> LayerState:
        """Returns a state of keys and values within the longest span, or in training, where it may
        grow, within `span_tokens`.
        """
        from longspan.attention.parts.state import WindowLayer

        return WindowLayer(-self.pattern.reach().first if self.training else -self.shown_offsets[0])

    @torch.no_grad()
    def learned_spans(self) -> Tensor | None:
        """Returns the span of each head in tokens, `(H,)`; `None` if spans are dynamic."""
        return None if self.config.dynamic else self.config.span_tokens * self.clamped_share()

    def weights_loss(self) -> Tensor | None:
        """Returns `λ·S·mean(z share)` over heads, unless spans are dynamic."""
        config = self.config
        if config.dynamic or not config.span_penalty:
            return None
        return config.span_penalty * config.span_tokens * self.clamped_share().mean()

    def inputs_loss(self, hidden: Tensor, tokens: Tokens) -> Tensor | None:
        """Returns `λ·S·mean(z share)` over heads and real tokens, if spans are dynamic."""
        config, mask = self.config, tokens.last_mask(hidden.shape[1])
        if not config.inputs_add_loss:
            return None
        spans = self.spans(hidden)
        real = torch.ones_like(spans[:, 0], dtype=torch.bool) if mask is None else mask
        sums = torch.stack([(spans * real[:, None]).sum(), real.sum() * self.heads])
        if tokens.shards is not None:
            sums = tokens.shards.summed(sums, "spans")
        mean = sums[0] / sums[1].clamp(min=1)
        return config.span_penalty * config.span_tokens * mean

    def distances(self, tokens: Tokens) -> Tensor:
        """Returns p `(S, D)`: the module's own, or that of `tokens`.

        Raises:
            InputError: it is missing, or has another shape.
        """
        if self.table is not None:
            return self.table.distances
        shape, shared = (self.config.span_tokens, self.head_width), tokens.relative
        if shared is None or len(shared) != 1 or shared[0].shape != shape:
            has = None if shared is None else [tuple(table.shape) for table in shared]
            raise InputError(
                f"relative={has} of Tokens leaves this layer without the table of distances, {shape}, which its model "
                "holds for all layers; give Tokens(relative=…) the model's"
            )
        return shared[0]

    def context(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        """Computes attention within the spans, `(B, T, E)`. A token that does not attend to itself is treated as a
        query at the previous position, where the distance of the nearest key is 0 again.
        """
        query, key, value, key_mask, offset = self.remember(hidden, tokens, state)
        if not self.config.sees_itself:
            key, value, key_mask, offset = _without_self(key, value, key_mask, offset)
        seen = self.seen_tokens()
        rows = seen if torch.compiler.is_compiling() else max(1, min(seen, key.shape[2]))
        table = self.distances(tokens)[:rows].flip(0).to(query.dtype).expand(self.heads, rows, self.head_width)
        context = attend(
            query,
            key,
            value,
            pattern=Window(seen - 1, 0),
            terms=[
                ContentToPosition(table, first=1 - rows, globals=False),
                SoftSpan(self.config.span_tokens * self.spans(hidden), self.config.ramp_tokens),
            ],
            key_mask=key_mask,
            dropout_prob=self.dropout_prob,
            query_offset=offset,
        )
        return self.merge_heads(context)

    def context_weights(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        """Computes every pair: no key is dropped, and a token's own position is masked."""
        query, key, _ = self.project(hidden)
        config, place = self.config, torch.arange(hidden.shape[1], device=hidden.device)
        distance = place[:, None] - place - config.nearest
        furthest = -self.pattern.reach().first - config.nearest
        scores = content_scores(
            query, self.distances(tokens).expand(self.heads, -1, -1), distance.clamp(0, config.span_tokens - 1)
        )
        span = SoftSpan(config.span_tokens * self.spans(hidden), config.ramp_tokens)
        bias = scores * self.scale + span.dense(query, key, distance[None])
        bias = bias.masked_fill((distance < 0) | (distance > furthest), -torch.inf)
        return self.dense_weights(query, key, tokens, bias=bias)

    def shown(self, tokens: Tokens) -> Pattern:
        return Causal()


def _write_clamped(share: Tensor) -> None:
    """Writes into the weight without autograd, which computed with the clamped value already."""
    share.data.clamp_(0, 1)


def _without_self(
    key: Tensor, value: Tensor, mask: Tensor | None, offset: int
) -> tuple[Tensor, Tensor, Tensor | None, int]:
    """Returns keys, values `(B, H, S, D)`, their mask and the position of the first query, for queries that are
    moved one position back. If there is no position before the first key, all keys are moved forward instead, after
    a masked one.
    """
    count = key.shape[2]
    if offset:
        return key[:, :, :-1], value[:, :, :-1], None if mask is None else mask[:, :-1], offset - 1
    key, value = (F.pad(tensor, (0, 0, 1, 0))[:, :, :count] for tensor in (key, value))
    real = torch.ones(key.shape[0], count, dtype=torch.bool, device=key.device) if mask is None else mask
    return key, value, F.pad(real, (1, 0))[:, :count], offset
