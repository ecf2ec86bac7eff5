"""PyTorch's attention kernel, for full attention and for inputs too short to gain from skipping tiles."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.call import Call, mask_of_slots, patterns_of_rows
from longspan.ops.runtime import SIZES, cached, constant_in_graphs, full_precision, half_way, shared_in_pass
from longspan.ops.tiles.layout import traits_of
from longspan.patterns import Causal, Pattern

DENSE_PAIRS = 1 << 20
"""Maximum query–key pairs of a dense mask."""
MASK_PAIRS = 1 << 16
"""Up to this many pairs, a causal mask is cheaper than avoiding one."""
HIDING = 2.0**12
"""Hidden keys score less by its scaled square: enough for weights of 0, and little enough that the scores of a query
that sees nothing keep the digits that make its gradients finite."""
MASK_NUMBERS = 1 << 23
"""Maximum numbers of a mask that differs by rows or heads."""
HEADS_NUMBERS = 1 << 22
"""Maximum numbers of a mask that differs by head: masks of several layers fit the cache, and recomputing them in each
call would cost more than tiles."""
STRIP = 256
"""Queries per strip, in which the dense kernel skips the keys before the first and after the last visible one."""
SHORT = 160
"""Up to this many keys, the backward pass of the CPU kernel is faster in float32 than in half precision: 3 times at 16,
1.6 times at 100."""

MOST_INT32 = (1 << 31) - 1


def scaled(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Computes `F.scaled_dot_product_attention`, `(B, H, T, Dv)`, in the fastest precision; `options` are its keyword
    arguments."""
    half = query.device.type == "cpu" and query.dtype in (torch.bfloat16, torch.float16)
    if not half or torch.compiler.is_compiling() or not _faster_in_float32(query, key.shape[2]):
        return F.scaled_dot_product_attention(query, key, value, **options)
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype != torch.bool:
        options["attn_mask"] = mask.float()
    with full_precision(query):
        context = F.scaled_dot_product_attention(query.float(), key.float(), value.float(), **options)
    return context.to(query.dtype)


def _faster_in_float32(query: Tensor, keys: int) -> bool:
    """Whether the kernel is slower in the half precision of the queries: its forward pass on CPUs without matrix units,
    its backward pass on those without half-precision products, and with few keys on all."""
    way, learns = half_way(query.dtype), query.requires_grad and torch.is_grad_enabled()
    return way == "float32" or (keys <= SHORT if learns else way == "bfloat16")


def attend_full(call: Call) -> Tensor:
    """Computes full or causal attention without terms and globals; rows without real keys give zeros."""
    inputs, causal = (call.query, call.key, call.value), call.pattern.is_causal
    if call.key_mask is None:
        return scaled(*inputs, dropout_p=call.dropout_prob, is_causal=causal, scale=call.scale)
    visible, length = call.key_mask[:, None, None, :], call.query.shape[2]
    if not causal:
        half = call.query.dtype in (torch.float16, torch.bfloat16)
        # With a mask, CUDA would not use FlashAttention in half precision. For a single query this does not matter, and
        # hiding without a mask would copy keys and values.
        hides = call.query.is_cuda and half and length > 1
        return _attend_hiding(call, call.key_mask) if hides else _attend_visible(call, visible)
    if torch.compiler.is_compiling() or length**2 > MASK_PAIRS:
        return _attend_hiding(call, call.key_mask)
    return _attend_visible(call, visible & Causal().dense(length).to(call.query.device))


