"""Attention over the tiles of a pattern: on any device, in linear memory, with a hand-written backward pass.

Each chunk gathers some query tiles with the keys they see (and the global keys), and computes their whole softmax at
once, in buffers that are reused by the next chunk and stay in the CPU cache. The backward pass recomputes the softmax
chunk by chunk, so nothing of size queries × keys is stored.

Scores and softmax are float32 or wider: a score of 40 rounded to bfloat16 is off by up to 0.125, which is 13 % of a
weight. Weights are rounded only for the product with the values, as in PyTorch's kernels; in float16, whose sums may
overflow, not even then.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.call import Call, gather_slots, mask_of_slots, put_slots
from longspan.ops.attend.reference import full_precision
from longspan.ops.attend.terms import ContentToPosition, PositionToContent
from longspan.ops.runtime import SIZES, Buffers, half_way
from longspan.ops.tiles.chunks import (
    Chunk,
    Tiles,
    add,
    chunks_of,
    drawn_weights,
    empty_rows,
    join,
    pattern_mask,
    present_keys,
    put,
    take,
)
from longspan.ops.tiles.layout import best_layout
from longspan.ops.tiles.term_tiles import TermTiles
from longspan.patterns import Full

LEAST_SCORES = 1 << 16
"""With fewer scores the computation is float32: speed does not matter, and errors average out less over few terms."""


def attend_tiles(call: Call) -> Tensor:
    """Computes attention `(B, H, T, Dv)` of a call without terms, with one pattern for all batch rows and heads, in the
    given order."""
    query, value, slots = call.query, call.value, call.slots
    if not query.shape[:3].numel() or not value.shape[2]:
        return query.new_zeros(*query.shape[:-1], value.shape[-1])
    masked = call.key_mask is not None or slots is not None
    result = _Run(near_keys(call) if masked else call).forward()
    if slots is None or not call.global_rows:
        return result
    rows = replace(call, query=gather_slots(query, slots), pattern=Full(), slots=None, query_offset=0)
    return put_slots(result, attend_tiles(rows), slots)


def near_keys(call: Call) -> Call:
    """Returns the call with a mask of near keys, from which global keys are excluded, so that they count once."""
    mask = call.key_mask
    if mask is not None and not mask.is_cuda and bool(mask.all()):
        mask = None  # nothing is padded; on a GPU the check would cost a synchronisation
    if call.slots is not None:
        near = ~mask_of_slots(call.slots, call.key.shape[2])
        mask = near if mask is None else near & mask
    return replace(call, key_mask=mask)


def forward(call: Call) -> Tensor:
    """Computes attention `(B, H, T, Dv)` of a call of `near_keys`."""
    return _Run(call).forward()


def forward_with_logs(call: Call) -> tuple[Tensor, Tensor]:
    """Computes attention, and the log-sum-exp of the scores, `(B, H, T, 1)`: −∞ for queries that see nothing."""
    run = _Run(call)
    run.logs = call.query.new_empty(*run.tiles.query.shape[:-1], 1, dtype=run.buffers.wide)
    return run.forward(), run.logs.flatten(2, 3)[:, :, : call.query.shape[2]]


def backward(
    call: Call, grad: Tensor, wanted: Sequence[bool], whole: tuple[Tensor, Tensor] | None = None
) -> list[Tensor]:
    """Returns the gradients of `forward` for query, key and value, and for the `wanted` tensors of the terms, empty for
    the others. Gradients of keys are accumulated in float32 or wider.

    If the call is one part of a softmax over more keys, `whole` holds the log-sum-exp L over all of them and the
    products Δ = dO·O of outputs and their gradients, `(B, H, T, 1)` each. Then P = exp(S − L), dS = P∘(dP − Δ).
    """
    run = _Run(call, wanted)
    if whole is not None:
        logs, products = (Tiles(tensor, run.tiling.query_tiles, run.tiling.size) for tensor in whole)
        run.whole = logs, products
    return run.backward(grad)


@dataclass
class _Gradients:
    """The gradients of `_Inputs`, as tensors of the same shapes."""

    query: Tensor
    key: Tensor
    value: Tensor
    global_key: Tensor | None
    global_value: Tensor | None


@dataclass
class _Inputs:
    """Query, key and value cut into tiles `(B, H, tiles, size, D)`; global keys `(B, H, G, D)`."""

    query: Tiles
    key: Tiles
    value: Tiles
    global_key: Tensor | None
    global_value: Tensor | None


class _Run:
    """One call cut into tiles, with the working memory of its chunks.

    Attributes:
        mask: the additive mask of a chunk, `(b or 1, 1, n or 1, size or 1, L + G)`; `None` for none.
        empty: `(b, 1, n, size, 1)` bool, the queries of a chunk that see nothing under pattern and padding; `None` for
            none.
        hidden_tiles: the query tiles of a chunk with hidden keys, if only padding hides keys; otherwise `None`.
        logs: tiles for the log-sum-exp, if it is requested.
        whole: `whole` of `backward`, cut into tiles.
    """

    def __init__(self, call: Call, wanted: Sequence[bool] = ()) -> None:
        query, key, value, slots = call.query, call.key, call.value, call.slots
        content = any(isinstance(term, ContentToPosition | PositionToContent) for term in call.terms)
        lengths = query.shape[2], key.shape[2]
        self.call, self.content = call, content
        self.tiling = tiling = best_layout(call.pattern, *lengths, call.query_offset, query.device, one_tile=content)
        self.tiles = _Inputs(
            Tiles(query, tiling.query_tiles, tiling.size),
            Tiles(key, tiling.key_tiles, tiling.size),
            Tiles(value, tiling.key_tiles, tiling.size),
            None if slots is None else gather_slots(key, slots),
            None if slots is None else gather_slots(value, slots),
        )
        self.global_count = 0 if slots is None else slots.shape[1]
        self.buffers = Buffers(query)
        if query.shape[:2].numel() * tiling.scores <= LEAST_SCORES:
            self.buffers.narrow = self.buffers.wide
        self.terms = TermTiles(call, tiling, self.buffers, self.tiles.key, wanted) if call.terms else None
        self.mask: Tensor | None = None
        self.empty: Tensor | None = None
        self.hidden_tiles: list[int] | None = None
        self.logs: Tensor | None = None
        self.whole: tuple[Tiles, Tiles] | None = None

    def forward(self) -> Tensor:
        """Computes attention `(B, H, T, Dv)`, chunk by chunk."""
        call, tiles, buffers = self.call, self.tiles, self.buffers
        query, value = call.query, call.value
        (batch, heads), count, size = query.shape[:2], tiles.query.count, tiles.query.size
        # Tokens before heads in memory, as the output projection reads them.
        result = query.new_empty(batch, count * size, heads, value.shape[-1]).transpose(1, 2)
        result = result.unflatten(2, (count, size))
        half = query.dtype in (torch.bfloat16, torch.float16) and not query.is_cuda
        serves = half and self.logs is None and not call.dropout_prob and query.shape[-1] == value.shape[-1]
        in_kernel = serves and half_way(query.dtype) == "kernel"
        for chunk in self._chunks():
            if in_kernel:
                put(result, self._mix_in_kernel(chunk), chunk)
                continue
            keys = take(buffers, "key", tiles.key, tiles.global_key, chunk, buffers.wide)
            values = take(buffers, "value", tiles.value, tiles.global_value, chunk, buffers.narrow)
            weights, _ = self._weights(keys, chunk)
            if call.dropout_prob:
                weights.mul_(drawn_weights(weights, chunk.number, call))
            mixed = buffers.take("mixed", *weights.shape[:-1], values.shape[-1], dtype=buffers.narrow)
            used = (
                weights if buffers.narrow == buffers.wide else buffers.cast("narrow weights", weights, buffers.narrow)
            )
            torch.bmm(used.flatten(0, 2), values.flatten(0, 2), out=mixed.flatten(0, 2))
            put(result, mixed, chunk)
        result = result.flatten(2, 3)[:, :, : query.shape[2]].transpose(1, 2)
        return result.contiguous().transpose(1, 2)  # of one row already contiguous

    def _chunks(self) -> Iterator[Chunk]:
        """Yields the chunks, and sets `mask` and `empty` for each."""
        call, tiling = self.call, self.tiling
        batch, heads = call.query.shape[:2]
        for chunk in chunks_of(
            tiling, batch, heads, self.global_count, content=self.content, sizes=SIZES[call.query.is_cuda]
        ):
            if not chunk.heads.start:  # the heads that follow have the same masks
                present = present_keys(chunk, tiling, call) if call.key_mask is not None or self.global_count else None
                in_terms = self.terms is not None and self.terms.hides_pattern(chunk)
                mask = None if in_terms else pattern_mask(chunk, call, self.global_count, self.buffers.wide)
                # Query tiles from which some batch row hides a key, usually few at the ends.
                lacking = None
                if present is not None and not present.is_cuda:
                    lacking = (~present).any(-1).any(0)[0, :, 0].nonzero()[:, 0].tolist()
                self.hidden_tiles = lacking if mask is None else None
                if present is not None:
                    hidden = torch.zeros(present.shape, dtype=self.buffers.wide, device=present.device)
                    hidden.masked_fill_(~present, -math.inf)
                    mask = hidden if mask is None else mask + hidden
                self.mask, self.empty = mask, None
                if present is not None or chunk.group.hides_whole_rows:
                    self.empty = empty_rows(chunk, call, present, lacking)
            yield chunk

    def _weights(self, keys: Tensor, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """Returns the softmax weights `(b, h, n, size, L + G)` of a chunk, wide, and its queries `(b, h, n, size, D)`,
        narrow; writes the log-sum-exp to `logs`."""
        buffers, terms, tiles = self.buffers, self.terms, self.tiles
        rows = tiles.query.at(chunk, chunk.rows, chunk.first_row)
        query = rows  # of one head they are read in place
        if rows.shape[:2].numel() > 1 or rows.dtype != buffers.narrow:
            query = buffers.take("query", *rows.shape, dtype=buffers.narrow).copy_(rows)
        wide_query = query if query.dtype == buffers.wide else buffers.cast("query", query, buffers.wide)
        if keys.dtype != buffers.wide:
            keys = take(buffers, "key", tiles.key, tiles.global_key, chunk, buffers.wide)
        left, right = wide_query.flatten(0, 2), keys.flatten(0, 2).transpose(1, 2)
        scores = buffers.take("scores", *query.shape[:-1], keys.shape[-2], dtype=buffers.wide)
        starts = terms is not None and terms.starts
        if terms is not None and starts:
            terms.start(scores, wide_query, keys, chunk)
        scores.flatten(0, 2).baddbmm_(left, right, beta=int(starts), alpha=self.call.scale)
        mask = self._biased_mask(chunk) if terms is not None and terms.added else self.mask
        if mask is not None:
            self._add_mask(scores, mask)
        if self.whole is not None:
            return scores.sub_(self.whole[0].at(chunk, chunk.rows, chunk.first_row)).exp_(), query
        empty = self.empty
        if terms is not None and terms.may_hide and scores.shape[-1]:
            empty = _hidden_rows(scores)
        highest = scores.amax(-1, keepdim=True) if self.logs is not None and scores.shape[-1] else None
        weights = torch.softmax(scores, dim=-1, out=scores)  # in place, because it is computed row by row
        if self.logs is not None:
            put(self.logs, _logarithms(highest, weights, empty), chunk)
        return (weights if empty is None else weights.masked_fill_(empty, 0.0)), query

    def _add_mask(self, scores: Tensor, mask: Tensor) -> None:
        """Adds the mask to the scores of a chunk, or, if only padding is hidden, to the tiles with hidden keys."""
        if mask is not self.mask or self.hidden_tiles is None:
            scores.add_(mask)
            return
        for tile in self.hidden_tiles:
            scores[:, :, tile].add_(mask[:, :, tile])

    def _biased_mask(self, chunk: Chunk) -> Tensor | None:
        """Returns the mask of a chunk, including biases of its near keys."""
        added = None if self.terms is None else self.terms.added_to(chunk)
        if added is None:
            return self.mask
        added = F.pad(added.to(self.buffers.wide), (0, self.global_count))
        return added if self.mask is None else self.mask + added

    def _mix_in_kernel(self, chunk: Chunk) -> Tensor:
        """Computes the output of a chunk, `(b, h, n, size, Dv)`, with PyTorch's kernel: one call for all batch rows, or
        one per row if their masks differ."""
        buffers, tiles, terms = self.buffers, self.tiles, self.terms
        keys = take(buffers, "key", tiles.key, tiles.global_key, chunk, tiles.key.tensor.dtype)
        values = take(buffers, "value", tiles.value, tiles.global_value, chunk, tiles.value.tensor.dtype)
        query = tiles.query.at(chunk, chunk.rows, chunk.first_row)
        mask, empty = self._biased_mask(chunk), self.empty
        if terms is not None and terms.starts:
            scores = buffers.take("scores", *query.shape[:-1], keys.shape[-2], dtype=buffers.wide)
            terms.start(scores, query, keys, chunk)
            if mask is not None:
                self._add_mask(scores, mask)
            mask = scores
        if terms is not None and terms.may_hide and mask is not None and keys.shape[-2]:
            empty = _hidden_rows(mask)
        mixed = buffers.take("mixed", *query.shape[:-1], values.shape[-1], dtype=query.dtype)
        batch, heads = query.shape[:2]
        one_for_all = mask is None or mask.shape[:2] == (1, 1)
        for row in range(1 if one_for_all else batch):
            rows = slice(None) if one_for_all else slice(row, row + 1)
            row_mask = None if mask is None else mask[min(row, mask.shape[0] - 1)]
            inputs = (part[rows].flatten(0, 1) for part in (query, keys, values))
            with full_precision(query):  # autocast would narrow the mask, which contains the terms
                context = F.scaled_dot_product_attention(*inputs, attn_mask=row_mask, scale=self.call.scale)
            mixed[rows] = context.unflatten(0, (-1, heads))
        return mixed if empty is None else mixed.masked_fill_(empty, 0.0)

    def backward(self, grad: Tensor) -> list[Tensor]:
        call, tiles, buffers = self.call, self.tiles, self.buffers
        # Each query is written once; gradients of keys and values are accumulated.
        of_globals = [
            None if tensor is None else torch.zeros_like(tensor, dtype=buffers.wide)
            for tensor in (tiles.global_key, tiles.global_value)
        ]
        grad_query = call.query.new_empty(tiles.query.shape)
        self.grads = grads = _Gradients(
            grad_query,
            *(call.key.new_zeros(each.shape, dtype=buffers.wide) for each in (tiles.key, tiles.value)),
            *of_globals,
        )
        grad_tiles = Tiles(grad, self.tiling.query_tiles, self.tiling.size)
        for chunk in self._chunks():
            self._backward_chunk(chunk, grad_tiles)
        queries, keys = call.query.shape[2], call.key.shape[2]
        grad_key = join(grads.key, grads.global_key, call.slots, keys).mul_(call.scale)
        grad_value = join(grads.value, grads.global_value, call.slots, keys)
        inputs = [grads.query.flatten(2, 3)[:, :, :queries], grad_key, grad_value]
        term_grads = [] if self.terms is None else self.terms.gradients()
        return [*(tensor.to(call.key.dtype) for tensor in inputs), *term_grads]

    def _backward_chunk(self, chunk: Chunk, grad_tiles: Tiles) -> None:
        """Adds the contribution of one chunk to the gradients; that of the keys is not yet scaled.

        With weights P, outputs O = PV: dV = PᵀdO, dP = dO Vᵀ, dS = P∘(dP − rowsum(P∘dP)), dQ = dS K, dK = dSᵀQ.
        """
        buffers, tiles, grads, narrow = self.buffers, self.tiles, self.grads, self.buffers.narrow
        keys = take(buffers, "key", tiles.key, tiles.global_key, chunk, narrow)
        values = take(buffers, "value", tiles.value, tiles.global_value, chunk, narrow)
        weights, query = self._weights(keys, chunk)
        grad = buffers.take("grad", *weights.shape[:-1], values.shape[-1], dtype=narrow).copy_(
            grad_tiles.at(chunk, chunk.rows, chunk.first_row)
        )
        grad_weights = buffers.take("grad weights", *weights.shape, dtype=narrow)
        torch.bmm(grad.flatten(0, 2), values.flatten(0, 2).transpose(1, 2), out=grad_weights.flatten(0, 2))
        # The gradient of a global key sums over all queries; one rounding less keeps its error near that of SDPA.
        precise = narrow if tiles.global_key is None else buffers.wide
        grad_weights = buffers.cast("grad weights", grad_weights, precise)
        drawn = drawn_weights(weights, chunk.number, self.call) if self.call.dropout_prob else None
        if drawn is not None:
            grad_weights.mul_(drawn)
        used = buffers.cast("narrow weights", weights if drawn is None else drawn.mul_(weights), narrow)
        grad_values = buffers.take("grad value", *values.shape, dtype=narrow)
        torch.bmm(used.flatten(0, 2).transpose(1, 2), grad.flatten(0, 2), out=grad_values.flatten(0, 2))
        add(grads.value, grads.global_value, grad_values, chunk)
        weights = used if drawn is None and precise == narrow else buffers.cast("precise weights", weights, precise)
        if self.whole is not None:
            scores = grad_weights.sub_(self.whole[1].at(chunk, chunk.rows, chunk.first_row)).mul_(weights)
        else:
            scores = buffers.take("grad scores", *weights.shape, dtype=precise)
            torch.ops.aten._softmax_backward_data.out(grad_weights, weights, -1, precise, grad_input=scores)
        scores = buffers.cast("grad scores", scores, narrow)
        grad_query = buffers.take("mixed", *query.shape, dtype=narrow)
        grad_query.flatten(0, 2).baddbmm_(scores.flatten(0, 2), keys.flatten(0, 2), beta=0, alpha=self.call.scale)
        grad_keys = buffers.take("grad key", *keys.shape, dtype=narrow)
        torch.bmm(scores.flatten(0, 2).transpose(1, 2), query.flatten(0, 2), out=grad_keys.flatten(0, 2))
        if self.terms is not None:
            self.terms.add_gradients(scores, query, grad_query, keys, grad_keys, grads.key, chunk)
        put(grads.query, grad_query, chunk)
        add(grads.key, grads.global_key, grad_keys, chunk)


def _logarithms(highest: Tensor | None, weights: Tensor, empty: Tensor | None) -> Tensor:
    """Returns ln Σ exp(scores), `(…, 1)`, from the maximum score of a row and its weight."""
    if highest is None:
        return weights.new_full((*weights.shape[:-1], 1), -math.inf)
    logs = highest - weights.amax(-1, keepdim=True).log_()
    return logs if empty is None else logs.masked_fill_(empty, -math.inf)


def _hidden_rows(scores: Tensor) -> Tensor | None:
    """Returns which queries have only −∞ scores, `(…, 1)` bool; `None` if none."""
    hidden = scores.amax(-1, keepdim=True) == -math.inf
    return hidden if hidden.is_cuda or bool(hidden.any()) else None
