"""Attention within hash buckets on a GPU: one call of FlexAttention over all rounds, with tokens sorted by bucket.

In that order the keys visible to a query are a contiguous range around it, no longer than the chunks it may see, so
that the block mask is a band that does not depend on the data and needs no synchronisation. Inside the band a predicate
compares the codes of bucket and chunk; with `Chunks.once` it excludes keys visible in an earlier round. The rounds are
combined into one softmax by their log-sum-exp.

In the causal form every bucket begins at a new block, after empty slots: then a later token does not move an earlier
one inside its block, and earlier outputs are bit-identical.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest

from longspan.ops.attend.flex import LEAST_WIDTH, TYPES, compiles, run_compiled
from longspan.ops.attend.flex_options import program_options
from longspan.ops.attend.flex_scores import BITS, ScoreMod, with_dropout
from longspan.ops.attend.flex_tables import BLOCK, MaskMod, Table, Tables
from longspan.ops.runtime import cached
from longspan.ops.sorted.hashed_units import Chunks
from longspan.ops.sorted.hashing import EPSILON, NOWHERE

MOST_ROUNDS = 8
"""The predicate checks every round, and each number of rounds compiles a program of its own."""
MOST_SLOTS = 4
"""Maximum slots per token for which the band is worthwhile; beyond that, most slots are empty ends of buckets."""
NOTHING = 1e30
"""The log-sum-exp over no keys is clamped to −1e30, so that gradients stay finite."""
NO_TOKEN = -(1 << 30)
"""The code of an empty slot."""


class Slots(NamedTuple):
    """The order of all rounds: S slots per round, in which the tokens of a bucket are consecutive.

    Attributes:
        rows: `(B·H·R·S,)` the row of each slot's token among the vectors `(B·T·H, D)`; arbitrary for empty slots.
        places: `(B·T·H·R,)` the slot of each token in every round, among all.
        codes: `(B, H·R, K, S)` int32, codes of bucket and chunk: of all K = R rounds if a key counts once, otherwise of
            the slot's own round.
    """

    rows: Tensor
    places: Tensor
    codes: Tensor


def flex_serves(query: Tensor, value: Tensor, ids: Tensor, chunks: Chunks, most: int) -> bool:
    """Whether FlexAttention supports these inputs."""
    widths = query.shape[-1], value.shape[-1]
    return (
        query.is_cuda
        and query.dtype in TYPES
        and not torch.compiler.is_compiling()
        and all(width >= LEAST_WIDTH and width & (width - 1) == 0 for width in widths)
        and ids.shape[2] <= MOST_ROUNDS
        and count_slots(ids.shape[3], most, chunks) <= MOST_SLOTS * max(ids.shape[3], BLOCK)
        and compiles(_kind(query, value, ids.shape[2], chunks, 0.0))
    )


def count_slots(length: int, most: int, chunks: Chunks) -> int:
    """Returns the slots per round, S, which do not depend on the sizes of the buckets."""
    return length if not chunks.causal else length + min(most + 1, length) * (BLOCK - 1)


def attend_flex_hashed(
    query: Tensor, key: Tensor | None, value: Tensor, ids: Tensor, chunks: Chunks, *, most: int, dropout_prob: float
) -> Tensor:
    """`(B, H, T, D)` → `(B, H, T, D)`; arguments as in `attend_hashed`.

    Raises:
        FlexFailedError: FlexAttention cannot be compiled here.
    """
    (batch, heads, rounds, length), size = ids.shape, count_slots(ids.shape[3], most, chunks)
    most_chunks = length // chunks.size + 1  # of a bucket
    chunks = replace(chunks, before=min(chunks.before, most_chunks), after=min(chunks.after, most_chunks))
    with torch.no_grad():
        slots = slots_of(ids, chunks, most)
    vectors = [tensor.transpose(1, 2).reshape(-1, tensor.shape[-1]) for tensor in (query, value)]
    vectors += [] if key is None else [key.transpose(1, 2).reshape(-1, key.shape[-1])]
    shape, shares = (batch, heads * rounds, size), None
    ordered = [_InOrder.apply(vector, slots.rows, slots.places).unflatten(0, shape) for vector in vectors]
    if key is None:
        with torch.no_grad():
            shares = inverse_norms(vectors[0]).index_select(0, slots.rows).view(shape)
        ordered.append(_AsKey.apply(ordered[0], shares))
    contexts, sums, logs = _attend_slots(ordered, shares, slots.codes, chunks, rounds, dropout_prob)
    shape = (batch, length, heads, rounds, -1)
    contexts, sums, logs = (
        _InPlace.apply(tensor.reshape(-1, tensor.shape[-1]), slots.places).view(shape)
        for tensor in (contexts, sums[..., None].clamp(min=-NOTHING), logs[..., None].clamp(min=-NOTHING))
    )
    factors = (logs - sums.logsumexp(3, keepdim=True)).exp() / (1 - dropout_prob if dropout_prob < 1 else 1)
    context = (contexts * factors).sum(3).to(value.dtype)  # factors are at least float32
    if chunks.shared:  # a token that sees no other
        alone = sums.amax(3) <= -NOTHING
        own = F.dropout(torch.ones_like(alone, dtype=value.dtype), dropout_prob) * value.transpose(1, 2)
        context = torch.where(alone, own, context)
    padding = (ids[:, :, 0] == NOWHERE).transpose(1, 2)[..., None]
    return context.masked_fill(padding, 0).transpose(1, 2)


def slots_of(ids: Tensor, chunks: Chunks, most: int) -> Slots:
    """Returns the order of tokens with buckets `(B, H, R, T)`, at most `most` of them; padding, −1, comes last."""
    (batch, heads, rounds, length), device = ids.shape, ids.device
    groups, size = batch * heads * rounds, count_slots(length, most, chunks)
    first = torch.arange(groups, device=device)[:, None] * (most + 1)
    bins = torch.where(ids == NOWHERE, most, ids).view(groups, length) + first
    ordered, order = bins.flatten().to(torch.int32).sort(stable=True)
    edges = torch.arange(groups * (most + 1) + 1, dtype=torch.int32, device=device)
    starts = torch.searchsorted(ordered, edges)
    counts, ordered = starts.diff().view(groups, -1), ordered.long()
    rank = torch.arange(groups * length, device=device) - starts[ordered]
    # In the causal form, buckets begin at a block.
    room = counts if not chunks.causal else torch.div(counts + BLOCK - 1, BLOCK, rounding_mode="floor") * BLOCK
    begin = room.cumsum(1) - room + torch.arange(groups, device=device)[:, None] * size
    slot = begin.flatten()[ordered] + rank
    # Chunks of a bucket have consecutive codes; those of two buckets differ by more than any query's range.
    spans = torch.div(counts + chunks.size - 1, chunks.size, rounding_mode="floor") + max(chunks.before, chunks.after)
    code = (spans.cumsum(1) - spans).flatten()[ordered] + torch.div(rank, chunks.size, rounding_mode="floor")
    places = torch.empty_like(order).scatter_(0, order, slot).view(batch, heads, rounds, length)
    tokens = torch.full((groups * size,), NOWHERE, device=device).scatter_(0, slot, order % length)
    tokens = tokens.view(batch, heads, rounds, size)
    where = tokens.clamp(min=0)
    if rounds > 1 and chunks.once:
        codes = torch.empty_like(order, dtype=torch.int32).scatter_(0, order, code.to(torch.int32))
        codes = codes.view(batch, heads, 1, rounds, length).expand(-1, -1, rounds, -1, -1)
        codes = codes.gather(-1, where[:, :, :, None].expand(-1, -1, -1, rounds, -1))
    else:
        codes = torch.empty_like(where, dtype=torch.int32).view(-1).scatter_(0, slot, code.to(torch.int32))
        codes = codes.view(batch, heads, rounds, 1, size)
    codes = codes.masked_fill((tokens == NOWHERE)[:, :, :, None], NO_TOKEN).flatten(1, 2)
    row = torch.arange(batch, device=device)[:, None, None, None] * length + where
    row = row * heads + torch.arange(heads, device=device)[:, None, None]
    return Slots(row.flatten(), places.permute(0, 3, 1, 2).flatten(), codes)


def _attend_slots(
    inputs: list[Tensor], shares: Tensor | None, codes: Tensor, chunks: Chunks, rounds: int, dropout_prob: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the output of each slot in its round, the log-sum-exp over all its visible keys, `(B, H·R, S)`, and that
    over those kept by dropout; `inputs` are queries, values and keys of slots, `(B, H·R, S, D)`.

    The scores of a key are multiplied by its share, `(B, H·R, S)`: normalising the key itself would lose digits in half
    precision.
    """
    query, value, key = inputs
    length, size = query.shape[2], chunks.size
    back, ahead = ((count + 1) * size - 1 for count in (chunks.before, chunks.after))
    tables = band(length, min(back, length), 0 if chunks.causal else min(ahead, length), query.device)
    block_mask = tables.block_mask(length, length, mask_of(codes, chunks, rounds))
    kind, what = _kind(query, value, rounds, chunks, dropout_prob), f"buckets in {query.dtype}"
    options: dict[str, Any] = {"block_mask": block_mask, "scale": chunks.scale, "return_aux": AuxRequest(lse=True)}
    options |= program_options(query, "buckets")
    score_mod = None if shares is None else shared_by(shares)
    if not dropout_prob:
        context, aux = run_compiled(kind, what, query, key, value, score_mod=score_mod, **options)
        return context, aux.lse, aux.lse
    # The log-sum-exp without dropout does not depend on the values, so the narrowest values suffice.
    sums = run_compiled(kind, what, query, key, value[..., :LEAST_WIDTH], score_mod=score_mod, **options)[1].lse
    seed = torch.randint(1 << BITS, (1,), device=query.device)
    dropped = with_dropout(score_mod, seed, dropout_prob, query.shape[1])
    context, aux = run_compiled(kind, what, query, key, value, score_mod=dropped, **options)
    return context, sums, aux.lse


