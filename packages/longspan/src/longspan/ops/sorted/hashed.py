"""Attention within hash buckets over several rounds of hashing: the dense reference, the operator, and decoding steps.

The tokens of a bucket, in text order, form chunks of m. In every round a query sees its own chunk and those before (and
after) it in its bucket, except itself; the rounds share one softmax over all keys visible in any of them. A later token
never changes the chunk of an earlier one. Source: Kitaev et al. 2020, arXiv 2001.04451, section 2 and appendix A, where
chunks cross the borders of buckets instead.

The fast path, in `longspan.ops.sorted.hashed_tiles`, is one PyTorch operator, opaque to `torch.compile` and
`torch.export`; on a GPU it is FlexAttention, in `longspan.ops.sorted.hashed_flex`, where that is supported. For
decoding step by step, `attend_rings` keeps the last tokens of every bucket.
"""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.flex import FlexFailedError
from longspan.ops.attend.reference import dense_weights, full_precision
from longspan.ops.runtime import needs_reference, run
from longspan.ops.sorted import hashed_flex, hashed_tiles
from longspan.ops.sorted.hashed_units import Chunks
from longspan.ops.sorted.hashing import EPSILON, NOWHERE

SHORT = 128
"""Up to this number of tokens, all pairs are computed."""
SPAN = 1 << 31
"""Larger than the number of chunks in any bucket."""


def unit(vectors: Tensor) -> Tensor:
    """Normalises vectors to length 1 along the last dimension: the key of a shared query."""
    wide = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    return wide * (wide.square().sum(-1, keepdim=True) + EPSILON * wide.shape[-1]).rsqrt()


def visible_rounds(ids: Tensor, chunks: Chunks) -> Tensor:
    """Returns the number of rounds in which each query sees each key, from all pairs: `(B, H, R, T)` → `(B, H, T,
    T)`."""
    same = (ids[..., :, None] == ids[..., None, :]) & (ids != NOWHERE)[..., None]
    chunk = same.tril(-1).sum(-1) // chunks.size
    offset = chunk[..., None, :] - chunk[..., :, None]
    times = (same & (offset >= -chunks.before) & (offset <= chunks.after)).sum(2)
    places = torch.arange(ids.shape[-1], device=ids.device)
    return times * chunks.allow(places[:, None], places)


def hashed_weights(
    query: Tensor, ids: Tensor, chunks: Chunks, times: Tensor | None = None, key: Tensor | None = None
) -> Tensor:
    """Dense reference: the weights `(B, H, T, T)` of queries `(B, H, T, D)` with buckets `(B, H, R, T)` over the keys,
    by default the normalised queries.

    A query that sees no key attends to itself; padding has zero weights.
    """
    times = visible_rounds(ids, chunks) if times is None else times
    bias = None if chunks.once else times.clamp(min=1).to(torch.promote_types(query.dtype, torch.float32)).log()
    weights = dense_weights(query, unit(query) if key is None else key, times > 0, scale=chunks.scale, bias=bias)
    alone = (times.sum(-1) == 0) & (ids[:, :, 0] != NOWHERE)
    return weights + torch.diag_embed(alone.to(weights.dtype))


