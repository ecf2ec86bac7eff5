"""Full or causal attention with biases for all pairs, which tiles would have to gather element by element.

A block of queries sees a range of keys, so its part of a bias is a slice that is read in place. The backward pass
recomputes the softmax of a block; the gradient of a bias that batch rows share is summed. Queries may have D = 0: then
the scores are the biases alone.
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
    """Queries `rows` of one head of one batch row, which see the first `keys` keys."""

    batch: int
    head: int
    rows: slice
    keys: int
    number: int

    @property
    def count(self) -> int:
        return self.rows.stop - self.rows.start

    def of(self, tensor: Tensor) -> Tensor:
        """Returns the head's part of a tensor whose first axes are `(B or 1, H or 1)`."""
        return tensor[self.batch if tensor.shape[0] > 1 else 0, self.head if tensor.shape[1] > 1 else 0]

    def part(self, bias: Tensor) -> Tensor:
        """Returns the block's part `(count or 1, keys or 1)` of a bias, a view."""
        part = self.of(bias)
        part = part[self.rows] if part.shape[0] > 1 else part
        return part[:, : self.keys] if part.shape[1] > 1 else part


class Biased:
    """A call computed by this module, as returned by `longspan.ops.tiles.split`."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.causal = call.pattern.is_causal
        self.biases = [term.values for term in call.terms if isinstance(term, Bias)]
        self.wide = torch.promote_types(call.query.dtype, torch.float32)
        self.buffers = [call.query.new_empty(0, dtype=self.wide) for _ in range(2)]

    def output(self) -> Tensor:
        """Computes attention `(B, H, T, Dv)`."""
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
        """Returns the gradients of query, key, value and the `wanted` biases, empty for the others. `saved` is not
        used.

        With weights P, outputs O = PV: dV = PᵀdO, dP = dO Vᵀ, dS = P∘(dP − rowsum(P∘dP)), dQ = dS K, dK = dSᵀQ.
        """
        call = self.call
        totals = [torch.zeros_like(tensor, dtype=self.wide) for tensor in (call.query, call.key, call.value)]
        biases = [
            (torch.empty_like if self._written_once(bias) else torch.zeros_like)(bias, dtype=self.wide)
            if need
            else bias.new_empty(0)
            for bias, need in zip(self.biases, wanted, strict=True)
        ]
        for block in self._blocks():
            self._add_gradients(block, grad, totals, biases)
        inputs = [
            total.to(tensor.dtype) for total, tensor in zip(totals, (call.query, call.key, call.value), strict=True)
        ]
        return inputs + [total.to(bias.dtype) for total, bias in zip(biases, self.biases, strict=True)]

    def _add_gradients(self, block: _Block, grad: Tensor, totals: list[Tensor], biases: list[Tensor]) -> None:
        """Adds the contribution of one block."""
        call, wide = self.call, self.wide
        query, slope = (block.of(tensor)[block.rows].to(wide) for tensor in (call.query, grad))
        key, value = (block.of(tensor)[: block.keys].to(wide) for tensor in (call.key, call.value))
        to_query, to_key, to_value = (block.of(tensor) for tensor in totals)
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
        """Whether the blocks of one batch row write all of a bias's gradient, so that it need not be zeroed: zeroing
        that much memory takes as long as a matrix product."""
        pairs = (*self.call.query.shape[1:3], self.call.key.shape[2])
        return self.call.pattern.is_full and bias.shape[1:] == pairs

    def _weights(self, block: _Block) -> Tensor:
        """Returns the softmax weights `(count, keys)` of a block, in its buffer."""
        weights = self._buffer(0, block)
        torch.softmax(self._scores(block), dim=-1, out=weights)
        if not weights.is_cuda and not bool(weights[:, :1].isnan().any()):
            return weights
        # NaN from rows that are all −∞, or from NaN scores, which stay NaN.
        return weights.masked_fill_(self._scores(block).amax(-1, keepdim=True) == -math.inf, 0.0)

    def _scores(self, block: _Block) -> Tensor:
        """Returns the scores `(count, keys)` of a block, in a buffer unless they exist already."""
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
        """Sets the scores of hidden keys to −∞."""
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
        """Yields all blocks; rows of the batch are consecutive, because they may share a bias."""
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
        """Returns the number of keys that the last of these queries sees."""
        keys = self.call.key.shape[2]
        return min(keys, rows.stop + self.call.query_offset) if self.causal else keys

    def _kernel_serves(self) -> bool:
        """Whether to use PyTorch's kernel for the forward pass: it requires equal widths of queries and values, and
        stores all weights under dropout."""
        query, value = self.call.query, self.call.value
        return 0 < query.shape[3] == value.shape[3] and not self.call.dropout_prob and not query.is_cuda

    def _output_of_kernel(self) -> Tensor:
        """As `output`, in blocks of queries over all heads."""
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
        """Returns the additive mask of these queries in all heads, `(B or 1, H or 1, t or 1, keys)`."""
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
