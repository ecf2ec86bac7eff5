"""Attention of a decoder to its source, whose keys and values are made once however many beams read them."""

from __future__ import annotations

from torch import Tensor, nn

from longspan.attention.base import LayerState
from longspan.ops import attend
from longspan.patterns import Full


class CrossAttention(nn.Module):
    """Every output token sees every real source token (Vaswani et al. 2017, section 3.2.3)."""

    def __init__(self, *, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(
        self, hidden: Tensor, source: Tensor, source_mask: Tensor | None = None, state: LayerState | None = None
    ) -> Tensor:
        """`(B·beams, T, E)` over `(B, S, E)` → `(B·beams, T, E)`.

        Consecutive decoder rows share a document; their queries are laid side by side on the query axis, so that the
        source is neither copied nor read once per beam.

        Args:
            hidden: `(B·beams, T, E)`.
            source: `(B, S, E)` encoder states; not read once the state holds their keys and values.
            source_mask: `(B, S)` bool, or `None` when every token is real.
            state: keeps the source's keys and values.
        """
        key, value = self._source(source, state)
        rows, tokens, _ = hidden.shape
        beams = rows // max(key.shape[0], 1)
        query = self._split(self.query(hidden))
        folded = query.unflatten(0, (key.shape[0], beams)).transpose(1, 2).flatten(2, 3) if beams != 1 else query
        dropout = self.dropout if self.training else 0.0
        context = attend(folded, key, value, pattern=Full(), key_mask=source_mask, dropout_prob=dropout)
        if beams != 1:
            context = context.unflatten(2, (beams, tokens)).transpose(1, 2).flatten(0, 1)
        return self.output(context.transpose(1, 2).flatten(2))

    def _source(self, source: Tensor, state: LayerState | None) -> tuple[Tensor, Tensor]:
        """The source's `(B, H, S, D)` keys and values, computed once per generation."""
        if state is not None and state.is_initialized:
            assert state.keys is not None
            assert state.values is not None
            return state.keys, state.values
        key, value = self._split(self.key(source)), self._split(self.value(source))
        # Contiguous, since every later step reads them.
        return (key, value) if state is None else state.update(key.contiguous(), value.contiguous())

    def _split(self, hidden: Tensor) -> Tensor:
        """`(B, T, E)` → `(B, H, T, D)`."""
        return hidden.unflatten(-1, (self.heads, -1)).transpose(1, 2)