def attend_single(call: Call) -> Tensor:
    """Computes attention of one query without terms and globals, as in decoding: over the keys within reach, with a
    mask created on the device if the pattern hides some of these."""
    place, keys = call.query_offset, call.key.shape[2]
    first, last, step = call.pattern.reach()
    low, high = min(max(0, place + first), keys), max(0, min(keys, place + last + 1))
    high = max(low, high)
    near_call = replace(call, key=call.key[:, :, low:high], value=call.value[:, :, low:high])
    if low == high:
        return call.query.new_zeros(*call.query.shape[:-1], call.value.shape[-1])
    visible = None if call.key_mask is None else call.key_mask[:, None, None, low:high]
    if step != 1:
        index = torch.arange(low, high, device=call.key.device)[None]
        shown = call.pattern.visible(torch.full_like(index[:, :1], place), index)
        shown = shown[None] if call.pattern.heads else shown[None, None]
        visible = shown if visible is None else visible & shown
    if visible is not None:
        return _attend_visible(near_call, visible)
    return scaled(near_call.query, near_call.key, near_call.value, dropout_p=call.dropout_prob, scale=call.scale)


def flash_serves(call: Call) -> bool:
    """Whether PyTorch's FlashAttention supports a call without terms: on a GPU, in half precision, without globals,
    padding and dropout, over a contiguous window of keys at the positions of the queries."""
    query = call.query
    if call.slots is not None or not query.is_cuda:
        return False
    reach = call.pattern.reach()
    return (
        query.dtype in (torch.float16, torch.bfloat16)
        and query.shape[2] > 0
        and call.is_square
        and call.key_mask is None
        and not call.dropout_prob
        and (call.pattern.heads, reach.step) == (None, 1)
        and reach.first <= 0 <= reach.last
        and query.shape[-1] == call.value.shape[-1]
        and query.shape[-1] % 8 == 0
        and query.shape[-1] <= 256
        and not torch.are_deterministic_algorithms_enabled()  # FlashAttention accumulates gradients in any order
        and _flash_attention_has_windows(query.device)
    )


@constant_in_graphs
def _flash_attention_has_windows(device: torch.device) -> bool:
    """Whether PyTorch's FlashAttention is available, enabled, and supports windows, as since 2.11."""
    if not (torch.backends.cuda.flash_sdp_enabled() and torch.backends.cuda.is_flash_attention_available()):
        return False
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0) and _takes_windows()


@lru_cache(maxsize=1)
def _takes_windows() -> bool:
    from inspect import signature

    from torch.nn.attention.varlen import varlen_attn

    return "window_size" in signature(varlen_attn).parameters


def attend_window(call: Call) -> Tensor:
    """Computes attention within a window with FlashAttention: `(B, H, T, D)`, tokens before heads in memory."""
    from torch.nn.attention.varlen import varlen_attn

    batch, _, length = call.query.shape[:3]
    first, last, _ = call.pattern.reach()
    query, key, value = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (call.query, call.key, call.value))
    ends = _ends_of_rows(batch, length, call.query.device)
    # A window wider than the row is the whole row; `min(…, length)` would be symbolic in a compiled graph.
    options: dict[str, Any] = {"scale": call.scale, "window_size": (min(-first, MOST_INT32), min(last, MOST_INT32))}
    context: Any = varlen_attn(query, key, value, ends, ends, length, length, **options)
    return context.unflatten(0, (batch, length)).transpose(1, 2)


@cached
def _ends_of_rows(batch: int, length: int, device: torch.device) -> Tensor:
    """Returns the cumulative lengths of `batch` rows, `(B + 1,)` int32."""
    return torch.arange(0, (batch + 1) * length, length, dtype=torch.int32, device=device)


def _attend_hiding(call: Call, key_mask: Tensor) -> Tensor:
    """Computes full or causal attention over padded keys without a mask of all pairs: one additional channel in each
    query and key lowers the score of hidden keys until their weight is exactly 0."""
    query, key, value = call.query, call.key, call.value
    width = max(query.shape[-1], value.shape[-1])  # the memory-efficient kernel requires equal widths
    low = torch.zeros(key_mask.shape, dtype=key.dtype, device=key.device).masked_fill(~key_mask, -HIDING)
    low = low[:, None, :, None].expand(*key.shape[:3], 1)
    high = query.new_full((), HIDING).expand(*query.shape[:3], 1)
    query, key = (F.pad(tensor, (0, width - tensor.shape[-1])) for tensor in (query, key))
    mixed = F.scaled_dot_product_attention(
        torch.cat([query, high], dim=-1),
        torch.cat([key, low], dim=-1),
        F.pad(value, (0, width + 1 - value.shape[-1])),
        dropout_p=call.dropout_prob,
        is_causal=call.pattern.is_causal,
        scale=call.scale,
    )
    sees = key_mask.cumsum(1)[:, None, :, None] > 0 if call.pattern.is_causal else key_mask.any(1)[:, None, None, None]
    return mixed[..., : value.shape[-1]] * sees


