"""Attention over the tiles of a pattern: any device, linear memory, with its own backward.

Each chunk gathers some query tiles with the keys they see (and the global keys beside them), and computes their whole
softmax at once, in buffers that are used again for the next chunk and stay in the cache. Backward recomputes the
softmax chunk by chunk, so nothing of size queries × keys is ever kept.

Scores and softmax are float32 at least, whatever the inputs: a score of 40 rounded to bfloat16 is off by up to 0.125,
which is 13 % of a weight. Weights are rounded only to be multiplied with values, as in PyTorch's kernels; in float16,
whose sums may overflow, not even then.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.call import Call
from longspan.ops.attend.reference import full_precision
from longspan.ops.attend.terms import ContentToPosition, PositionToContent
from longspan.ops.tiles.chunk_masks import empty_rows, hiding_mask, kept_weights, lacking, seen_by_row
from longspan.ops.tiles.term_tiles import TermTiles
from longspan.ops.tiles.tile_memory import Buffers, add, cut, join, put, rows_of, take, tiles_of
from longspan.ops.tiles.tiles import Chunk, best_layout

CHUNK_SCORES = 1 << 20
"""Most scores computed at a time: small enough for the cache, large enough to keep the matrix products busy."""
RUN_SCORES = 1 << 16
"""Fewer scores are not worth the steps of a chunk; with as many, one head is enough for it."""
CHUNKS = 6
"""Short inputs are still cut into so many chunks, since fresh working memory costs more than it saves there."""


def forward(call: Call) -> Tensor:
    """Attention `(B, H, T, Dv)`."""
    return _Run(call).forward()


def forward_with_logs(call: Call) -> tuple[Tensor, Tensor]:
    """Attention, and the logarithm of the sum of its softmax, `(B, H, T, 1)`: −∞ for queries that see nothing."""
    run = _Run(call)
    run.logs = call.query.new_empty(*run.tiles.query.shape[:-1], 1, dtype=run.buffers.wide)
    return run.forward(), run.logs.flatten(2, 3)[:, :, : call.query.shape[2]]


def backward(
    call: Call, grad: Tensor, wanted: Sequence[bool], whole: tuple[Tensor, Tensor] | None = None
) -> list[Tensor]:
    """Gradients of `forward` with respect to query, key and value, and to the tensors of the terms that are `wanted`,
    empty where they are not. Those of keys are summed in at least float32.

    Where the call is a part of a softmax over more keys, `whole` are the logarithms L of all of its sums and the
    products Δ = dO·O of its outputs and their gradients, `(B, H, T, 1)` each. Then P = exp(S − L), dS = P∘(dP − Δ).
    """
    run = _Run(call, wanted)
    if whole is not None:
        logs, products = (tiles_of(each, run.tiling.query_tiles, run.tiling.size) for each in whole)
        run.whole = logs, products
    return run.backward(grad)


class _Run:
    """One problem cut into tiles, with the working memory of its chunks."""

    def __init__(self, call: Call, wanted: Sequence[bool] = ()) -> None:
        query, key, value = call.query, call.key, call.value
        content = any(isinstance(term, ContentToPosition | PositionToContent) for term in call.terms)
        sizes = (query.shape[2], key.shape[2], call.query_offset)
        self.call = call
        self.tiling = best_layout(call.pattern, *sizes, query.device, one_tile=content)
        self.tiles = cut(query, key, value, self.tiling, call.slots)
        self.buffers = Buffers(query)
        self.hiding: tuple[object, Tensor | None, Tensor | None] | None = None
        self.hidden_tiles: list[int] | None = None
        self.terms = TermTiles(call, self.tiling, self.buffers, self.tiles.key, wanted)
        self.logs: Tensor | None = None
        """Tiles for the logarithms of the sums, where these are asked for."""
        self.whole: tuple[Tensor, Tensor] | None = None
        """Tiles of what `backward` says."""

    def forward(self) -> Tensor:
        result = self.call.query.new_empty(*self.tiles.query.shape[:-1], self.tiles.value.shape[-1])
        mix = self._mix_in_kernel if self._kernel_serves() else self._mix
        for chunk in self._chunks():
            put(result, mix(chunk), chunk)
        return result.flatten(2, 3)[:, :, : self.call.query.shape[2]]

    def _take(self, name: str, chunk: Chunk, dtype: torch.dtype) -> Tensor:
        """The `"key"`s or `"value"`s of a chunk, `(b, h, n, L + G, D)`."""
        return take(self.buffers, name, *self.tiles.of(name), chunk, dtype)

    def _mix(self, chunk: Chunk) -> Tensor:
        """What the queries of a chunk gather, `(b, h, n, size, Dv)`."""
        buffers = self.buffers
        keys = self._take("key", chunk, buffers.wide)
        values = self._take("value", chunk, buffers.narrow)
        weights, _ = self._weights(keys, chunk, self.logs)
        kept = kept_weights(weights, chunk, self.call)
        if kept is not None:
            weights.mul_(kept)
        mixed = buffers.take("mixed", *weights.shape[:-1], values.shape[-1], dtype=buffers.narrow)
        used = buffers.cast("narrow weights", weights, buffers.narrow)
        torch.bmm(used.flatten(0, 2), values.flatten(0, 2), out=mixed.flatten(0, 2))
        return mixed

    def _kernel_serves(self) -> bool:
        """Whether PyTorch's own kernel computes a chunk: half precision on a CPU, where it is faster than our steps."""
        query, value = self.call.query, self.call.value
        half = query.dtype in (torch.bfloat16, torch.float16) and not query.is_cuda
        return half and self.logs is None and not self.call.dropout_prob and query.shape[-1] == value.shape[-1]

    def _mix_in_kernel(self, chunk: Chunk) -> Tensor:
        """The same as `_mix` without dropout, in one call for each row of the batch that has a mask of its own."""
        keys = self._take("key", chunk, self.tiles.key.dtype)
        values = self._take("value", chunk, self.tiles.value.dtype)
        query = rows_of(self.tiles.query, chunk)
        mask, empty = self._mask(chunk)
        if self.terms.starts:
            scores = self.buffers.take("scores", *query.shape[:-1], keys.shape[-2], dtype=self.buffers.wide)
            self.terms.start(scores, query, keys, chunk)
            self._add_mask(scores, mask, chunk)
            mask = scores
        if self.terms.may_hide and mask is not None and keys.shape[-2]:
            empty = _hidden_rows(mask)
        mixed = self.buffers.take("mixed", *query.shape[:-1], values.shape[-1], dtype=query.dtype)
        batch, heads = query.shape[:2]
        one_for_all = mask is None or mask.shape[:2] == (1, 1)
        for row in range(1 if one_for_all else batch):
            rows = slice(None) if one_for_all else slice(row, row + 1)
            seen = None if mask is None else mask[min(row, mask.shape[0] - 1)]
            each = (part[rows].flatten(0, 1) for part in (query, keys, values))
            with full_precision(query):  # autocast would narrow the mask, in which the terms are
                found = F.scaled_dot_product_attention(*each, attn_mask=seen, scale=self.call.scale)
            mixed[rows] = found.unflatten(0, (-1, heads))
        return mixed if empty is None else mixed.masked_fill_(empty, 0.0)

    def backward(self, grad: Tensor) -> list[Tensor]:
        call, tiles, buffers = self.call, self.tiles, self.buffers
        if call.query.shape[:2].numel() * self.tiling.scores <= RUN_SCORES:
            buffers.narrow = buffers.wide  # so little work need not be fast, and few terms do not average errors out
        self.grads = tiles.zeros(buffers.wide)
        grad_tiles = tiles_of(grad, self.tiling.query_tiles, self.tiling.size)
        for chunk in self._chunks():
            self._backward_chunk(chunk, grad_tiles)
        grads, (queries, keys) = self.grads, (call.query.shape[2], call.key.shape[2])
        grad_key = join(grads.key, grads.global_key, call.slots, keys).mul_(call.scale)
        grad_value = join(grads.value, grads.global_value, call.slots, keys)
        found = [grads.query.flatten(2, 3)[:, :, :queries], grad_key, grad_value]
        return [*(each.to(call.key.dtype) for each in found), *self.terms.gradients()]

    def _backward_chunk(self, chunk: Chunk, grad_tiles: Tensor) -> None:
        """Add what one chunk contributes to the gradients; that of the keys still lacks the scale.

        With weights P, outputs O = PV: dV = PᵀdO, dP = dO Vᵀ, dS = P∘(dP − rowsum(P∘dP)), dQ = dS K, dK = dSᵀQ.
        """
        buffers, tiles, grads, narrow = self.buffers, self.tiles, self.grads, self.buffers.narrow
        keys, values = self._take("key", chunk, narrow), self._take("value", chunk, narrow)
        weights, query = self._weights(keys, chunk)
        grad = buffers.take("grad", *weights.shape[:-1], values.shape[-1], dtype=narrow).copy_(
            rows_of(grad_tiles, chunk)
        )
        grad_weights = buffers.take("grad weights", *weights.shape, dtype=narrow)
        torch.bmm(grad.flatten(0, 2), values.flatten(0, 2).transpose(1, 2), out=grad_weights.flatten(0, 2))
        # That of a global key is a sum over all queries, in which one rounding less keeps the error near SDPA's.
        precise = narrow if tiles.global_key is None else buffers.wide
        grad_weights = buffers.cast("grad weights", grad_weights, precise)
        kept = kept_weights(weights, chunk, self.call)
        if kept is not None:
            grad_weights.mul_(kept)
        used = buffers.cast("narrow weights", weights if kept is None else kept.mul_(weights), narrow)
        grad_values = buffers.take("grad value", *values.shape, dtype=narrow)
        torch.bmm(used.flatten(0, 2).transpose(1, 2), grad.flatten(0, 2), out=grad_values.flatten(0, 2))
        add(grads.value, grads.global_value, grad_values, chunk)
        weights = used if kept is None and precise == narrow else buffers.cast("precise weights", weights, precise)
        if self.whole is not None:
            scores = grad_weights.sub_(rows_of(self.whole[1], chunk)).mul_(weights)
        else:
            scores = buffers.take("grad scores", *weights.shape, dtype=precise)
            torch.ops.aten._softmax_backward_data.out(grad_weights, weights, -1, precise, grad_input=scores)
        self._backward_scores(chunk, buffers.cast("grad scores", scores, narrow), query, keys)

    def _backward_scores(self, chunk: Chunk, scores: Tensor, query: Tensor, keys: Tensor) -> None:
        """Add the gradients of queries, keys and terms, from that of the scores of a chunk."""
        buffers, scale = self.buffers, self.call.scale
        grad_query = buffers.take("mixed", *query.shape, dtype=scores.dtype)
        grad_query.flatten(0, 2).baddbmm_(scores.flatten(0, 2), keys.flatten(0, 2), beta=0, alpha=scale)
        grad_keys = buffers.take("grad key", *keys.shape, dtype=scores.dtype)
        torch.bmm(scores.flatten(0, 2).transpose(1, 2), query.flatten(0, 2), out=grad_keys.flatten(0, 2))
        if self.terms.parts:
            self.terms.add_gradients(scores, query, grad_query, keys, grad_keys, self.grads.key, chunk)
        put(self.grads.query, grad_query, chunk)
        add(self.grads.key, self.grads.global_key, grad_keys, chunk)

    def _weights(self, keys: Tensor, chunk: Chunk, logs: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Softmax weights `(b, h, n, size, L + G)` of a chunk, wide, and its queries `(b, h, n, size, D)`, narrow; the
        logarithms of their sums go to `logs`."""
        buffers = self.buffers
        rows = rows_of(self.tiles.query, chunk)
        query = buffers.take("query", *rows.shape, dtype=buffers.narrow).copy_(rows)
        wide_query = buffers.cast("query", query, buffers.wide)
        if keys.dtype != buffers.wide:
            keys = self._take("key", chunk, buffers.wide)
        left, right = wide_query.flatten(0, 2), keys.flatten(0, 2).transpose(1, 2)
        scores = buffers.take("scores", *query.shape[:-1], keys.shape[-2], dtype=buffers.wide)
        if self.terms.starts:
            self.terms.start(scores, wide_query, keys, chunk)
        scores.flatten(0, 2).baddbmm_(left, right, beta=int(self.terms.starts), alpha=self.call.scale)
        mask, empty = self._mask(chunk)
        self._add_mask(scores, mask, chunk)
        if self.whole is not None:
            return scores.sub_(rows_of(self.whole[0], chunk)).exp_(), query
        if self.terms.may_hide and scores.shape[-1]:
            empty = _hidden_rows(scores)
        highest = scores.amax(-1, keepdim=True) if logs is not None and scores.shape[-1] else None
        weights = torch.softmax(scores, dim=-1, out=scores)  # row by row, so in place
        if logs is not None:
            put(logs, _logarithms(highest, weights, empty), chunk)
        return (weights if empty is None else weights.masked_fill_(empty, 0.0)), query

    def _mask(self, chunk: Chunk) -> tuple[Tensor | None, Tensor | None]:
        """What to add to the scores of a chunk, and to which of its queries pattern and padding show nothing; `None`
        for nothing and for no query."""
        place = (chunk.group.name, chunk.batch, chunk.first, chunk.last)
        if self.hiding is None or self.hiding[0] != place:  # heads follow each other, and hide alike
            seen = seen_by_row(chunk, self.tiling, self.call)
            pattern = not self.terms.hides_pattern(chunk)
            mask = hiding_mask(chunk, self.call, seen, self.buffers.wide, pattern=pattern)
            self.hiding, self.hidden_tiles = (place, mask, empty_rows(chunk, self.call, seen)), None
        _, mask, empty = self.hiding
        added = self.terms.added_to(chunk)
        if added is not None:
            added = F.pad(added.to(self.buffers.wide), (0, self.call.beside))
            mask = added if mask is None else mask + added
        return mask, empty

    def _add_mask(self, scores: Tensor, mask: Tensor | None, chunk: Chunk) -> None:
        """Add to the scores of a chunk, or where only padding is hidden, which is mostly at the ends, to its tiles."""
        if mask is None:
            return
        if self.terms.added or mask.shape[3] > 1 or mask.shape[2] != chunk.count:
            scores.add_(mask)
            return
        if self.hidden_tiles is None:
            self.hidden_tiles = lacking(mask != 0)
        for tile in self.hidden_tiles:
            scores[:, :, tile].add_(mask[:, :, tile])

    def _chunks(self) -> Iterator[Chunk]:
        """Split the work so that a chunk has about `CHUNK_SCORES` scores, whatever batch, heads and pattern.

        A chunk has rather many query tiles of one head, which share their keys, than few of all. Content terms want
        bands: where query tiles see keys that do not move along with them, one such tile at a time.
        """
        size, (batch, heads) = self.tiling.size, self.tiles.query.shape[:2]
        budget = min(CHUNK_SCORES, max(batch * heads * self.tiling.scores // CHUNKS, RUN_SCORES))
        number = 0
        for group in self.tiling.groups:
            single = bool(self.terms.content) and group.step not in (None, 1)
            count = group.rows.shape[0]
            units = max(1, budget // (size * max(1, group.columns.shape[1] * size + self.call.beside)))
            head_step = min(heads, max(1, units if single else units // count))
            if count * budget >= units * RUN_SCORES * 3 and not single:
                head_step = 1
            row_step = 1 if single else min(count, max(1, units // head_step))
            row_step = -(-count // -(-count // row_step))  # in equal parts, since the tiles at their ends share no keys
            batch_step = max(1, min(batch, units // max(1, heads * row_step)))
            for b in range(0, batch, batch_step):
                for r in range(0, count, row_step):
                    last = min(r + row_step, count)
                    for h in range(0, heads, head_step):
                        yield Chunk(group, slice(b, b + batch_step), slice(h, h + head_step), r, last, number)
                        number += 1


def _logarithms(highest: Tensor | None, weights: Tensor, empty: Tensor | None) -> Tensor:
    """`(…, 1)`: ln Σ exp(scores), from the highest score of a row and the weight that it has."""
    if highest is None:
        return weights.new_full((*weights.shape[:-1], 1), -math.inf)
    logs = highest - weights.amax(-1, keepdim=True).log_()
    return logs if empty is None else logs.masked_fill_(empty, -math.inf)


def _hidden_rows(scores: Tensor) -> Tensor | None:
    """`(…, 1)` bool, True for queries whose scores are all −∞; `None` for no query."""
    hidden = scores.amax(-1, keepdim=True) == -math.inf
    return hidden if bool(hidden.any()) else None
