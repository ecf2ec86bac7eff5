"""Our operators in PyTorch's own, for programs that leave PyTorch: right for every length, not fast.

`torch.onnx.export` finds them in PyTorch's table of decompositions. Attention becomes dense under the mask of its
pattern, whose sizes stay symbolic; pooling becomes one gather per tap.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._decomp import register_decomposition

import longspan.ops.blocked_operator
import longspan.ops.pooling
import longspan.ops.relative_operator  # noqa: F401 (importing them defines the operators)
from longspan.errors import InputError
from longspan.ops.reference import attend_reference
from longspan.ops.relative_reference import attend_relative_reference
from longspan.patterns import parse


def _refuse_dropout(dropout_prob: float) -> None:
    if dropout_prob:
        raise InputError(f"dropout_prob={dropout_prob} cannot be exported; call model.eval() first")


@register_decomposition(torch.ops.longspan.blocked_attention.default)
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    slots: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    pattern: str,
    scale: float,
    dropout_prob: float,
    query_offset: int,
    global_rows: bool,
) -> Tensor:
    _refuse_dropout(dropout_prob)
    return attend_reference(
        query,
        key,
        value,
        parse(pattern),
        key_mask,
        slots,
        global_rows=global_rows,
        bias=bias,
        scale=scale,
        dropout_prob=0.0,
        query_offset=query_offset,
    )


@register_decomposition(torch.ops.longspan.relative_attention.default)
def _relative(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position_key: Tensor,
    position_query: Tensor,
    global_bias: Tensor | None,
    key_mask: Tensor | None,
    slots: Tensor | None,
    seed: Tensor | None,
    left: int,
    right: int,
    scale: float,
    dropout_prob: float,
) -> Tensor:
    _refuse_dropout(dropout_prob)
    inputs = (query, key, value, position_key, position_query)
    options = {"left": left, "right": right, "scale": scale, "dropout_prob": 0.0}
    return attend_relative_reference(*inputs, key_mask, slots, global_bias, **options)


@register_decomposition(torch.ops.longspan.pool_sum.default)
def _pool_sum(hidden: Tensor, taps: Tensor, stride: int) -> Tensor:
    slots, kernel = taps.shape[2:]
    wide = torch.promote_types(hidden.dtype, torch.float32)
    # Taps beyond the sequence weigh nothing, whatever stands at its ends.
    terms = [_tap(hidden, slots, tap, kernel, stride).to(wide) * taps[..., tap, None].to(wide) for tap in range(kernel)]
    return torch.stack(terms).sum(0).to(hidden.dtype)


@register_decomposition(torch.ops.longspan.pool_max.default)
def _pool_max(hidden: Tensor, valid: Tensor, stride: int) -> Tensor:
    kernel = valid.shape[2]
    least = torch.finfo(hidden.dtype).min
    candidates = [
        _tap(hidden, valid.shape[1], tap, kernel, stride).masked_fill(~valid[:, None, :, tap, None], least)
        for tap in range(kernel)
    ]
    return torch.stack(candidates).amax(0).masked_fill(~valid.any(-1)[:, None, :, None], 0)


def _tap(hidden: Tensor, slots: int, tap: int, kernel: int, stride: int) -> Tensor:
    """`(B, H, T, D)` → `(B, H, M, D)`: the token on which one tap of each slot falls, or the nearest there is."""
    place = torch.arange(slots, device=hidden.device) * stride + (tap - kernel // 2)
    return hidden.index_select(2, place.clamp(min=0).minimum(place.new_full((), hidden.shape[2] - 1)))
