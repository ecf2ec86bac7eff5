"""PyTorch's own attention kernel, for full attention and for inputs so short that skipping tiles saves nothing."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.kept import kept
from longspan.ops.tiles import best_layout
from longspan.patterns import Causal, Pattern

DENSE_PAIRS = 1 << 20
"""Above this many query–key pairs a dense mask is never made."""
DENSE_SHARE = 0.6
"""Share of the pairs that the tiles would compute, from which the dense kernel is cheaper."""


def attend_full(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    *,
    causal: bool,
    scale: float,
    dropout_prob: float,
) -> Tensor:
    """Full or causal attention, `(B, H, T, D)`; rows without any real key give zeros."""
    if key_mask is None:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout_prob, is_causal=causal, scale=scale)
    seen = key_mask[:, None, None, :]
    if causal:
        seen = seen & Causal().dense(query.shape[2], key.shape[2]).to(query.device)
    return _attend_seen(query, key, value, seen, scale, dropout_prob)


def attend_dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern,
    key_mask: Tensor | None,
    *,
    scale: float,
    query_offset: int,
) -> Tensor:
    """Attention with the whole mask of a pattern, for short inputs."""
    mask, seen, some_empty = _mask_of(pattern, query.shape[2], key.shape[2], query_offset, query.dtype, query.device)
    if key_mask is None and not some_empty:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    return _attend_seen(query, key, value, seen if key_mask is None else seen & key_mask[:, None, None, :], scale, 0.0)


def _attend_seen(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, scale: float, dropout_prob: float) -> Tensor:
    """Attention under a bool mask; a row that sees nothing is computed over all keys, then set to zero."""
    empty = ~seen.any(dim=-1, keepdim=True)
    mask = seen | empty
    result = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout_prob, scale=scale)
    return result * ~empty


@kept
def _mask_of(
    pattern: Pattern, queries: int, keys: int, query_offset: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, bool]:
    """The mask to add, the bool mask (both `(1, H or 1, T, S)`), and whether some row sees nothing."""
    seen = pattern.dense(queries, keys, query_offset=query_offset)
    seen = (seen if pattern.heads else seen[None])[None].to(device)
    mask = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, -math.inf)
    return mask, seen, not bool(seen.any(dim=-1).all())


def dense_is_cheaper(query: Tensor, key: Tensor, pattern: Pattern, query_offset: int) -> bool:
    """Whether the tiles of a pattern cover so much of a short input that the dense kernel wins.

    A compiled graph must serve every length and keeps to the tiles.
    """
    queries, keys = query.shape[2], key.shape[2]
    if torch.compiler.is_compiling() or pattern.heads or not 0 < queries * keys <= DENSE_PAIRS:
        return False
    return best_layout(pattern, queries, keys, query_offset, query.device).scores >= DENSE_SHARE * queries * keys