def dense_cost(call: Call) -> float:
    """Returns the number of scores computed per head."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    if queries <= STRIP or (call.pattern.heads or 1) > 1 or call.slots is not None or call.key_mask is not None:
        return queries * keys
    strips = _strips_of(call.pattern, queries, keys, call.query_offset)
    return queries * keys if len(strips) == 1 else _pairs_of(strips)


def attend_dense(call: Call) -> Tensor:
    """Computes attention with the whole mask of the pattern and of the global tokens, for short inputs without terms
    and dropout."""
    query, slots, key_mask = call.query, call.slots, call.key_mask
    alike = slots is None or (len(slots) > 0 and bool((slots == slots[:1]).all()))
    named = () if slots is None or not alike else tuple(slots[0].tolist())
    sizes = (query.shape[2], call.key.shape[2], call.query_offset)
    mask, visible, some_empty = mask_of_pattern(
        call.pattern, named, call.global_rows, *sizes, query.dtype, query.device
    )
    if alike and key_mask is None and not some_empty:
        strips = [_WHOLE] if slots is not None else _strips_of(call.pattern, *sizes)
        parts = []
        for rows, keys in strips:  # a range of queries, and the keys that any of them sees
            options = {"attn_mask": None if mask is None else mask[:, :, rows, keys], "scale": call.scale}
            parts.append(scaled(query[:, :, rows], call.key[:, :, keys], call.value[:, :, keys], **options))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 2)
    if slots is not None and not alike:
        visible = _with_globals(visible, slots, call.global_rows)
    return _attend_visible(call, visible if key_mask is None else visible & key_mask[:, None, None, :])


_WHOLE = (slice(None), slice(None))


@cached
def _strips_of(pattern: Pattern, queries: int, keys: int, query_offset: int) -> list[tuple[slice, slice]]:
    """Returns strips of queries, each with the keys from the first to the last visible one: a single strip, unless
    several save a fifth of the pairs."""
    if pattern.heads or queries <= STRIP:
        return [_WHOLE]
    visible, strips = pattern.dense(queries, keys, query_offset=query_offset), []
    for start in range(0, queries, STRIP):
        columns = visible[start : start + STRIP].any(0).nonzero()[:, 0]
        first, last = (int(columns[0]), int(columns[-1]) + 1) if len(columns) else (0, keys)
        strips.append((slice(start, min(start + STRIP, queries)), slice(first, last)))
    return strips if _pairs_of(strips) <= 0.8 * queries * keys else [_WHOLE]


def _pairs_of(strips: list[tuple[slice, slice]]) -> int:
    return sum((rows.stop - rows.start) * (keys.stop - keys.start) for rows, keys in strips)


def _with_globals(visible: Tensor, slots: Tensor, global_rows: bool) -> Tensor:
    """Adds to the mask `(…, T, S)` the keys and, with `global_rows`, the queries of global tokens `(B or 1, G)`."""
    is_global = mask_of_slots(slots, visible.shape[3])[:, None]
    visible = visible | is_global[:, :, None, :]
    return visible | is_global[..., None] if global_rows else visible


def _attend_visible(call: Call, visible: Tensor) -> Tensor:
    """Computes attention under a bool mask; a row that sees nothing is computed over all keys, then set to zero."""
    empty = ~visible.any(dim=-1, keepdim=True)
    options = {"attn_mask": visible | empty, "dropout_p": call.dropout_prob, "scale": call.scale}
    return scaled(call.query, call.key, call.value, **options) * ~empty


@cached
def mask_of_pattern(
    pattern: Pattern,
    slots: tuple[int, ...],
    global_rows: bool,
    queries: int,
    keys: int,
    query_offset: int,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor | None, Tensor, bool]:
    """Returns the additive mask, or `None` if everything is visible, the bool mask (both `(1, H or 1, T, S)`), and
    whether some row sees nothing. With a mask per head only the bool one is cached, which is a quarter of the size."""
    visible = pattern.dense(queries, keys, query_offset=query_offset)
    visible = (visible if pattern.heads else visible[None])[None].to(device)
    if slots:
        visible = _with_globals(visible, torch.tensor([slots], device=device), global_rows)
    if bool(visible.all()):
        return None, visible, False
    mask = visible
    if not pattern.heads and dtype != torch.bool:
        mask = torch.zeros(visible.shape, dtype=dtype, device=device).masked_fill_(~visible, -math.inf)
    return mask, visible, not bool(visible.any(dim=-1).all())


def masked_serves(call: Call) -> bool:
    """Whether computing all pairs of a call without terms on a GPU is faster than launching the steps for global keys
    or sets of keys: in half precision, up to a bound that depends on the device."""
    (batch, heads, queries), keys = call.query.shape[:3], call.key.shape[2]
    mask_heads = call.pattern.heads or 1
    numbers = mask_heads * queries * keys
    return (
        call.query.dtype in (torch.float16, torch.bfloat16)
        and (call.slots is not None or traits_of(call.pattern).is_rearranged)
        and 0 < batch * heads * queries * keys <= SIZES[True].dense_scores
        and numbers * (1 if call.key_mask is None and call.slots is None else batch) <= MASK_NUMBERS
        and (mask_heads == 1 or numbers <= HEADS_NUMBERS)
        and not torch.compiler.is_compiling()
    )


def attend_masked(call: Call) -> Tensor:
    """Computes attention of all pairs on a GPU, with a mask that all layers of a pass share; global tokens and padding
    are read on the device, without synchronisation."""
    sizes = (call.query.shape[2], call.key.shape[2], call.query_offset)
    rows = patterns_of_rows(call.pattern, call.key_mask, sizes[1]) if call.pattern.reads_length else {call.pattern: []}
    shown = tuple((pattern, tuple(numbers)) for pattern, numbers in rows.items())
    data = (call.key_mask, call.slots, call.global_rows)
    mask, sees = _mask_on_gpu(shown, *sizes, *data, call.query.dtype, call.query.device)
    context = scaled(call.query, call.key, call.value, attn_mask=mask, dropout_p=call.dropout_prob, scale=call.scale)
    return context if sees is None else context * sees


@shared_in_pass
def _mask_on_gpu(
    shown: tuple[tuple[Pattern, tuple[int, ...]], ...],
    queries: int,
    keys: int,
    query_offset: int,
    key_mask: Tensor | None,
    slots: Tensor | None,
    global_rows: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor | None]:
    """Returns the additive mask, `(B or 1, H or 1, T, S)`, for patterns with their rows, and which queries see
    something, `None` for all."""
    parts = {
        row: mask_of_pattern(pattern, (), False, queries, keys, query_offset, torch.bool, device)
        for pattern, rows in shown
        for row in rows or (0,)
    }
    ordered = [parts[row] for row in sorted(parts)]
    visible = torch.cat([part_mask[1] for part_mask in ordered])
    if slots is not None:
        visible = _with_globals(visible, slots, global_rows)
    if key_mask is not None:
        visible = visible & key_mask[:, None, None, :]
    mask = torch.zeros(visible.shape, dtype=dtype, device=device)
    if key_mask is None and not any(part_mask[2] for part_mask in ordered):
        return mask.masked_fill_(~visible, -math.inf), None
    sees = visible.any(-1, keepdim=True)
    return mask.masked_fill_(~visible & sees, -math.inf), sees
