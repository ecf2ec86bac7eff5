"""PyTorch's own attention kernel, for full attention and for inputs so short that skipping tiles saves nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.call import Call, mask_of_slots, patterns_of_rows
from longspan.ops.runtime import SIZES, cached, full_precision, half_way, shared_in_pass
from longspan.ops.tiles.layout import traits_of
from longspan.patterns import Causal, Pattern

DENSE_PAIRS = 1 << 20
"""Above this many query–key pairs a dense mask is never made."""
MASK_PAIRS = 1 << 16
"""Up to so many pairs a causal mask costs less than to do without."""
HIDING = 2.0**12
"""The square of it, scaled, is what hidden keys score less: enough for weights of 0, and little enough that the scores
of a query that sees nothing keep the digits by which its gradients are finite."""
MASK_NUMBERS = 1 << 23
"""Most numbers of a mask that rows or heads have for themselves."""
HEADS_NUMBERS = 1 << 22
"""Most numbers of a mask that each head has for itself: several layers with patterns of their own fit the cache, and
computing it again in each call would cost more than tiles do."""
STRIP = 256
"""Queries of a run in which the dense kernel leaves out the keys before the first and after the last that it sees."""
SHORT = 160
"""Up to so many keys the kernel of the CPU goes back faster in float32 than in half precision: 3 times as fast at 16,
1.6 times at 100."""


def scaled(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """`F.scaled_dot_product_attention`, `(B, H, T, Dv)`, in the precision in which it is fastest; `options` are its
    keywords."""
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
    """Whether the kernel takes longer in the half precision of the queries: its forward pass does on processors without
    matrix units, its backward pass on those that do not multiply the type, and beside few keys on all."""
    way, learns = half_way(query.dtype), query.requires_grad and torch.is_grad_enabled()
    return way == "float32" or (keys <= SHORT if learns else way == "bfloat16")


def attend_full(call: Call) -> Tensor:
    """Full or causal attention without terms and globals; rows without any real key give zeros."""
    inputs, causal = (call.query, call.key, call.value), call.pattern.is_causal
    if call.key_mask is None:
        return scaled(*inputs, dropout_p=call.dropout_prob, is_causal=causal, scale=call.scale)
    visible, length = call.key_mask[:, None, None, :], call.query.shape[2]
    if not causal:
        half = call.query.dtype in (torch.float16, torch.bfloat16)
        # With a mask CUDA would not take FlashAttention, which is for half precision; one query is no work for it, and
        # without a mask keys and values would be copied.
        hides = call.query.is_cuda and half and length > 1
        return _attend_hiding(call, call.key_mask) if hides else _attend_visible(call, visible)
    if torch.compiler.is_compiling() or length**2 > MASK_PAIRS:
        return _attend_hiding(call, call.key_mask)
    return _attend_visible(call, visible & Causal().dense(length).to(call.query.device))


def attend_single(call: Call) -> Tensor:
    """Attention of one query without terms and globals, as in decoding: over the keys within reach, by a mask that is
    made on the device where the pattern does not show all of these."""
    place, keys = call.query_offset, call.key.shape[2]
    first, last, step = call.pattern.reach()
    low, high = min(max(0, place + first), keys), max(0, min(keys, place + last + 1))
    high = max(low, high)
    own = replace(call, key=call.key[:, :, low:high], value=call.value[:, :, low:high])
    if low == high:
        return call.query.new_zeros(*call.query.shape[:-1], call.value.shape[-1])
    visible = None if call.key_mask is None else call.key_mask[:, None, None, low:high]
    if step != 1:
        index = torch.arange(low, high, device=call.key.device)[None]
        shown = call.pattern.visible(torch.full_like(index[:, :1], place), index)
        shown = shown[None] if call.pattern.heads else shown[None, None]
        visible = shown if visible is None else visible & shown
    if visible is not None:
        return _attend_visible(own, visible)
    return scaled(own.query, own.key, own.value, dropout_p=call.dropout_prob, scale=call.scale)


def window_serves(call: Call) -> bool:
    """Whether PyTorch's FlashAttention computes a call without terms: on a GPU, in half precision, no globals, over all
    keys that the pattern reaches from each query, of the same positions as these, where nothing is hidden or
    dropped."""
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
        and not torch.compiler.is_compiling()
        and not torch.are_deterministic_algorithms_enabled()  # whose gradients it adds up in any order
        and _flash_attention_has_windows(query.device)
    )


def _flash_attention_has_windows(device: torch.device) -> bool:
    """Whether PyTorch's FlashAttention is there, is allowed, and takes windows, as it does since 2.11."""
    if not (torch.backends.cuda.flash_sdp_enabled() and torch.backends.cuda.is_flash_attention_available()):
        return False
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0) and _takes_windows()


@lru_cache(maxsize=1)
def _takes_windows() -> bool:
    from inspect import signature

    from torch.nn.attention.varlen import varlen_attn

    return "window_size" in signature(varlen_attn).parameters


