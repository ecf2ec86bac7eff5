"""PyTorch's own attention kernel, for full attention and for inputs so short that skipping tiles saves nothing."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.call import Call
from longspan.ops.kept import kept
from longspan.ops.reference import full_precision
from longspan.ops.tiles import best_layout
from longspan.patterns import Causal, Full, Pattern

DENSE_PAIRS = 1 << 20
"""Above this many query–key pairs a dense mask is never made."""
MASK_PAIRS = 1 << 16
"""Up to so many pairs a causal mask costs less than to do without."""
HIDING = 2.0**12
"""The square of it, scaled, is what hidden keys score less: enough for weights of 0, and little enough that the scores
of a query that sees nothing keep the digits by which its gradients are finite."""
DENSE_SHARE = 0.6
"""Share of the pairs that the tiles would compute, from which the dense kernel is cheaper."""
SHORT = 160
"""Up to so many keys the kernel of the CPU goes back faster in float32 than in half precision: 3 times as fast at 16,
1.6 times at 100."""


def full_serves(call: Call) -> bool:
    """Whether PyTorch's kernel computes a call: full attention, and causal attention but over long padded inputs with
    dropout, for which the kernel of the CPU keeps all weights. A compiled graph must serve every length."""
    if isinstance(call.pattern, Full):
        return True
    if not isinstance(call.pattern, Causal) or not call.is_square:
        return False
    if call.key_mask is None or not call.dropout_prob or call.query.is_cuda:
        return True
    return not torch.compiler.is_compiling() and call.query.shape[2] ** 2 <= DENSE_PAIRS


def scaled(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """PyTorch's kernel, in the precision in which its backward pass is fastest."""
    short = query.device.type == "cpu" and query.dtype in (torch.bfloat16, torch.float16) and query.requires_grad
    if not short or torch.compiler.is_compiling() or key.shape[2] > SHORT:
        return F.scaled_dot_product_attention(query, key, value, **options)
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype != torch.bool:
        options["attn_mask"] = mask.float()
    with full_precision(query):
        found = F.scaled_dot_product_attention(query.float(), key.float(), value.float(), **options)
    return found.to(query.dtype)


def attend_full(call: Call) -> Tensor:
    """Full or causal attention without terms and globals; rows without any real key give zeros."""
    inputs, causal = (call.query, call.key, call.value), isinstance(call.pattern, Causal)
    if call.key_mask is None:
        return scaled(*inputs, dropout_p=call.dropout_prob, is_causal=causal, scale=call.scale)
    seen, length = call.key_mask[:, None, None, :], call.query.shape[2]
    if not causal:
        return _attend_seen(call, seen)
    if torch.compiler.is_compiling() or length**2 > MASK_PAIRS:
        return _attend_causal(call, call.key_mask)
    return _attend_seen(call, seen & Causal().dense(length).to(call.query.device))


def _attend_causal(call: Call, key_mask: Tensor) -> Tensor:
    """Causal attention over padded keys, without a mask of all pairs: one more number in each query and key hides a
    key by a score so low that its weight is exactly 0."""
    query, key, value = call.query, call.key, call.value
    width = max(query.shape[-1], value.shape[-1])  # the kernel of linear memory wants one width for all
    low = torch.zeros(key_mask.shape, dtype=key.dtype, device=key.device).masked_fill(~key_mask, -HIDING)
    low = low[:, None, :, None].expand(*key.shape[:3], 1)
    high = query.new_full((), HIDING).expand(*query.shape[:3], 1)
    query, key = (F.pad(each, (0, width - each.shape[-1])) for each in (query, key))
    mixed = F.scaled_dot_product_attention(
        torch.cat([query, high], dim=-1),
        torch.cat([key, low], dim=-1),
        F.pad(value, (0, width + 1 - value.shape[-1])),
        dropout_p=call.dropout_prob,
        is_causal=True,
        scale=call.scale,
    )
    sees = key_mask.cumsum(1)[:, None, :, None] > 0
    return mixed[..., : value.shape[-1]] * sees


def attend_dense(call: Call) -> Tensor:
    """Attention with the whole mask of a pattern, for short inputs, without terms, globals and dropout."""
    query, key_mask = call.query, call.key_mask
    sizes = (query.shape[2], call.key.shape[2], call.query_offset)
    mask, seen, some_empty = _mask_of(call.pattern, *sizes, query.dtype, query.device)
    if key_mask is None and not some_empty:
        return scaled(query, call.key, call.value, attn_mask=mask, scale=call.scale)
    return _attend_seen(call, seen if key_mask is None else seen & key_mask[:, None, None, :])


def _attend_seen(call: Call, seen: Tensor) -> Tensor:
    """Attention under a bool mask; a row that sees nothing is computed over all keys, then set to zero."""
    empty = ~seen.any(dim=-1, keepdim=True)
    options = {"attn_mask": seen | empty, "dropout_p": call.dropout_prob, "scale": call.scale}
    return scaled(call.query, call.key, call.value, **options) * ~empty


@kept
def _mask_of(
    pattern: Pattern, queries: int, keys: int, query_offset: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, bool]:
    """The mask to add, the bool mask (both `(1, H or 1, T, S)`), and whether some row sees nothing."""
    seen = pattern.dense(queries, keys, query_offset=query_offset)
    seen = (seen if pattern.heads else seen[None])[None].to(device)
    mask = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, -math.inf)
    return mask, seen, not bool(seen.any(dim=-1).all())


def dense_is_cheaper(call: Call) -> bool:
    """Whether the tiles of a pattern cover so much of a short input that the dense kernel wins.

    A compiled graph must serve every length and keeps to the tiles.
    """
    queries, keys = call.query.shape[2], call.key.shape[2]
    if torch.compiler.is_compiling() or call.pattern.heads or not 0 < queries * keys <= DENSE_PAIRS:
        return False
    tiling = best_layout(call.pattern, queries, keys, call.query_offset, call.query.device)
    return tiling.scores >= DENSE_SHARE * queries * keys