def ranks_in_buckets(ids: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Returns the number of earlier tokens in each token's bucket, `(…, T)`, and the size of each bucket, `(…, most +
    1)`, with padding last."""
    ids = torch.where(ids == NOWHERE, most, ids)
    ordered, order = ids.sort(dim=-1, stable=True)
    counts = ids.new_zeros(*ids.shape[:-1], most + 1).scatter_add(-1, ids, torch.ones_like(ids))
    starts = counts.cumsum(-1) - counts
    ranks = torch.arange(ids.shape[-1], device=ids.device) - starts.gather(-1, ordered)
    return torch.zeros_like(ids).scatter(-1, order, ranks), counts


def codes_of(ids: Tensor, ranks: Tensor, size: int) -> Tensor:
    """Returns codes of bucket and chunk, `(…, T)`: consecutive for neighbouring chunks of a bucket, and for no
    others."""
    return torch.where(ids == NOWHERE, -SPAN, ids * SPAN + torch.div(ranks, size, rounding_mode="floor"))


def in_reach(query_codes: Tensor, key_codes: Tensor, chunks: Chunks) -> Tensor:
    """Whether the query sees the chunk of the key, from broadcastable codes."""
    return (key_codes >= query_codes - chunks.before) & (key_codes <= query_codes + chunks.after)


def attend_hashed(
    query: Tensor,
    value: Tensor,
    ids: Tensor,
    chunks: Chunks,
    *,
    most: int,
    dropout_prob: float = 0.0,
    key: Tensor | None = None,
) -> Tensor:
    """Computes attention of queries over the keys of their buckets: `(B, H, T, D)` → `(B, H, T, D)`; zeros for padding.

    Args:
        query: `(B, H, T, D)`.
        value: `(B, H, T, D)`.
        ids: `(B, H, R, T)` int64, the bucket of every token in every round, −1 for padding.
        chunks: chunk size and visibility.
        most: an upper bound on the number of buckets.
        dropout_prob: probability of dropping an attention weight.
        key: `(B, H, T, D)` unless `chunks` are `shared`; then the keys are the normalised queries.
    """
    if needs_reference(query, value, key):
        weights = hashed_weights(query, ids, chunks, key=key)
        with full_precision(query):
            return (F.dropout(weights, dropout_prob) @ value.to(weights.dtype)).to(value.dtype)
    if not torch.compiler.is_compiling() and most == 1:
        ids = ids[:, :, :1]  # all rounds are equal
    if not torch.compiler.is_compiling() and ids.shape[-1] <= SHORT:
        return _attend_short(query, key, value, ids, chunks, most, dropout_prob)
    if hashed_flex.flex_serves(query, value, ids, chunks, most):
        try:
            return hashed_flex.attend_flex_hashed(query, key, value, ids, chunks, most=most, dropout_prob=dropout_prob)
        except FlexFailedError as error:
            warnings.warn(f"buckets are computed in pieces instead: {error}", stacklevel=2)
    return attend_units(query, key, value, ids, chunks, most=most, dropout_prob=dropout_prob)


def _attend_short(
    query: Tensor, key: Tensor | None, value: Tensor, ids: Tensor, chunks: Chunks, most: int, dropout_prob: float
) -> Tensor:
    """As `attend_hashed`, with PyTorch's kernel and a mask of all pairs."""
    if not value.numel():
        return value.clone()
    wide, padding = torch.promote_types(query.dtype, torch.float32), ids[:, :, 0] == NOWHERE
    with torch.no_grad():
        times = _times(ids, chunks, most, wide)
        alone = times.sum(-1) == 0
        times.diagonal(dim1=-2, dim2=-1).add_(alone)
        mask = (times.clamp_(max=1) if chunks.once else times).log_()
    with full_precision(query):
        context = F.scaled_dot_product_attention(
            query.to(wide),
            unit(query) if key is None else key.to(wide),
            value.to(wide),
            attn_mask=mask,
            dropout_p=dropout_prob,
            scale=chunks.scale,
        )
    return context.masked_fill(padding[..., None], 0).to(value.dtype)


def _times(ids: Tensor, chunks: Chunks, most: int, dtype: torch.dtype) -> Tensor:
    """`visible_rounds` in a floating type, which a CPU compares faster than bools."""
    length, chunk = ids.shape[-1], -(-ids.shape[-1] // chunks.size)
    if most == 1 and chunk <= 1 + (chunks.before if chunks.causal else min(chunks.before, chunks.after)):
        # Every token sees every other, in all heads and rounds.
        real = (ids[:, :1, 0] != NOWHERE).to(dtype)[:, :, None]
        return _others(real.expand(-1, -1, length, -1).clone(), chunks)
    reach = [min(round_codes, length // chunks.size + 1) for round_codes in (chunks.before, chunks.after)]
    ranks, _ = ranks_in_buckets(ids, most)
    apart = length // chunks.size + sum(reach) + 1
    codes = (ids * apart + torch.div(ranks, chunks.size, rounding_mode="floor")).to(dtype)
    codes = codes.masked_fill_(ids == NOWHERE, torch.nan)
    times = codes.new_zeros(*ids.shape[:2], length, length)
    for round_codes in codes.unbind(2):
        # −b ≤ key − query ≤ a is |key − query − (a − b) / 2| ≤ (a + b) / 2.
        away = round_codes[..., None, :] - (round_codes + (reach[1] - reach[0]) / 2)[..., None]
        times.add_(away.abs_().le_(sum(reach) / 2))
    return _others(times, chunks)


def _others(times: Tensor, chunks: Chunks) -> Tensor:
    """Sets the diagonal to 0 where queries are also keys, and later positions in the causal form."""
    if chunks.causal:
        return times.tril_(-1 if chunks.shared else 0)
    if chunks.shared:
        times.diagonal(dim1=-2, dim2=-1).zero_()
    return times


ARGUMENTS = (
    "Tensor query, Tensor? key, Tensor value, Tensor ids, Tensor? seed, SymInt most, int size, int before, int after, "
    "bool causal, float scale, bool once, float dropout_prob"
)


def attend_units(
    query: Tensor, key: Tensor | None, value: Tensor, ids: Tensor, chunks: Chunks, *, most: int, dropout_prob: float
) -> Tensor:
    """`(B, H, T, D)` → `(B, H, T, D)`, in time proportional to the number of visible pairs."""
    query, value = (tensor.transpose(1, 2).contiguous() for tensor in (query, value))
    key = None if key is None else key.transpose(1, 2).contiguous()
    seed = torch.randint(2**62, (), dtype=torch.int64) if dropout_prob else None
    shape = (chunks.size, chunks.before, chunks.after, chunks.causal, chunks.scale, chunks.once)
    return run(hashed_attention, _kernel, query, key, value, ids, seed, most, *shape, dropout_prob)[0].transpose(1, 2)


def _kernel(query, key, value, ids, seed, most, size, before, after, causal, scale, once, dropout_prob):  # type: ignore[no-untyped-def]
    """Returns the contexts `(B, T, H, D)` and the log-sum-exp of the scores, `(B·T·H,)`."""
    chunks = Chunks(size=size, before=before, after=after, causal=causal, scale=scale, once=once, shared=key is None)
    return hashed_tiles.forward(query, key, value, ids, chunks, most, dropout_prob, 0 if seed is None else int(seed))


hashed_attention = torch.library.custom_op(
    "longspan::hashed_attention", _kernel, mutates_args=(), schema=f"({ARGUMENTS}) -> (Tensor, Tensor)"
)


@hashed_attention.register_fake
def _(query, key, value, ids, *rest):  # type: ignore[no-untyped-def]
    wide = torch.promote_types(query.dtype, torch.float32)
    return value.new_empty(value.shape), query.new_empty(query[..., 0].numel(), dtype=wide)


def _backward_kernel(
    grad, output, logs, query, key, value, ids, seed, most, size, before, after, causal, scale, once, dropout_prob
):  # type: ignore[no-untyped-def]
    """Returns the gradients of query, value and key; without a key, an empty one."""
    chunks = Chunks(size=size, before=before, after=after, causal=causal, scale=scale, once=once, shared=key is None)
    return hashed_tiles.backward(
        grad, output, logs, query, key, value, ids, chunks, most, dropout_prob, 0 if seed is None else int(seed)
    )


hashed_attention_backward = torch.library.custom_op(
    "longspan::hashed_attention_backward",
    _backward_kernel,
    mutates_args=(),
    schema=f"(Tensor grad, Tensor output, Tensor logs, {ARGUMENTS}) -> (Tensor, Tensor, Tensor)",
)


@hashed_attention_backward.register_fake
def _(grad, output, logs, query, key, value, *rest):  # type: ignore[no-untyped-def]
    return query.new_empty(query.shape), value.new_empty(value.shape), query.new_empty(() if key is None else key.shape)


def _setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
    query, key, value, ids, seed, *ctx.options = inputs
    ctx.save_for_backward(*output, query, key, value, ids, seed)
    ctx.mark_non_differentiable(output[1])


def _gradient(ctx, grad, _):  # type: ignore[no-untyped-def]
    to_query, to_value, to_key = hashed_attention_backward(grad.contiguous(), *ctx.saved_tensors, *ctx.options)
    key = ctx.saved_tensors[3]
    return to_query, None if key is None else to_key, to_value, *([None] * (2 + len(ctx.options)))


hashed_attention.register_autograd(_gradient, setup_context=_setup_context)


# Decoding keeps a ring of the last `(1 + before)·m` tokens of every bucket of every round, in constant memory: the next
# token of a bucket sees no further back.

Rings = dict[str, Tensor]
"""`keys` and `values` `(B, H, R, b + 1, W, D)`, `codes` `(B, H, R, b + 1, W, R)` of these tokens in every round,
`counts` `(B, H, R, b + 1)` of all tokens so far; the last bucket holds padding and is never read."""


def new_rings(query: Tensor, value: Tensor, rounds: int, buckets: int, chunks: Chunks) -> Rings:
    """Returns empty rings for vectors `(B, H, T, D)`."""
    (batch, heads, _, width), room = query.shape, (1 + chunks.before) * chunks.size
    shape = (batch, heads, rounds, buckets + 1)
    return {
        "keys": query.new_zeros(*shape, room, width, dtype=torch.promote_types(query.dtype, torch.float32)),
        "values": value.new_zeros(*shape, room, width),
        "codes": torch.full((*shape, room, rounds), -SPAN, device=query.device),
        "counts": torch.zeros(shape, dtype=torch.int64, device=query.device),
    }


def attend_rings(
    query: Tensor,
    value: Tensor,
    ids: Tensor,
    chunks: Chunks,
    rings: Rings,
    dropout_prob: float = 0.0,
    key: Tensor | None = None,
) -> tuple[Tensor, Rings]:
    """Computes attention of tokens that continue a sequence, `(B, H, T, D)` → `(B, H, T, D)`, and returns the updated
    rings."""
    outputs = []
    key = unit(query) if key is None else key
    for start in range(0, query.shape[2], chunks.size):  # pieces no longer than a ring
        piece = slice(start, start + chunks.size)
        parts = key[:, :, piece], value[:, :, piece], ids[..., piece]
        outputs.append(_attend_piece(query[:, :, piece], *parts, chunks, rings, dropout_prob))
        rings = filled(rings, *parts, chunks)
    return torch.cat(outputs, 2) if outputs else torch.zeros_like(value), rings


def filled(rings: Rings, key: Tensor, value: Tensor, ids: Tensor, chunks: Chunks) -> Rings:
    """Returns the rings with these tokens added; in place, unless gradients are enabled."""
    if torch.is_grad_enabled():
        rings = {name: ring.clone() for name, ring in rings.items()}
    buckets, room = rings["keys"].shape[3] - 1, rings["keys"].shape[4]
    ranks, counts = _ranks(ids, rings)
    rounds = ids.shape[2]
    codes = codes_of(ids, ranks, chunks.size)
    rings["counts"] += counts
    lasting = (ids != NOWHERE) & (ranks >= rings["counts"].gather(-1, ids.clamp(min=0)) - room)
    places = torch.where(lasting, ids * room + ranks % room, buckets * room)[..., None]
    new = {
        "keys": key.to(rings["keys"].dtype)[:, :, None].expand(-1, -1, rounds, -1, -1),
        "values": value[:, :, None].expand(-1, -1, rounds, -1, -1),
        "codes": codes.transpose(2, 3)[:, :, None].expand(-1, -1, rounds, -1, -1),
    }
    for name, tensor in new.items():
        rings[name].flatten(3, 4).scatter_(3, places.expand_as(tensor), tensor)
    return rings


def _ranks(ids: Tensor, rings: Rings) -> tuple[Tensor, Tensor]:
    """Returns the number of earlier tokens in each token's bucket, and the new tokens per bucket."""
    ranks, counts = ranks_in_buckets(ids, rings["keys"].shape[3] - 1)
    return ranks + rings["counts"].gather(-1, ids.clamp(min=0)), counts


def _attend_piece(
    query: Tensor, key: Tensor, value: Tensor, ids: Tensor, chunks: Chunks, rings: Rings, dropout_prob: float
) -> Tensor:
    """Computes attention of at most m tokens over the rings and over each other."""
    wide = torch.promote_types(query.dtype, torch.float32)
    real = (ids != NOWHERE)[..., None]
    codes = codes_of(ids, _ranks(ids, rings)[0], chunks.size)
    keys, values, others = (_of_buckets(rings[name], ids) for name in ("keys", "values", "codes"))
    reach = in_reach(codes.transpose(2, 3)[:, :, None, :, None], others, chunks)
    visible = reach.diagonal(dim1=2, dim2=5).movedim(-1, 2) & real
    if chunks.once:
        earlier = torch.ones(ids.shape[2], ids.shape[2], dtype=torch.bool, device=ids.device).tril(-1)
        visible = visible & ~(reach & earlier[:, None, None]).any(-1)
    times = _times_of_codes(codes, chunks)
    with full_precision(query):
        past = (query.to(wide)[:, :, None, :, None] @ keys.mT)[..., 0, :]
        new = query.to(wide) @ key.to(wide).mT
        if not chunks.once:
            new = new + times.clamp(min=1).to(wide).log() / chunks.scale
        scores = torch.cat([past.movedim(2, 3).flatten(3), new], -1) * chunks.scale
        visible = torch.cat([visible.movedim(2, 3).flatten(3), times > 0], -1)
        weights = scores.masked_fill(~visible, torch.finfo(wide).min).softmax(-1).masked_fill(~visible, 0)
        alone = ~visible.any(-1) & (ids[:, :, 0] != NOWHERE)
        weights = torch.cat([weights, alone[..., None].to(wide)], -1)
        weights = F.dropout(weights, dropout_prob)
        past, new, own = weights.split([weights.shape[-1] - ids.shape[-1] - 1, ids.shape[-1], 1], -1)
        values = values.movedim(2, 3).flatten(3, 4).to(wide)
        context = (past[..., None, :] @ values)[..., 0, :] + new @ value.to(wide) + own * value.to(wide)
    return context.to(value.dtype)


def _times_of_codes(codes: Tensor, chunks: Chunks) -> Tensor:
    """`visible_rounds` from codes `(B, H, R, T)`, one round at a time."""
    times = torch.zeros((), dtype=torch.int8, device=codes.device)
    for round_codes in codes.unbind(2):
        near = in_reach(round_codes[..., None], round_codes[..., None, :], chunks)
        times = times + (near & (round_codes != -SPAN)[..., None]).to(torch.int8)
    places = torch.arange(codes.shape[-1], device=codes.device)
    return times * chunks.allow(places[:, None], places)


def _of_buckets(ring: Tensor, ids: Tensor) -> Tensor:
    """Reads from a ring `(B, H, R, b + 1, W, N)` each token's bucket: `(B, H, R, T, W, N)`."""
    batch, heads, rounds, buckets = ring.shape[:4]
    first = torch.arange(batch * heads * rounds, device=ids.device).view(batch, heads, rounds, 1) * buckets
    return ring.flatten(0, 3).index_select(0, (first + ids.clamp(min=0)).flatten()).view(*ids.shape, *ring.shape[4:])
