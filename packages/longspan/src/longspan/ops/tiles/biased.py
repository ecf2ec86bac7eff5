"""Full or causal attention with biases for whole rows of keys, which tiles would have to pick out one by one.

A block of queries sees a run of keys, so its part of a bias is a slice, read where it stands. Going back, the softmax
of a block is computed again; the gradient of a bias that rows of the batch share is their sum. Queries may have no
columns at all: then the scores are the biases, and nothing is compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.call import Call
from longspan.ops.attend.reference import full_precision
from longspan.ops.attend.terms import Bias
from longspan.ops.runtime import SIZES
from longspan.ops.tiles.chunks import drawn_weights


@dataclass(frozen=True)
class _Block:
    """Queries `rows` of one head of one row of the batch, which see the first `keys` keys."""

    batch: int
    head: int
    rows: slice
    keys: int
    number: int

    @property
    def count(self) -> int:
        return self.rows.stop - self.rows.start

    def of(self, tensor: Tensor) -> Tensor:
        """The head's part of a tensor whose first axes are `(B or 1, H or 1)`."""
        return tensor[self.batch if tensor.shape[0] > 1 else 0, self.head if tensor.shape[1] > 1 else 0]

    def part(self, bias: Tensor) -> Tensor:
        """The block's part `(count or 1, keys or 1)` of a bias, a view."""
        part = self.of(bias)
        part = part[self.rows] if part.shape[0] > 1 else part
        return part[:, : self.keys] if part.shape[1] > 1 else part


