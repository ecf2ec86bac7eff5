"""`attend`: one attention operator for every pattern, with several ways to compute it."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.ops.reference import attend_reference, dense_mask
from longspan.patterns import Pattern

BACKENDS = ("auto", "reference", "blocked", "flex")


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    pattern: Pattern,
    key_mask: Tensor | None = None,
    globals: Tensor | None = None,
    global_rows: bool = True,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout_prob: float = 0.0,
    query_offset: int = 0,
    backend: str = "auto",
) -> Tensor:
    """Softmax attention of each query over the keys that `pattern` lets it see."""
    is_global = None if globals is None else global_mask(globals, key.shape[2])
    seen = dense_mask(
        pattern,
        query.shape[2],
        key.shape[2],
        key_mask=key_mask,
        is_global=is_global,
        query_offset=query_offset,
        global_rows=global_rows,
        device=query.device,
    )
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return attend_reference(query, key, value, seen=seen, bias=bias, scale=scale, dropout_prob=dropout_prob)


def global_mask(globals: Tensor, keys: int) -> Tensor:
    """Global tokens as a `(B, S)` bool mask, from a mask or from `(B, G)` slots with −1 in unused ones."""
    if globals.dtype == torch.bool:
        return globals
    if globals.dtype != torch.int64:
        raise InputError(f"globals has dtype {globals.dtype}; give a bool mask or int64 slots")
    mask = torch.zeros(globals.shape[0], keys + 1, dtype=torch.bool, device=globals.device)
    return mask.scatter(1, torch.where(globals < 0, keys, globals), True)[:, :keys]
