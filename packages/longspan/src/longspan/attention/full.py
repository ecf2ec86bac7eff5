"""Full attention: every token attends to every token, or, in the causal form, to every token up to itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from longspan.attention.base import LayerState, ProjectedAttention, projected
from longspan.attention.parts.sinusoidal_relative import RelativeAttention, RelativeConfig
from longspan.attention.parts.tokens import Tokens, in_order
from longspan.attention.support import Support, Unless
from longspan.ops.attend import attend
from longspan.patterns import Causal, Full, Pattern


@dataclass(frozen=True, kw_only=True)
class FullConfig(RelativeConfig):
    """Scaled dot-product attention over the whole sequence, `softmax(QKᵀ/√D) V`; with `positions="relative"` that of
    Transformer-XL, with the options of `RelativeConfig`.

    Global tokens change nothing here, because every token already attends everywhere.
    """

    mechanism: ClassVar[str] = "full"
    causal: ClassVar[bool] = True
    incremental: ClassVar[bool] = True
    sees_everything: ClassVar[bool] = True
    cost: ClassVar[str] = "T (causal: (T + 1) / 2)"
    source: ClassVar[str] = "Vaswani et al. 2017, arXiv 1706.03762, equation 1"
    support: ClassVar[Mapping[str, Support]] = {
        "linear": "every token sees every token",
        "prefix": Unless("relative positions know only the distances to what came before", {"positions": "none"}),
        "same_length": True,
        "sharded": True,
        "static_cache": True,
    }

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        return (length + 1) / 2 if causal else float(length)

    def windows_instead(self, tokens: int) -> Mapping[str, Any] | None:
        return {"mechanism": "longformer", "left_tokens": tokens // 2, "right_tokens": tokens // 2}

    def build(self, *, width: int, heads: int, causal: bool = False) -> FullAttention:
        return FullAttention(self, width=width, heads=heads, causal=causal)


class EveryToken(ProjectedAttention):
    """Attention of every token to every token, or in the causal form to all up to itself, with any scores."""

    def __init__(self, config: Any, *, width: int, heads: int, causal: bool, bias: bool = True) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal, bias=bias)
        self.pattern = self.make_pattern()

    state_kind = "keys"

    def make_pattern(self) -> Pattern:
        return Causal() if self.causal else Full()


class FullAttention(EveryToken, RelativeAttention):
    """The module of `FullConfig`."""

    def __init__(self, config: FullConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal, bias=config.bias)
        self.add_positions()

    def forward_at(self, places: Tensor, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        """Returns the outputs of `forward` at some positions `(B, Q)`, `(B, T, E)` → `(B, Q, E)`; a state is updated
        with all T.

        Bidirectional attention without positions computes only these queries; else all are computed, unless Q is 0.
        """
        ordered = self.causal or self.config.positions != "none"
        if ordered and places.shape[1]:
            return in_order(self(hidden, tokens, state), places)
        self.check_tokens(hidden, tokens, state)
        query = self.heads_of(self.query, in_order(hidden, places))
        key, value = self.heads_of(self.key, hidden), self.heads_of(self.value, hidden)
        if state is not None:
            state.update(key, value)
        if not places.shape[1]:
            return projected(self.output, self.merge_heads(query))
        context = attend(query, key, value, pattern=Full(), key_mask=tokens.mask, dropout_prob=self.dropout_prob)
        return projected(self.output, self.merge_heads(context))
