"""Attention within hash buckets, computed in pieces: forward, and a backward pass that recomputes the weights.

Rounds are processed in turn and combined by an online softmax (running output, maximum and sum), so that no round is
kept. Keys visible in an earlier round are excluded from later ones. Masks are floating-point factors, because comparing
into bools is slower on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from longspan.ops.attend.reference import full_precision
from longspan.ops.runtime import SIZES, Buffers, dropout_factors
from longspan.ops.sorted.hashed_units import Chunks, Piece, Round
from longspan.ops.sorted.hashing import EPSILON, NOWHERE

LEAST = 0.95
"""Exponents are clamped to this fraction of the one that gives the smallest normal number."""


def forward(
    query: Tensor,
    key: Tensor | None,
    value: Tensor,
    ids: Tensor,
    chunks: Chunks,
    most: int,
    dropout_prob: float,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """Returns the output of every token, `(B, T, H, D)`, and the log-sum-exp of its scores, `(B·T·H,)`, ∞ where it sees
    nothing.

    Args:
        query: `(B, T, H, D)`.
        key: `(B, T, H, D)`; `None` for the normalised queries.
        value: `(B, T, H, D)`.
        ids: `(B, H, R, T)` int64, the bucket of every token in every round, −1 for padding.
        chunks: chunk size and visibility.
        most: an upper bound on the number of buckets.
        dropout_prob: probability of dropping an attention weight.
        seed: seed of the dropout.
    """
    with full_precision(query):
        return _Run(query, key, value, ids, chunks, most, dropout_prob, seed).forward()


def backward(
    grad: Tensor,
    output: Tensor,
    logs: Tensor,
    query: Tensor,
    key: Tensor | None,
    value: Tensor,
    ids: Tensor,
    chunks: Chunks,
    most: int,
    dropout_prob: float,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of query, value and key, from the outputs of `forward`; without a key, an empty one."""
    with full_precision(query):
        return _Run(query, key, value, ids, chunks, most, dropout_prob, seed).backward(grad, output, logs)