def attend_window(call: Call) -> Tensor:
    """Attention within a window by FlashAttention: `(B, H, T, D)`, token before head in memory."""
    from torch.nn.attention.varlen import varlen_attn

    batch, _, length = call.query.shape[:3]
    first, last, _ = call.pattern.reach()
    query, key, value = (each.transpose(1, 2).flatten(0, 1) for each in (call.query, call.key, call.value))
    ends = _ends_of_rows(batch, length, call.query.device)
    options: dict[str, Any] = {"scale": call.scale, "window_size": (min(-first, length), min(last, length))}
    context: Any = varlen_attn(query, key, value, ends, ends, length, length, **options)
    return context.unflatten(0, (batch, length)).transpose(1, 2)


@cached
def _ends_of_rows(batch: int, length: int, device: torch.device) -> Tensor:
    """`(B + 1,)` int32: where each of so many rows begins, one behind the other, and the end."""
    return torch.arange(0, (batch + 1) * length, length, dtype=torch.int32, device=device)


def _attend_hiding(call: Call, key_mask: Tensor) -> Tensor:
    """Full or causal attention over padded keys, without a mask of all pairs: one more number in each query and key
    hides a key by a score so low that its weight is exactly 0."""
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
        is_causal=call.pattern.is_causal,
        scale=call.scale,
    )
    sees = key_mask.cumsum(1)[:, None, :, None] > 0 if call.pattern.is_causal else key_mask.any(1)[:, None, None, None]
    return mixed[..., : value.shape[-1]] * sees


def dense_cost(call: Call) -> float:
    """The scores that it computes for a head."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    if queries <= STRIP or (call.pattern.heads or 1) > 1 or call.slots is not None or call.key_mask is not None:
        return queries * keys
    strips = _strips_of(call.pattern, queries, keys, call.query_offset)
    return queries * keys if len(strips) == 1 else _pairs_of(strips)


def attend_dense(call: Call) -> Tensor:
    """Attention with the whole mask of a pattern and of the global tokens, for short inputs, without terms and
    dropout."""
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
        for rows, keys in strips:  # some queries, and the keys that one of them sees
            options = {"attn_mask": None if mask is None else mask[:, :, rows, keys], "scale": call.scale}
            parts.append(scaled(query[:, :, rows], call.key[:, :, keys], call.value[:, :, keys], **options))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 2)
    if slots is not None and not alike:
        visible = _with_globals(visible, slots, call.global_rows)
    return _attend_visible(call, visible if key_mask is None else visible & key_mask[:, None, None, :])


_WHOLE = (slice(None), slice(None))


@cached
def _strips_of(pattern: Pattern, queries: int, keys: int, query_offset: int) -> list[tuple[slice, slice]]:
    """Runs of queries, each with the keys from the first to the last that it sees: all in one, unless several save a
    fifth of the pairs."""
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
    """What `(…, T, S)` shows, and what global tokens `(B or 1, G)` see, and who sees them."""
    is_global = mask_of_slots(slots, visible.shape[3])[:, None]
    visible = visible | is_global[:, :, None, :]
    return visible | is_global[..., None] if global_rows else visible


def _attend_visible(call: Call, visible: Tensor) -> Tensor:
    """Attention under a bool mask; a row that sees nothing is computed over all keys, then set to zero."""
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
    """The mask to add, or none where all is shown, the bool mask (both `(1, H or 1, T, S)`), and whether some row sees
    nothing. With a mask for each head only the bool one is cached, a quarter as large."""
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
    """Whether a GPU computes all pairs of a call without terms faster than it is told of the several steps that global
    keys, or sets of keys, take: in half precision, up to a bound that belongs to the device."""
    (batch, heads, queries), keys = call.query.shape[:3], call.key.shape[2]
    own = call.pattern.heads or 1
    numbers = own * queries * keys
    return (
        call.query.dtype in (torch.float16, torch.bfloat16)
        and (call.slots is not None or traits_of(call.pattern).is_rearranged)
        and 0 < batch * heads * queries * keys <= SIZES[True].dense_scores
        and numbers * (1 if call.key_mask is None and call.slots is None else batch) <= MASK_NUMBERS
        and (own == 1 or numbers <= HEADS_NUMBERS)
        and not torch.compiler.is_compiling()
    )


def attend_masked(call: Call) -> Tensor:
    """Attention of all pairs on a GPU, by a mask that all layers of a pass share; global tokens and padding are looked
    at on the device, for which nobody waits."""
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
    """The mask to add, `(B or 1, H or 1, T, S)`, of patterns with the rows that have them; and which queries see
    something, `None` for all."""
    parts = {
        row: mask_of_pattern(pattern, (), False, queries, keys, query_offset, torch.bool, device)
        for pattern, rows in shown
        for row in rows or (0,)
    }
    ordered = [parts[row] for row in sorted(parts)]
    visible = torch.cat([each[1] for each in ordered])
    if slots is not None:
        visible = _with_globals(visible, slots, global_rows)
    if key_mask is not None:
        visible = visible & key_mask[:, None, None, :]
    mask = torch.zeros(visible.shape, dtype=dtype, device=device)
    if key_mask is None and not any(each[2] for each in ordered):
        return mask.masked_fill_(~visible, -math.inf), None
    sees = visible.any(-1, keepdim=True)
    return mask.masked_fill_(~visible & sees, -math.inf), sees
