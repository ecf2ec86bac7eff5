"""Ring attention: full attention, bidirectional or causal, of rows that are divided between processes.

Each process keeps its queries. Keys and values are exchanged a block at a time: in step s, process r attends to the
block of process r − s, while the next one is on its way. The outputs of the blocks are combined by their log-sum-exp
into one softmax, and the backward pass exchanges the blocks again and returns to each owner the gradients of its block.
For T tokens in P processes, a process holds its own queries, keys, values and outputs, keys and values of two other
blocks, and in the backward pass the gradients of one: O(T / P), where gathering all keys and values would need O(T).
Scores are computed in tiles and not stored.

Source: Ring Attention (Liu et al. 2023, arXiv 2310.01889). There, blocks travel from neighbour to neighbour; here each
comes from its owner, in as many bytes, so that the causal form sends blocks to later processes only. An exchange of
heads instead of tokens (DeepSpeed-Ulysses, Jacobs et al. 2023, arXiv 2309.14509) would be limited to as many processes
as heads. The ring of PyTorch's `context_parallel` accepts neither masks nor terms of the scores; its form for
FlexAttention gathers all keys and values, and needs lengths that are multiples of 128 P.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longspan.ops.attend.call import Call
from longspan.ops.attend.terms import Term, pack, unpack
from longspan.ops.shards import Shards
from longspan.ops.tiles import blocked
from longspan.ops.tiles.split import NOTHING
from longspan.patterns import Causal, Full

ROWS = 2048
"""Maximum number of queries of a call, which bounds the tables of its tiles and the mask of a causal one."""


def attend_ring(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    shards: Shards,
    causal: bool,
    past: tuple[Tensor, Tensor] | None = None,
    key_mask: Tensor | None = None,
    terms: Sequence[Term] = (),
    dropout_prob: float = 0.0,
) -> Tensor:
    """Computes attention of this process's queries over all tokens of the rows, `(B, H, T_r, D)`; a query that sees
    nothing gives zeros.

    Args:
        query, key, value: those of this process's tokens, `(B, H, T_r, D)`.
        shards: how the rows are divided.
        causal: whether a token attends to no later one.
        past: keys and values `(B, H, M, D)` of M real tokens before the rows, which every process has; causal only.
        key_mask: key padding mask of the whole rows, `(B, T)` bool; `None` means that all tokens are real.
        terms: terms of the scores that depend on the query, the offset of the key, and parameters.
        dropout_prob: probability of dropping an attention weight; each pair of processes draws differently.
    """
    tensors, kinds, numbers = pack(terms)
    seed = int(torch.randint(2**62, ())) if dropout_prob else 0
    ring = _Ring(shards, causal, key_mask, kinds, numbers, dropout_prob, seed)
    return _Attend.apply(ring, query, key, value, *(past or (None, None)), *tensors)  # pyright: ignore


class _Block(NamedTuple):
    """Keys and values `(B, H, S, D)` of consecutive positions, from `first` on in whole rows; `step` is the exchange in
    which they came, `None` for those before the rows."""

    step: int | None
    first: int
    key: Tensor
    value: Tensor


@dataclass(frozen=True)
class _Ring:
    """The arguments of `attend_ring` that are not differentiated; `kinds` and `numbers` are those of packed terms."""

    shards: Shards
    causal: bool
    key_mask: Tensor | None
    kinds: str
    numbers: list[int]
    dropout_prob: float
    seed: int

    def sent(self, step: int) -> int:
        """Returns the number of tokens of this process to which the process `step` ranks later attends."""
        wraps = self.shards.rank + step >= self.shards.count
        return 0 if self.causal and wraps else self.shards.lengths[self.shards.rank]

    def received(self, step: int) -> int:
        """Returns the number of tokens of the process `step` ranks earlier to which this one attends."""
        wraps = self.shards.rank < step
        return 0 if self.causal and wraps else self.shards.lengths[self.shards.rank - step]

    def blocks(
        self, key: Tensor, value: Tensor, past_key: Tensor | None, past_value: Tensor | None, what: str | None = None
    ) -> Iterator[_Block]:
        """Yields the blocks to which this process attends; the others in the causal form are empty. The next block
        travels while one is used. Bytes sent are counted for the purpose `what`."""
        shards = self.shards
        own = torch.stack([key.transpose(1, 2), value.transpose(1, 2)], 2)  # (B, T_r, 2, H, D)

        def coming(step: int) -> Callable[[], Tensor] | None:
            if step == shards.count:
                return None
            return shards.passed(own[:, : self.sent(step)], step, self.received(step), what)

        arrive = coming(1)
        if past_key is not None and past_value is not None:
            yield _Block(None, -past_key.shape[2], past_key, past_value)
        yield _Block(0, shards.first, key, value)
        for step in range(1, shards.count):
            assert arrive is not None
            got, arrive = arrive(), coming(step + 1)
            first, _ = shards.range_of((shards.rank - step) % shards.count)
            yield _Block(step, first, *got.permute(2, 0, 3, 1, 4))

    def calls(self, query: Tensor, block: _Block, terms: Sequence[Tensor]) -> Iterator[tuple[slice, slice, Call]]:
        """Yields ranges of queries and of a block's keys, and the call that they are."""
        queries, keys = query.shape[2], block.key.shape[2]
        if not query.shape[:2].numel() or not keys:
            return
        for start in range(0, queries, ROWS):
            rows = slice(start, min(start + ROWS, queries))
            if not (self.causal and block.step == 0):
                yield rows, slice(0, keys), self._call(query, block, terms, rows, slice(0, keys), False)
                continue
            if start:
                yield rows, slice(0, start), self._call(query, block, terms, rows, slice(0, start), False)
            yield rows, rows, self._call(query, block, terms, rows, rows, True)

    def _call(
        self, query: Tensor, block: _Block, terms: Sequence[Tensor], rows: slice, keys: slice, diagonal: bool
    ) -> Call:
        mask = None
        if self.key_mask is not None and block.step is not None:
            mask = self.key_mask[:, block.first + keys.start : block.first + keys.stop]
        offset = self.shards.first + rows.start - block.first - keys.start
        call = Call(
            query[:, :, rows],
            block.key[:, :, keys],
            block.value[:, :, keys],
            Causal() if diagonal else Full(),
            1 / math.sqrt(query.shape[-1]),
            unpack(terms, self.kinds, self.numbers),
            key_mask=mask,
            dropout_prob=self.dropout_prob,
            query_offset=offset if terms else 0,  # tables of tiles are shared by all offsets where these do not matter
            seed=self.seed
            + 0x5DEECE66D * (block.first + keys.start + self.shards.total * (self.shards.first + rows.start)),
        )
        return blocked.near_keys(call)


