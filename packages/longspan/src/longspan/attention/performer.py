"""Performer: the softmax approximated by positive random features, so that one sum over the keys serves every query."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from longspan.attention.config import Lengthening
from longspan.attention.full import FullConfig
from longspan.attention.linear import KernelAttention, KernelConfig
from longspan.errors import InputError
from longspan.ops.kernels.random_features import EPSILON, draw_directions, key_features, query_features, relu_features
from longspan.settings import Count, Range


@dataclass(frozen=True, kw_only=True)
class PerformerConfig(KernelConfig):
    """Attention as in `linear`, with random features whose products approximate `exp(q·k/√D)` (FAVOR+).

    Attributes:
        features: number of features F of a query or key in each head; more reduce the error. `None` takes `D ln D`,
            rounded up to even, but at least D: 268 for D = 64.
        kernel: `"softmax"`, or `"relu"`, another kernel: `relu(ω·x / D^¼) + 10⁻³`.
        hyperbolic: draw half as many directions and use each also with the opposite sign.
        orthogonal: draw orthogonal directions, D at a time.
        redraw: number of training steps after which the directions are drawn again (`after_step`); `None` keeps them.
            They do not change in evaluation, and are saved with the weights.
        seed: random seed. Layers with the same seed have the same directions; `{per_layer: [0, 1, …]}`
            makes them differ.
    """

    mechanism: ClassVar[str] = "performer"
    cost: ClassVar[str] = "1, of about 2·features times the work"
    source: ClassVar[str] = "Choromanski et al. 2021, arXiv 2009.14794, section 2"

    features: Annotated[int, Range(1, 1 << 16)] | None = None
    kernel: Literal["softmax", "relu"] = "softmax"
    hyperbolic: bool = False
    orthogonal: bool = True
    redraw: Count | None = 1000
    seed: Annotated[int, Range(0, 2**20)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hyperbolic and self.kernel != "softmax":
            raise InputError(
                f"hyperbolic=True is a form of the softmax's features and has no effect with kernel={self.kernel!r}; "
                "leave it out"
            )
        if self.hyperbolic and self.features is not None and self.features % 2:
            raise InputError(f"features={self.features} is odd, and hyperbolic ones come in pairs; give an even number")

    def feature_count(self, head_width: int) -> int:
        if self.features is not None:
            return self.features
        wanted = max(head_width, math.ceil(head_width * math.log(head_width)))
        return wanted + wanted % 2

    def direction_count(self, head_width: int) -> int:
        """Returns the number of drawn directions: F, or half of it if each is used with both signs."""
        return self.feature_count(head_width) // (2 if self.hyperbolic else 1)

    def feature_cost(self, head_width: int) -> int:
        return self.feature_count(head_width) * head_width

    def lengthening(self, tokens: int = 1) -> Lengthening:
        exact = FullConfig(dropout=self.dropout) if self.kernel == "softmax" else self
        return replace(super().lengthening(tokens), exact=exact)

    def build(self, *, width: int, heads: int, causal: bool = False) -> PerformerAttention:
        return PerformerAttention(self, width=width, heads=heads, causal=causal)


class PerformerAttention(KernelAttention):
    """The module of `PerformerConfig`. Its buffer `directions` `(F, D)` serves all heads."""

    config: PerformerConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    epsilon: ClassVar[float] = EPSILON
    directions: Tensor

    def __init__(self, config: PerformerConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal)
        self.register_buffer("directions", torch.empty(config.direction_count(self.head_width), self.head_width))
        self.init_extra_weights()

    def init_extra_weights(self, std: float = 0.02) -> None:
        """Draws the first directions, unless they were loaded."""
        if not getattr(self.directions, "_is_hf_initialized", False):
            self._draw(0)

    def after_step(self, step: int) -> None:
        """Draws new directions every `redraw` steps. They depend only on the seed and the number of the draw, so a
        resumed run uses the same ones.
        """
        if self.config.redraw is not None and step % self.config.redraw == 0:
            self._draw(step // self.config.redraw)

    @torch.no_grad()
    def _draw(self, draw: int) -> None:
        config = self.config
        count, width = self.directions.shape
        drawn = draw_directions(count, width, seed=config.seed, draw=draw, orthogonal=config.orthogonal)
        self.directions.copy_(drawn)

    def query_features(self, query: Tensor) -> Tensor:
        if self.config.kernel == "relu":
            return relu_features(query, self.directions)
        return query_features(query, self.directions, hyperbolic=self.config.hyperbolic)

    def key_features(self, key: Tensor) -> Tensor:
        if self.config.kernel == "relu":
            return relu_features(key, self.directions)
        return key_features(key, self.directions, hyperbolic=self.config.hyperbolic)