class Biased:
    """A call that this file computes, as `longspan.ops.tiles.split` hands it on."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.causal = call.pattern.is_causal
        self.biases = [term.values for term in call.terms if isinstance(term, Bias)]
        self.wide = torch.promote_types(call.query.dtype, torch.float32)
        self.buffers = [call.query.new_empty(0, dtype=self.wide) for _ in range(2)]

    def output(self) -> Tensor:
        """Attention `(B, H, T, Dv)`."""
        call = self.call
        if self._kernel_serves():
            return self._output_of_kernel()
        result = call.query.new_empty(*call.query.shape[:3], call.value.shape[3])
        for block in self._blocks():
            weights = self._weights(block)
            if call.dropout_prob:
                weights.mul_(drawn_weights(weights, block.number, call))
            block.of(result)[block.rows] = weights @ block.of(call.value)[: block.keys].to(self.wide)
        return result

    def gradients(
        self, grad: Tensor, wanted: Sequence[bool], saved: tuple[Tensor, Tensor] | None = None
    ) -> list[Tensor]:
        """Those of query, key, value and the `wanted` biases; the others are empty. Nothing is saved for them.

        With weights P, outputs O = PV: dV = PᵀdO, dP = dO Vᵀ, dS = P∘(dP − rowsum(P∘dP)), dQ = dS K, dK = dSᵀQ.
        """
        call = self.call
        totals = [torch.zeros_like(each, dtype=self.wide) for each in (call.query, call.key, call.value)]
        biases = [
            (torch.empty_like if self._written_once(bias) else torch.zeros_like)(bias, dtype=self.wide)
            if need
            else bias.new_empty(0)
            for bias, need in zip(self.biases, wanted, strict=True)
        ]
        for block in self._blocks():
            self._add_gradients(block, grad, totals, biases)
        inputs = [total.to(each.dtype) for total, each in zip(totals, (call.query, call.key, call.value), strict=True)]
        return inputs + [total.to(bias.dtype) for total, bias in zip(biases, self.biases, strict=True)]

    def _add_gradients(self, block: _Block, grad: Tensor, totals: list[Tensor], biases: list[Tensor]) -> None:
        """Add what one block contributes."""
        call, wide = self.call, self.wide
        query, slope = (block.of(each)[block.rows].to(wide) for each in (call.query, grad))
        key, value = (block.of(each)[: block.keys].to(wide) for each in (call.key, call.value))
        to_query, to_key, to_value = (block.of(each) for each in totals)
        weights = self._weights(block)
        drawn = drawn_weights(weights, block.number, call) if call.dropout_prob else None
        to_value[: block.keys].addmm_((weights if drawn is None else weights * drawn).mT, slope)
        slopes = torch.mm(slope, value.mT, out=self._buffer(1, block))
        slopes = slopes if drawn is None else slopes.mul_(drawn)
        torch.ops.aten._softmax_backward_data.out(slopes, weights, -1, wide, grad_input=slopes)
        for total in biases:
            if not total.numel():
                continue
            part = block.part(total)
            if self._written_once(total) and (block.batch == 0 or total.shape[0] > 1):
                part.copy_(slopes)
            else:
                part.add_(slopes.sum_to_size(part.shape))
        if query.shape[1]:
            to_query[block.rows] = torch.mm(slopes, key).mul_(call.scale)
            to_key[: block.keys].addmm_(slopes.mT, query, alpha=call.scale)

    def _written_once(self, bias: Tensor) -> bool:
        """Whether all of a bias's gradient is written by the blocks of one row of the batch, so that none starts at 0:
        filling as much memory takes as long as a product."""
        pairs = (*self.call.query.shape[1:3], self.call.key.shape[2])
        return self.call.pattern.is_full and bias.shape[1:] == pairs

    def _weights(self, block: _Block) -> Tensor:
        """Softmax weights `(count, keys)` of a block, in its buffer."""
        weights = self._buffer(0, block)
        torch.softmax(self._scores(block), dim=-1, out=weights)
        if not weights.is_cuda and not bool(weights[:, :1].isnan().any()):
            return weights
        # Over nothing but −∞, or over what is no number, which it stays.
        return weights.masked_fill_(self._scores(block).amax(-1, keepdim=True) == -math.inf, 0.0)

    def _scores(self, block: _Block) -> Tensor:
        """The scores `(count, keys)` of a block, in a buffer unless they stand somewhere already."""
        call, first = self.call, block.part(self.biases[0])
        compares, hides = call.query.shape[3] > 0, call.key_mask is not None or self.causal
        if not (compares or hides or len(self.biases) > 1) and first.dtype == self.wide:
            return first.expand(block.count, block.keys)
        scores = self._buffer(1, block)
        if compares:
            query, key = block.of(call.query)[block.rows], block.of(call.key)[: block.keys]
            torch.addmm(first.to(self.wide), query.to(self.wide), key.to(self.wide).mT, alpha=call.scale, out=scores)
        else:
            scores.copy_(first)
        for bias in self.biases[1:]:
            scores.add_(block.part(bias))
        self._hide(scores, block)
        return scores

    def _hide(self, scores: Tensor, block: _Block) -> None:
        """Write −∞ where a key of a block's scores may not be seen."""
        call = self.call
        if self.causal:
            first = min(block.rows.start + call.query_offset, block.keys)  # beyond the keys nothing is hidden
            above = torch.ones(block.count, block.keys - first, dtype=torch.bool, device=scores.device).triu_(1)
            scores[:, first:].masked_fill_(above, -math.inf)
        if call.key_mask is not None:
            scores.masked_fill_(~call.key_mask[block.batch, : block.keys], -math.inf)

    def _buffer(self, number: int, block: _Block) -> Tensor:
        size = block.count * block.keys
        if self.buffers[number].numel() < size:
            self.buffers[number] = self.buffers[number].new_empty(size)
        return self.buffers[number][:size].view(block.count, block.keys)

    def _blocks(self) -> Iterator[_Block]:
        """All blocks; rows of the batch follow each other, since they may share a bias."""
        (batch, heads, queries, _), keys = self.call.query.shape, self.call.key.shape[2]
        size = max(1, SIZES[self.call.query.is_cuda].biased_scores // keys)
        number = 0
        for head in range(heads):
            for start in range(0, queries, size):
                rows = slice(start, min(start + size, queries))
                for row in range(batch):
                    yield _Block(row, head, rows, self._visible_keys(rows), number)
                    number += 1

    def _visible_keys(self, rows: slice) -> int:
        """How many keys the last of some queries sees."""
        keys = self.call.key.shape[2]
        return min(keys, rows.stop + self.call.query_offset) if self.causal else keys

    def _kernel_serves(self) -> bool:
        """Whether PyTorch's kernel goes forward: it wants one width for queries and values, and keeps all weights where
        some are dropped."""
        query, value = self.call.query, self.call.value
        return 0 < query.shape[3] == value.shape[3] and not self.call.dropout_prob and not query.is_cuda

    def _output_of_kernel(self) -> Tensor:
        """The same as `output`, by blocks of queries in all heads."""
        call, causal = self.call, self.causal
        batch, heads, queries, _ = call.query.shape
        changes = causal or call.key_mask is not None or len(self.biases) > 1
        size = (
            max(64, 2 * SIZES[call.query.is_cuda].biased_scores // (batch * heads * call.key.shape[2]))
            if changes
            else queries
        )
        result = call.query.new_empty(*call.query.shape[:3], call.value.shape[3])
        for start in range(0, queries, size):
            rows = slice(start, min(start + size, queries))
            keys = self._visible_keys(rows)
            mask = self._mask(rows, keys)
            inputs = (call.query[:, :, rows], call.key[:, :, :keys], call.value[:, :, :keys])
            with full_precision(call.query):  # autocast would narrow the mask
                context = F.scaled_dot_product_attention(*inputs, attn_mask=mask, scale=call.scale)
            result[:, :, rows] = context.masked_fill_(mask.amax(-1, keepdim=True) == -math.inf, 0.0)
        return result

    def _mask(self, rows: slice, keys: int) -> Tensor:
        """What is added to the scores of some queries of all heads, `(B or 1, H or 1, t or 1, keys)`."""
        call, total = self.call, None
        for bias in self.biases:
            part = bias[:, :, rows] if bias.shape[2] > 1 else bias
            part = (part[..., :keys] if part.shape[3] > 1 else part).to(self.wide)
            total = part if total is None else total + part
        assert total is not None
        total = total.expand(*total.shape[:3], keys)
        if self.causal:
            first, count = min(rows.start + call.query_offset, keys), rows.stop - rows.start
            above = torch.ones(count, keys - first, dtype=torch.bool, device=total.device).triu_(1)
            total = total.masked_fill(F.pad(above, (first, 0)), -math.inf)
        if call.key_mask is not None:
            total = total.masked_fill(~call.key_mask[:, None, None, :keys], -math.inf)
        return total if total.stride(-1) == 1 else total.contiguous()