class _Attend(torch.autograd.Function):
    """`attend_ring`, with packed terms."""

    @staticmethod
    def forward(ctx: Any, ring: _Ring, query: Tensor, key: Tensor, value: Tensor, *rest: Tensor | None) -> Tensor:
        past_key, past_value, *terms = rest
        wide = torch.promote_types(query.dtype, torch.float32)
        total = torch.zeros_like(query, dtype=wide)
        logs = query.new_full((*query.shape[:3], 1), -math.inf, dtype=wide)
        for block in ring.blocks(key, value, past_key, past_value, "keys and values"):
            for rows, _, call in ring.calls(query, block, terms):  # pyright: ignore[reportArgumentType]
                output, new = blocked.forward_with_logs(call)
                old = logs[:, :, rows].clone()
                both = logs[:, :, rows] = torch.logaddexp(old, new)
                before, now = ((part - both).exp().masked_fill(part == -math.inf, 0) for part in (old, new))
                total[:, :, rows] = before * total[:, :, rows] + now * output
        result = total.to(query.dtype)
        ctx.ring = ring
        ctx.save_for_backward(query, key, value, past_key, past_value, result, logs, *terms)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        ring, wanted = ctx.ring, ctx.needs_input_grad[6:]
        query, key, value, past_key, past_value, result, logs, *terms = ctx.saved_tensors
        logs = logs.masked_fill(logs == -math.inf, NOTHING)
        grad, products = grad.contiguous(), (grad.to(logs.dtype) * result).sum(-1, keepdim=True)
        of_query, of_own, of_past = torch.zeros_like(query, dtype=logs.dtype), logs.new_zeros(2, *key.shape), None
        of_terms = [
            torch.zeros_like(term, dtype=logs.dtype) if need else None for term, need in zip(terms, wanted, strict=True)
        ]
        for block in ring.blocks(key, value, past_key, past_value):
            sums = logs.new_zeros(2, *block.key.shape)
            for rows, keys, call in ring.calls(query, block, terms):
                whole = logs[:, :, rows], products[:, :, rows]
                parts = blocked.backward(call, grad[:, :, rows].contiguous(), wanted, whole)
                of_query[:, :, rows] += parts[0]
                sums[:, :, :, keys] += torch.stack(parts[1:3])
                for total, part in zip(of_terms, parts[3:], strict=True):
                    if total is not None:
                        total += part
            if block.step is None:
                of_past = sums
            elif block.step == 0:
                of_own += sums
            else:
                sums, sent = sums.to(key.dtype).permute(1, 3, 0, 2, 4), ring.sent(block.step)
                got = ring.shards.passed(sums, -block.step, sent)()
                of_own[:, :, :, :sent] += got.permute(2, 0, 3, 1, 4)
        inputs = (of_query, *of_own, *((None, None) if of_past is None else of_past), *of_terms)
        given = (query, key, value, past_key, past_value, *terms)
        return None, *(
            None if total is None else total.to(tensor.dtype) for total, tensor in zip(inputs, given, strict=True)
        )
