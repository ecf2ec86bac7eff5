"""Linear attention: every token sees every token, or all before it, through one sum over the keys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from longspan.attention.base import AttentionConfig, State
from longspan.attention.parts.costs import AttentionCost
from longspan.attention.parts.projected import ProjectedAttention
from longspan.attention.parts.tokens import Tokens
from longspan.errors import InputError
from longspan.ops.linear import attend_linear, linear_weights

if TYPE_CHECKING:
    from longspan.attention.parts.state import RecurrentLayer


@dataclass(frozen=True, kw_only=True)
class LinearConfig(AttentionConfig):
    """Features in place of the softmax, `φ(x) = elu(x) + 1`: `φ(Q) (φ(K)ᵀ V)`, divided by `φ(Q) · Σ φ(K)`.

    Queries and keys are not scaled by `1/√D`. Global tokens change nothing here, because every token already attends
    everywhere. `dropout` drops a token for all queries of a head at once, because weights are never made one by one.
    """

    mechanism: ClassVar[str] = "linear"
    causal: ClassVar[bool] = True
    incremental: ClassVar[bool] = True
    sees_everything: ClassVar[bool] = True
    cost: ClassVar[str] = "1, of D + 1 times the work"
    source: ClassVar[str] = "Katharopoulos et al. 2020, arXiv 2006.16236, sections 3.2 and 3.3"

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        """One: that of a query with the sum over the keys. Scores within chunks, by which the causal form computes many
        tokens at once, are not part of the definition and not counted."""
        return 1.0

    def costs(self, *, length: int, width: int, heads: int, causal: bool = False) -> AttentionCost:
        """A token is added to a sum of D × (D + 1) numbers in each head, and its query reads that sum."""
        cost = super().costs(length=length, width=width, heads=heads, causal=causal)
        return replace(cost, mixing=2 * width * (width // heads + 1) * length)

    def build(self, *, width: int, heads: int, causal: bool = False) -> LinearAttention:
        return LinearAttention(self, width=width, heads=heads, causal=causal)


class LinearAttention(ProjectedAttention):
    """The module of `LinearConfig`."""

    def new_state(self) -> State:
        """The sums over all positions so far, of constant size, where the form is causal."""
        if not self.causal:
            return super().new_state()
        from longspan.attention.parts.state import RecurrentLayer

        return RecurrentLayer()

    def context(self, hidden: Tensor, tokens: Tokens, state: State | None = None) -> Tensor:
        new, past = hidden.shape[1], None if state is None else _checked(state)
        query, key, value = self.project(hidden)
        context, sums = attend_linear(
            query,
            key,
            value,
            causal=self.causal,
            key_mask=None if tokens.mask is None else tokens.mask[:, tokens.mask.shape[1] - new :],
            sums=None if past is None else past.tensors.get("sums"),
            dropout_prob=self.dropout_prob,
        )
        if past is not None:
            past.advance(new, sums=sums)
        return self.merge_heads(context)

    def context_weights(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        query, key, _ = self.project(hidden)
        return linear_weights(query, key, causal=self.causal, key_mask=tokens.mask)


def _checked(state: State) -> RecurrentLayer:
    """The state, if it is one that holds sums."""
    from longspan.attention.parts.state import RecurrentLayer

    if not isinstance(state, RecurrentLayer):
        raise InputError(f"state is a {type(state).__name__}, which keeps no sums; give attention.new_state()")
    return state