class _Run:
    """One call, and the working memory of its pieces."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor,
        ids: Tensor,
        chunks: Chunks,
        most: int,
        dropout_prob: float,
        seed: int,
    ) -> None:
        (batch, length, heads, _), device = query.shape, query.device
        self.shape, self.ids, self.chunks, self.most, self.dropout_prob = value.shape, ids, chunks, most, dropout_prob
        self.query, self.value = query.reshape(-1, query.shape[-1]), value.reshape(-1, value.shape[-1])
        self.key = None if key is None else key.reshape(-1, key.shape[-1])
        self.buffers = Buffers(query)
        self.wide = self.buffers.wide
        rows = torch.arange(batch * length * heads, device=device).view(batch, length, heads)
        self.rows = rows.transpose(1, 2).flatten()
        self.norms = torch.empty(0)
        if self.key is None:
            self.norms = _sums(self.query, self.query, self.wide).add_(EPSILON * query.shape[-1]).rsqrt_()
        self.codes: list[Tensor] = []
        # Limited to the number of chunks.
        self.reach = tuple(min(chunk_count, length // chunks.size + 1) for chunk_count in (chunks.before, chunks.after))
        self.generator = None
        if dropout_prob:
            self.generator = torch.Generator(device)
            self.generator.manual_seed(seed)

    def rounds(self) -> Iterator[tuple[int, Piece]]:
        """Yields the pieces of all rounds with the number of their round."""
        if not self.ids.numel():
            return
        for number, ids in enumerate(self.ids.unbind(2)):
            hash_round = Round(ids, self.rows, self.chunks, self.most)
            for piece in hash_round.pieces():
                yield number, piece
            if self.chunks.once and number < self.ids.shape[2] - 1:
                self.codes.append(hash_round.codes(sum(self.reach), self.wide))

    def forward(self) -> tuple[Tensor, Tensor]:
        count = len(self.rows)
        # The last row receives the filler queries.
        gathered = self.value.new_zeros(count + 1, self.value.shape[-1], dtype=self.wide)
        sums, tops = (self.value.new_zeros(count + 1, dtype=self.wide) for _ in range(2))
        for number, piece in self.rounds():
            query, keys, _ = self._vectors(piece)
            scores = self._scores(query, keys, piece)
            top = scores.amax(-1, keepdim=True).clamp_(min=torch.finfo(self.wide).min)
            weights = self._weights(scores, top, piece)
            total = weights.sum(-1).flatten()
            dropout = self._dropout(weights)
            mixed = self._product("mixed", weights if dropout is None else weights.mul_(dropout), self._values(piece))
            round_totals = mixed.flatten(0, 1), total, top.flatten()
            self._put(round_totals, (gathered, sums, tops), piece, again=number > 0)
        gathered, sums, tops = gathered[:count], sums[:count], tops[:count]
        output = gathered.div_(sums.clamp(min=torch.finfo(self.wide).tiny)[:, None])
        nothing = sums == 0
        logs, alone = tops.add_(sums.log()).masked_fill_(nothing, torch.inf), self._alone(nothing)
        if alone is not None:
            rows, share = alone
            if share.is_cuda:
                output.addcmul_(self.value.to(self.wide), share)
            else:
                output[rows] = self.value[rows].to(self.wide) * share
        return output.to(self.value.dtype).view(self.shape), logs

    def _put(self, round_totals: tuple[Tensor, ...], totals: tuple[Tensor, ...], piece: Piece, *, again: bool) -> None:
        """Updates the running totals of queries: outputs, sums of weights, and the maxima that both are relative to."""
        mixed, total, top = round_totals
        gathered, sums, tops = totals
        rows = piece.queries
        if again:
            old = tops[rows]
            highest = torch.maximum(old, top)
            before, now = old.sub_(highest).exp_(), top.sub_(highest).exp_()
            mixed = mixed.mul_(now[:, None]).addcmul_(gathered.index_select(0, rows), before[:, None])
            total, top = total.mul_(now).addcmul_(sums[rows], before), highest
        if piece.no_query is not None:
            rows = rows.masked_fill(piece.no_query, len(tops) - 1)
        gathered.index_copy_(0, rows, mixed)
        sums.scatter_(0, rows, total)
        tops.scatter_(0, rows, top)

    def backward(self, grad: Tensor, output: Tensor, logs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """With weights P, outputs O = PV: dV = PᵀdO, dS = P∘(dO Vᵀ − rowsum(dO∘O)), dQ = dS K, dK = dSᵀQ, and for
        a key k = rq at length 1, dq = r(dk − r²q(q·dk))."""
        grad = grad.reshape(-1, grad.shape[-1])
        inputs = self.query, self.value, self.query.new_empty(()) if self.key is None else self.key
        grads = tuple(tensor.new_zeros(tensor.shape, dtype=self.wide) for tensor in inputs)
        inner = _sums(grad, output.reshape(grad.shape), self.wide)
        for _, piece in self.rounds():
            self._backward_piece(piece, grad, inner, logs, grads)
        alone = self._alone(logs == torch.inf)
        if alone is not None:
            rows, share = alone
            grads[1][rows] += grad[rows] * share
        to_query, to_value, to_key = (tensor.to(self.value.dtype) for tensor in grads)
        queries = *self.shape[:3], self.query.shape[1]
        return to_query.view(queries), to_value.view(self.shape), to_key if self.key is None else to_key.view(queries)

    def _backward_piece(
        self, piece: Piece, grad: Tensor, inner: Tensor, logs: Tensor, grads: tuple[Tensor, ...]
    ) -> None:
        """Adds the contribution of one piece to the gradients."""
        count, deepest, _ = piece.sizes
        query, keys, vectors = self._vectors(piece)
        values, rows = self._values(piece), piece.queries
        weights = self._weights(self._scores(query, keys, piece), logs[rows].view(count, deepest, 1), piece)
        if piece.no_query is not None:
            weights.mul_(self._real(piece.no_query).view(count, deepest, 1))
        grad = self._rows("grad", grad, rows).view(count, deepest, -1)
        slopes = self._product("slopes", grad, values.mT)
        dropout = self._dropout(weights)
        if dropout is not None:
            slopes.mul_(dropout)
        slopes.sub_(inner[rows].view(count, deepest, 1)).mul_(weights)
        used = weights if dropout is None else weights.mul_(dropout)
        grads[1].index_add_(0, piece.keys, self._product("grad values", used.mT, grad).flatten(0, 1))
        to_query = self._product("grad query", slopes, keys).flatten(0, 1)
        to_key = self._product("grad key", slopes.mT, query).flatten(0, 1)
        if self.key is not None:
            grads[2].index_add_(0, piece.keys, to_key.mul_(self.chunks.scale))
            grads[0].index_add_(0, rows, to_query)
            return
        # The gradient of a normalised key has no component along its query.
        vectors, norms = vectors.flatten(0, 1), self.norms[piece.keys][:, None]
        along = (vectors * to_key).sum(-1, keepdim=True).mul_(norms.square())
        to_key = to_key.addcmul_(vectors, along, value=-1).mul_(norms.mul_(self.chunks.scale))
        if piece.keys is piece.queries:
            to_query = to_query.add_(to_key)
        else:
            grads[0].index_add_(0, piece.keys, to_key)
        grads[0].index_add_(0, rows, to_query)

    def _vectors(self, piece: Piece) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries `(G, n, D)`, scaled keys `(G, S, D)`, and the vectors that the keys are made from."""
        count, deepest, widest = piece.sizes
        query = self._rows("query", self.query, piece.queries)
        if self.key is not None:
            vectors = self._rows("own", self.key, piece.keys)
        else:
            vectors = query if piece.keys is piece.queries else self._rows("own", self.query, piece.keys)
        keys = self.buffers.take("keys", *vectors.shape, dtype=self.wide)
        if self.key is not None:
            torch.mul(vectors, self.chunks.scale, out=keys)
        else:
            torch.mul(vectors, (self.norms[piece.keys] * self.chunks.scale)[:, None], out=keys)
        return query.view(count, deepest, -1), keys.view(count, widest, -1), vectors.view(count, widest, -1)

    def _values(self, piece: Piece) -> Tensor:
        return self._rows("values", self.value, piece.keys).view(piece.sizes[0], piece.sizes[2], -1)

    def _rows(self, name: str, vectors: Tensor, rows: Tensor) -> Tensor:
        rows_as_given = self.buffers.take(name + " as given", len(rows), vectors.shape[1], dtype=vectors.dtype)
        return self.buffers.cast(name, torch.index_select(vectors, 0, rows, out=rows_as_given), self.wide)

    def _product(self, name: str, left: Tensor, right: Tensor) -> Tensor:
        out = self.buffers.take(name, left.shape[0], left.shape[1], right.shape[2], dtype=self.wide)
        return torch.bmm(left, right, out=out)

    def _scores(self, query: Tensor, keys: Tensor, piece: Piece) -> Tensor:
        """Returns the scores `(G, n, S)`, −∞ for filler keys, later tokens in the causal form, and the token itself if
        queries are also keys."""
        (_, deepest, widest), shift = piece.sizes, piece.shift
        scores = self._product("scores", query, keys.mT)
        if piece.no_key is not None:
            scores.add_(scores.new_zeros(piece.no_key.shape).masked_fill_(piece.no_key, -torch.inf))
        if self.chunks.causal:
            later = shift if self.chunks.shared else shift + 1
            return scores.add_(scores.new_full((deepest, widest), -torch.inf).triu_(later))
        if self.chunks.shared:
            scores.diagonal(shift, 1, 2).fill_(-torch.inf)
        return scores

    def _weights(self, scores: Tensor, top: Tensor, piece: Piece) -> Tensor:
        """Computes `exp(scores − top)` in place, 0 for hidden keys and for those visible in an earlier round.

        Subnormal exponentials are many times slower on a CPU, so hidden scores are clamped and their weights set to 0.
        """
        (_, deepest, widest), shift = piece.sizes, piece.shift
        weights = scores.sub_(top).clamp_(min=LEAST * math.log(torch.finfo(self.wide).tiny)).exp_()
        if piece.no_key is not None:
            weights.mul_(self._real(piece.no_key))
        if self.chunks.causal:
            weights.mul_(weights.new_ones(deepest, widest).tril_(shift - 1 if self.chunks.shared else shift))
        elif self.chunks.shared:
            weights.diagonal(shift, 1, 2).zero_()
        return self._take_out(weights, piece)

    def _real(self, missing: Tensor) -> Tensor:
        return torch.ones(missing.shape, dtype=self.wide, device=missing.device).masked_fill_(missing, 0)

    def _take_out(self, weights: Tensor, piece: Piece) -> Tensor:
        """Sets the weights of keys visible in an earlier round to 0."""
        (before, after), (count, deepest, widest) = self.reach, piece.sizes
        for codes in self.codes:
            query, key = codes[piece.queries].view(count, deepest, 1), codes[piece.keys].view(count, 1, widest)
            away = self.buffers.take("away", *weights.shape, dtype=codes.dtype)
            # −b ≤ key − query ≤ a is |key − query − (a − b) / 2| ≤ (a + b) / 2.
            torch.sub(key, query.add_((after - before) / 2), out=away)
            weights.mul_(away.abs_().gt_((before + after) / 2))
        return weights

    def _dropout(self, weights: Tensor) -> Tensor | None:
        return None if self.generator is None else dropout_factors(weights, self.dropout_prob, self.generator)

    def _alone(self, nothing: Tensor) -> tuple[Tensor | slice, Tensor] | None:
        """Returns the rows of real tokens that see no key, and therefore themselves, and their dropout factors, `(…,
        1)`. On a GPU all rows are returned, with 0 for the others, to avoid a synchronisation."""
        real = (self.ids[:, :, 0] != NOWHERE).transpose(1, 2).flatten()
        if real.is_cuda:
            share = (nothing & real)[:, None].to(self.wide)
            dropout = self._dropout(share)
            return slice(None), share if dropout is None else share * dropout
        rows = (nothing & real).nonzero().flatten()
        if not len(rows) and not self.dropout_prob:
            return None
        dropout = self._dropout(self.value.new_empty(len(rows), 1, dtype=self.wide))
        return rows, self.value.new_ones(len(rows), 1, dtype=self.wide) if dropout is None else dropout


def _sums(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the dot products of corresponding rows, `(N,)`."""
    sums = left.new_empty(len(left), dtype=dtype)
    step = SIZES[left.is_cuda].product_rows
    for start in range(0, len(left), step):  # small enough for the cache
        part = slice(start, start + step)
        torch.sum(left[part].to(dtype) * right[part].to(dtype), -1, out=sums[part])
    return sums
