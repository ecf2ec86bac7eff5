"""`attend`: one attention operator for every pattern, with several ways to compute it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.ops.blocked_operator import blocked_attention, blocked_kernel
from longspan.ops.dense import attend_dense, attend_full, dense_is_cheaper
from longspan.ops.eager import run
from longspan.ops.flex import attend_flex, flex_serves
from longspan.ops.reference import attend_reference
from longspan.patterns import Causal, Full, Pattern

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
    """Softmax attention of each query over the keys that `pattern` lets it see.

    `softmax(scale·QKᵀ + bias) V` over the visible keys only (Vaswani et al. 2017, eq. 1); a query that sees nothing
    gives zeros.

    Args:
        query: `(B, H, T, D)`.
        key: `(B, H, S, D)`.
        value: `(B, H, S, Dv)`.
        pattern: which pairs of positions may attend, for all heads or `PerHead`.
        key_mask: `(B, S)` bool, True where a key is real; `None` means all are.
        globals: tokens that see every real key and are seen by every query, whatever the pattern: a `(B, S)` bool
            mask, or `(B, G)` int64 positions with −1 in unused slots (a static count, for `torch.compile` and
            `torch.export`). Needs T = S. A padded global token is ignored.
        global_rows: False gives the global tokens as keys only: their own rows follow the pattern.
        bias: added to the scaled scores, broadcastable to `(B, H, T, S)`.
        scale: factor on the scores, `D ** -0.5` by default.
        dropout_prob: probability of dropping an attention weight.
        query_offset: position of the first query, for queries that continue a sequence of keys.
        backend: `"reference"` (dense, quadratic memory), `"blocked"` (tiles, linear memory, any device), `"flex"`
            (FlexAttention on CUDA), or `"auto"`, the cheapest that serves the call.

    Returns:
        `(B, H, T, Dv)` in the dtype of the query.

    Raises:
        InputError: shapes or dtypes do not fit, or the chosen backend cannot serve the call.
    """
    _check(query, key, value, pattern, key_mask, bias, dropout_prob, backend)
    slots = None if globals is None else _slots(globals, query, key, key_mask, query_offset)
    if slots is not None and slots.shape[1] == 0:
        slots = None
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    chosen = backend
    if backend == "auto":
        chosen = _choose(query, key, value, pattern, slots, bias, query_offset, dropout_prob)
    if chosen == "full":
        causal = isinstance(pattern, Causal)
        return attend_full(query, key, value, key_mask, causal=causal, scale=scale, dropout_prob=dropout_prob)
    if chosen == "dense":
        return attend_dense(query, key, value, pattern, key_mask, scale=scale, query_offset=query_offset)
    if chosen == "blocked":
        if bias is not None and bias.requires_grad and torch.is_grad_enabled():
            raise InputError("backend='blocked' gives no gradient to bias; use backend='reference', or detach the bias")
        seed = torch.randint(2**62, (), dtype=torch.int64) if dropout_prob else None
        options = (str(pattern), scale, dropout_prob, query_offset, global_rows)
        return run(blocked_attention, blocked_kernel, query, key, value, key_mask, slots, bias, seed, *options)
    rest: dict[str, Any] = {"bias": bias, "scale": scale, "dropout_prob": dropout_prob}
    rest |= {"global_rows": global_rows, "query_offset": query_offset}
    whole = attend_flex if chosen == "flex" else attend_reference
    return whole(query, key, value, pattern, key_mask, slots, **rest)


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern,
    key_mask: Tensor | None,
    bias: Tensor | None,
    dropout_prob: float,
    backend: str,
) -> None:
    """Refuse what does not fit together, in one sentence each."""
    if backend not in BACKENDS:
        raise InputError(f"backend={backend!r} does not exist; choose one of {', '.join(BACKENDS)}")
    if not isinstance(pattern, Pattern):
        raise InputError(f"pattern={pattern!r} is no pattern; give one of longspan.patterns, or parse its text first")
    if query.ndim != 4 or key.ndim != 4 or value.ndim != 4:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (query, key, value))
        raise InputError(f"query, key and value have shapes {shapes}; give each four dimensions (B, H, length, D)")
    if query.shape[:2] != key.shape[:2] or query.shape[-1] != key.shape[-1] or key.shape[:3] != value.shape[:3]:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (query, key, value))
        raise InputError(
            f"query, key and value have shapes {shapes}; they must be (B, H, T, D), (B, H, S, D), (B, H, S, Dv)"
        )
    if not query.dtype == key.dtype == value.dtype:
        raise InputError(
            f"query, key and value have dtypes {query.dtype}, {key.dtype}, {value.dtype}; give all the same"
        )
    if pattern.heads not in (None, query.shape[1]):
        raise InputError(
            f"pattern has {pattern.heads} heads and query has {query.shape[1]}; give one pattern for each head"
        )
    if key_mask is not None and (key_mask.dtype != torch.bool or key_mask.shape != (key.shape[0], key.shape[2])):
        raise InputError(
            f"key_mask is {key_mask.dtype} of shape {tuple(key_mask.shape)}; "
            f"give bool of shape {(key.shape[0], key.shape[2])}"
        )
    if not 0 <= dropout_prob <= 1:
        raise InputError(f"dropout_prob={dropout_prob} is no probability; give a number from 0 to 1")
    if bias is not None:
        full = (*query.shape[:3], key.shape[2])
        if bias.ndim != 4 or any(size not in (1, wanted) for size, wanted in zip(bias.shape, full, strict=True)):
            raise InputError(f"bias has shape {tuple(bias.shape)}; give one that broadcasts to {full}")


def _slots(globals: Tensor, query: Tensor, key: Tensor, key_mask: Tensor | None, query_offset: int) -> Tensor:
    """Global tokens as `(B, G)` slots, each real token once, −1 where unused."""
    length = key.shape[2]
    if query.shape[2] != length or query_offset:
        raise InputError(
            f"globals needs queries and keys at the same positions, not {query.shape[2]} queries at offset "
            f"{query_offset} and {length} keys; leave globals out when decoding step by step"
        )
    if globals.ndim != 2 or globals.shape[0] != key.shape[0] or globals.dtype not in (torch.bool, torch.int64):
        raise InputError(
            f"globals is {globals.dtype} of shape {tuple(globals.shape)}; give a bool mask {(key.shape[0], length)} "
            f"or int64 positions ({key.shape[0]}, G)"
        )
    if globals.dtype == torch.bool:
        if globals.shape[1] != length:
            raise InputError(
                f"globals has {globals.shape[1]} positions and key has {length}; give them the same length"
            )
        return slots_of_mask(globals if key_mask is None else globals & key_mask)
    earlier = (globals[:, :, None] == globals[:, None, :]).tril(-1).any(-1)
    slots = torch.where(earlier | (globals < 0) | (globals >= length), -1, globals)
    if key_mask is not None and length:
        slots = torch.where(torch.gather(key_mask, 1, slots.clamp(min=0)), slots, -1)
    return slots


def slots_of_mask(mask: Tensor, count: int | None = None) -> Tensor:
    """`(B, T)` bool → `(B, count)` int64 positions of the True entries in order, then −1.

    Without `count` it is the largest number in a row, which depends on the data; give it under `torch.compile` and
    `torch.export`.
    """
    if count is None:
        count = int(mask.sum(dim=1).max()) if mask.numel() else 0
    count = min(count, mask.shape[1])
    position = torch.arange(mask.shape[1], device=mask.device)
    first = torch.where(mask, position, mask.shape[1]).sort(dim=1).values[:, :count]
    return torch.where(first < mask.shape[1], first, -1)


def _choose(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern,
    slots: Tensor | None,
    bias: Tensor | None,
    query_offset: int,
    dropout_prob: float,
) -> str:
    """The backend `auto` takes: the cheapest that serves the call."""
    if bias is not None and bias.requires_grad and torch.is_grad_enabled():
        return "reference"
    plain = slots is None and bias is None
    causal = isinstance(pattern, Causal) and query.shape[2] == key.shape[2] and not query_offset
    if plain and (causal or isinstance(pattern, Full)):
        return "full"
    if flex_serves(query, value_width=value.shape[-1], bias=bias, dropout_prob=dropout_prob):
        return "flex"
    if plain and not dropout_prob and dense_is_cheaper(query, key, pattern, query_offset):
        return "dense"
    return "blocked"
