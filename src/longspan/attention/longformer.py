"""Longformer: a sliding window, optionally dilated per head, and global tokens with their own projections."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from torch import Tensor

from longspan.attention.parts.tokens import Tokens
from longspan.attention.parts.windowed import WindowedAttention
from longspan.attention.parts.windows import WindowedConfig
from longspan.errors import InputError
from longspan.patterns import PerHead, Window
from longspan.settings import Count

if TYPE_CHECKING:
    from transformers.cache_utils import CacheLayerMixin


@dataclass(frozen=True, kw_only=True)
class LongformerConfig(WindowedConfig):
    """A window of `left_tokens` and `right_tokens` around each token, and global tokens.

    A total width w, as published and in transformers' `attention_window`, is `left_tokens = right_tokens = w // 2`.
    The causal form looks left only: `right_tokens` has no effect on it, and it takes no global tokens.

    Attributes:
        left_tokens, right_tokens: how many tokens a token looks at on each side, itself not counted.
        dilation: 1 looks at neighbours, d at every d-th token, so that the window reaches d times as far; one number,
            or one per head. The paper's tables count gaps: their 0 is our 1.
        separate_global_projections: global queries use `global_query`, `global_key`, `global_value`. A local query that
            looks at a global token uses the local projections, as the official code does.
    """

    mechanism: ClassVar[str] = "longformer"
    causal: ClassVar[bool] = True
    incremental: ClassVar[bool] = True
    cost: ClassVar[str] = "left_tokens + 1 + right_tokens + 2G (causal: left_tokens + 1)"
    source: ClassVar[str] = "Beltagy et al. 2020, arXiv 2004.05150, section 3"

    dilation: Count | tuple[Count, ...] = 1

    def __post_init__(self) -> None:
        if isinstance(self.dilation, list):  # as plain data, from JSON or YAML
            object.__setattr__(self, "dilation", tuple(self.dilation))
        super().__post_init__()
        if self.dilation == ():
            raise InputError("dilation=() names no head; give one number, or one per head")

    @property
    def dilations(self) -> tuple[int, ...]:
        return self.dilation if isinstance(self.dilation, tuple) else (self.dilation,)

    def widened(self, tokens: int) -> Self:
        return replace(super().widened(tokens), dilation=1)

    def build(self, *, width: int, heads: int, causal: bool = False) -> LongformerAttention:
        return LongformerAttention(self, width=width, heads=heads, causal=causal)


class LongformerAttention(WindowedAttention):
    """The module of `LongformerConfig`."""

    def __init__(self, config: LongformerConfig, *, width: int, heads: int, causal: bool) -> None:
        if isinstance(config.dilation, tuple) and len(config.dilation) != heads:
            raise InputError(
                f"dilation={config.dilation!r} has {len(config.dilation)} entries for {heads} heads; give one per head"
            )
        right = 0 if causal else config.right_tokens
        windows = [Window(config.left_tokens, right, dilation) for dilation in config.dilations]
        super().__init__(
            config,
            width=width,
            heads=heads,
            causal=causal,
            pattern=windows[0] if len(set(windows)) == 1 else PerHead(windows),
        )
        self.init_extra_weights()

    def forward(self, hidden: Tensor, tokens: Tokens | None = None, state: CacheLayerMixin | None = None) -> Tensor:
        """`(B, T, E)` → `(B, T, E)`; padded tokens gather nothing. With `state`, the T tokens continue its sequence.

        Raises:
            InputError: global tokens in the causal form, or a mask that does not cover the sequence.
        """
        return self.output(self.window_context(hidden, tokens or Tokens(), state))

    def weights(self, hidden: Tensor, tokens: Tokens | None = None) -> Tensor:
        """Dense attention weights `(B, H, T, T)`; rows of padded queries are 0."""
        return self.window_weights(hidden, tokens or Tokens())