def shared_by(shares: Tensor) -> ScoreMod:
    """Multiplies scores by a factor per key, `(B, H·R, S)`."""

    def score_mod(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return score * shares[b, h, key]

    return score_mod


def inverse_norms(vectors: Tensor) -> Tensor:
    """Returns the factors that normalise vectors `(…, D)` to length 1, `(…)`, float32 or wider."""
    wide = torch.promote_types(vectors.dtype, torch.float32)
    norms = torch.linalg.vector_norm(vectors, dim=-1, dtype=wide)
    return (norms.square() + EPSILON * vectors.shape[-1]).rsqrt()


def mask_of(codes: Tensor, chunks: Chunks, rounds: int) -> MaskMod:
    """Returns the predicate of visible slots, from the codes `(B, H·R, K, S)`."""
    before, after, causal, shared, several = chunks.before, chunks.after, chunks.causal, chunks.shared, codes.shape[2]

    def near(b: Tensor, h: Tensor, which: Tensor, query: Tensor, key: Tensor) -> Tensor:
        offset = codes[b, h, which, key] - codes[b, h, which, query]
        return (offset >= -before) & (offset <= after)

    def mask_mod(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        number = h % rounds
        visible = near(b, h, number if several > 1 else 0 * h, query, key)
        if causal:
            visible = visible & (key < query if shared else key <= query)
        elif shared:
            visible = visible & (key != query)
        for other in range(several - 1):  # keys visible in an earlier round
            visible = visible & ~(near(b, h, 0 * h + other, query, key) & (number > other))
        return visible

    return mask_mod


@cached
def band(length: int, back: int, ahead: int, device: torch.device) -> Tables:
    """Returns the key blocks for queries that see `back` keys before and `ahead` keys after them."""
    blocks = -(-length // BLOCK)
    before, after = (-(-count // BLOCK) for count in (back, ahead))

    def table(before: int, after: int) -> Table:
        row = torch.arange(blocks)
        first, last = (row - before).clamp(min=0), (row + after).clamp(max=blocks - 1)
        count = last - first + 1
        index = first[:, None] + torch.arange(int(count.max()))
        parts = (count, index.clamp(max=blocks - 1))
        return Table(*(part.int()[None, None].to(device) for part in parts))

    return Tables(table(before, after), None, table(after, before), None)


def _kind(query: Tensor, value: Tensor, rounds: int, chunks: Chunks, dropout_prob: float) -> tuple[Any, ...]:
    """Returns the key under which compilability is cached."""
    widths = query.shape[-1], value.shape[-1]
    return "hashed", chunks, rounds, query.dtype, query.device.type, widths, dropout_prob > 0


class _AsKey(torch.autograd.Function):
    """Uses queries `(…, D)` as keys whose scores are multiplied by their inverse norms n `(…)` later. The gradient of a
    key q·n is `n·g − n³·(q·g)·q`, where g is the gradient of the key; here g already contains the factor n."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, norms: Tensor) -> Tensor:
        ctx.save_for_backward(query, norms)
        return query.view_as(query)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        query, norms = ctx.saved_tensors
        along = torch.linalg.vecdot(query.to(norms.dtype), grad.to(norms.dtype)) * norms.square()
        return (grad - query * along[..., None]).to(query.dtype), None


class _InOrder(torch.autograd.Function):
    """Gathers vectors `(N, D)` by slot; the gradient is a sum over a vector's slots, gathered instead of
    accumulated."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, rows: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.count = len(vectors)
        return vectors.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (places,) = ctx.saved_tensors
        return grad.index_select(0, places).view(ctx.count, -1, grad.shape[-1]).sum(1), None, None


class _InPlace(torch.autograd.Function):
    """Gathers vectors of slots `(N, D)` by token, where each token has its own slot."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.count = len(vectors)
        return vectors.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (places,) = ctx.saved_tensors
        return grad.new_zeros(ctx.count, grad.shape[-1]).index_copy_(0, places, grad), None
