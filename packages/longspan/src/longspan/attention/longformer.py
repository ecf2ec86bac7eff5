"""Longformer: a sliding window, optionally dilated per head, and global tokens with their own projections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from longspan.attention.config import Lengthening
from longspan.attention.parts.sinusoidal_relative import RelativeAttention, RelativeConfig
from longspan.attention.parts.windowed import WindowedAttention, WindowedConfig
from longspan.attention.support import Support
from longspan.errors import InputError
from longspan.patterns import Pattern
from longspan.settings import Count


@dataclass(frozen=True, kw_only=True)
class LongformerConfig(RelativeConfig, WindowedConfig):  # pyright: ignore[reportIncompatibleVariableOverride]
    """A window of `left_tokens` and `right_tokens` around each token, and global tokens.

    A total width w, as published and in transformers' `attention_window`, is `left_tokens = right_tokens = w // 2`. The
    causal form ignores `right_tokens` and does not support global tokens. Further options as in `RelativeConfig`.

    Attributes:
        left_tokens, right_tokens: how many tokens a token attends to on each side, without itself.
        dilation: with 1 the window has adjacent tokens, with d every d-th token, so that it reaches d times as far; one
            number, or one per head. The paper's tables count gaps: their 0 is 1 here.
        separate_global_projections: whether global queries use `global_query`, `global_key`, `global_value`. A local
            query uses the local projections for global keys, as in the official code.
    """

    mechanism: ClassVar[str] = "longformer"
    causal: ClassVar[bool] = True
    incremental: ClassVar[bool] = True
    support: ClassVar[Mapping[str, Support]] = {"same_length": True, "static_cache": True}
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

    def lengthening(self, tokens: int = 1) -> Lengthening:
        answer = super().lengthening(tokens)
        return replace(answer, widened=replace(answer.widened, dilation=1))

    def build(self, *, width: int, heads: int, causal: bool = False) -> LongformerAttention:
        return LongformerAttention(self, width=width, heads=heads, causal=causal)


class LongformerAttention(WindowedAttention, RelativeAttention):
    """The module of `LongformerConfig`."""

    config: LongformerConfig

    def __init__(self, config: LongformerConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal, bias=config.bias)

    def add_weights(self) -> None:
        super().add_weights()
        self.add_positions()

    def make_pattern(self) -> Pattern:
        dilation = self.config.dilation
        if isinstance(dilation, tuple) and len(dilation) != self.heads:
            raise InputError(
                f"dilation={dilation!r} has {len(dilation)} entries for {self.heads} heads; give one per head"
            )
        return super().make_pattern()
