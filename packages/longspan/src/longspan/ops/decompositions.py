"""Decompositions of the custom operators into PyTorch's own, for export: correct for every length, not fast.

`torch.onnx.export` finds them in PyTorch's table of decompositions. Attention becomes dense under the mask of its
pattern, with symbolic sizes; pooling becomes one gather per tap; attention within buckets and sorted blocks become
their dense forms.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._decomp import register_decomposition

import longspan.ops.sorted.block_attention  # noqa: F401 (defines an operator)
from longspan.errors import InputError
from longspan.ops.attend.reference import attend_reference
from longspan.ops.sorted.hashed import hashed_weights
from longspan.ops.sorted.hashed_units import Chunks
from longspan.ops.sorted.sinkhorn import plain_blocks
from longspan.ops.tiles.blocked_operator import call_of
from longspan.ops.tiles.partition import Partition
from longspan.ops.tiles.partition_operator import attend_partition_reference
from longspan.ops.tiles.pooling import ldconv_weights, mean_weights, slot_mask, tap_positions


@register_decomposition(torch.ops.longspan.blocked_attention.default)
def _attention(*arguments) -> Tensor:  # type: ignore[no-untyped-def]
    call = call_of(*arguments)
    if call.dropout_prob:
        raise InputError(f"dropout_prob={call.dropout_prob} cannot be exported; call model.eval() first")
    return attend_reference(call)


@register_decomposition(torch.ops.longspan.hashed_attention.default)
def _hashed(query, key, value, ids, seed, most, size, before, after, causal, scale, once, dropout_prob):  # type: ignore[no-untyped-def]
    if dropout_prob:
        raise InputError(f"dropout_prob={dropout_prob} cannot be exported; call model.eval() first")
    chunks = Chunks(size=size, before=before, after=after, causal=causal, scale=scale, once=once, shared=key is None)
    key = None if key is None else key.transpose(1, 2)
    weights = hashed_weights(query.transpose(1, 2), ids, chunks, key=key)
    context = weights @ value.transpose(1, 2).to(weights.dtype)
    # Only gradients need the log-sum-exp, which exported programs do not have.
    return context.transpose(1, 2).to(value.dtype).contiguous(), weights.new_zeros(query.shape[:3]).flatten()


@register_decomposition(torch.ops.longspan.block_attention.default)
def _blocks(query, key, value, real, order, seed, scale, causal, dropout_prob):  # type: ignore[no-untyped-def]
    if dropout_prob:
        raise InputError(f"dropout_prob={dropout_prob} cannot be exported; call model.eval() first")
    query, key, value = (tensor.permute(0, 3, 1, 2, 4) for tensor in (query, key, value))
    return plain_blocks(query, key, value, real, order, scale, causal, 0.0).permute(0, 2, 3, 1, 4).contiguous()


@register_decomposition(torch.ops.longspan.partition_attention.default)
def _partition(query, key, value, table, counts, seed, tokens, levels, neighbours, clip, causal, spare, dropout_prob):  # type: ignore[no-untyped-def]
    if dropout_prob:
        raise InputError(f"dropout_prob={dropout_prob} cannot be exported; call model.eval() first")
    tree = Partition(tokens, levels, neighbours, clip, causal, spare)
    return attend_partition_reference(query, key, value, table, tree, counts=counts)


@register_decomposition(torch.ops.longspan.pool.default)
def _pool(hidden, weight, mask, kernel, stride, pooling):  # type: ignore[no-untyped-def]
    length, wide = hidden.shape[2], torch.promote_types(hidden.dtype, torch.float32)
    positions = tap_positions(length, kernel, stride, hidden.device)
    valid = ((positions >= 0) & (positions < length))[None]
    centres = slot_mask(mask, stride)
    if centres is not None:
        valid = valid & mask[:, positions.clamp(0, length - 1)] & centres[:, :, None]
    # Taps that are not real have weight 0 or are never the maximum, so any value may be read there.
    taps = torch.stack([_tap(hidden, valid.shape[1], tap, kernel, stride) for tap in range(kernel)]).to(wide)
    if pooling == "max":
        pooled = taps.masked_fill(~valid.permute(2, 0, 1)[:, :, None, :, None], torch.finfo(wide).min).amax(0)
        return pooled.masked_fill(~valid.any(-1)[:, None, :, None], 0).to(hidden.dtype)
    weights = mean_weights(valid, hidden) if weight is None else ldconv_weights(hidden, weight, valid, stride)
    return (taps * weights.to(wide).permute(3, 0, 1, 2)[..., None]).sum(0).to(hidden.dtype)


def _tap(hidden: Tensor, slots: int, tap: int, kernel: int, stride: int) -> Tensor:
    """`(B, H, T, D)` → `(B, H, M, D)`: the token at one tap of each slot, clamped to the sequence."""
    place = torch.arange(slots, device=hidden.device) * stride + (tap - kernel // 2)
    return hidden.index_select(2, place.clamp(min=0).minimum(place.new_full((), hidden.shape[2] - 1)))
