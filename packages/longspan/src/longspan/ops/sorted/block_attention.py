"""Attention of token blocks over themselves and over the blocks sorted for them: with PyTorch's attention kernel, or on
a CPU for a few heads and blocks at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.ops.runtime import PROCESSOR, Buffers, dropout_factors, full_precision, needs_reference, run
from longspan.ops.sorted.sinkhorn import fused_blocks, plain_blocks, row_sums


def attend_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    real: Tensor | None,
    order: Tensor,
    *,
    scale: float,
    causal: bool,
    dropout_prob: float = 0.0,
) -> Tensor:
    """Computes attention of each block's queries over its own tokens and those sorted for it: `(B, H, M, b, D)` → `(B,
    H, M, b, D)`.

    Args:
        query: `(B, H, M, b, D)`, of the last M of N blocks; N is at least 1.
        key: `(B, H, N, b, D)`.
        value: `(B, H, N, b, D)`.
        real: `(B, N, b)` bool, True where a token is not padding; `None` where all are real.
        order: `(B, H, M, N)`, the sorting matrix of the last M blocks, float32 or wider.
        scale: factor on the scores.
        causal: within its own block, a query sees itself and earlier tokens only.
        dropout_prob: probability of dropping an attention weight.
    """
    fused = query.is_cuda or _faster_fused(query, key, value, order, real, dropout_prob)
    if fused and not needs_reference(query, key, value, order):
        return fused_blocks(query, key, value, real, order, scale, causal, dropout_prob)
    if real is None:
        real = torch.ones(key.shape[0], *key.shape[2:4], dtype=torch.bool, device=key.device)
    if needs_reference(query, key, value, order):
        return plain_blocks(query, key, value, real, order, scale, causal, dropout_prob)
    inputs = (tensor.permute(0, 2, 3, 1, 4) for tensor in (query, key, value))
    seed = torch.randint(2**62, (), dtype=torch.int64) if dropout_prob else None
    context = run(block_attention, _kernel, *inputs, real, order, seed, scale, causal, dropout_prob)
    return context.permute(0, 3, 1, 2, 4)


SHORT = 4096
"""Tokens up to which PyTorch's kernel is faster on a CPU without gradients too; then chunks fit the cache better."""


def _faster_fused(
    query: Tensor, key: Tensor, value: Tensor, order: Tensor, real: Tensor | None, dropout_prob: float
) -> bool:
    """Whether PyTorch's attention kernel is faster on a CPU: in float32, without padding and dropout. With gradients
    the sorted blocks are saved, which are as large as keys and values."""
    if real is not None or dropout_prob or query.dtype != torch.float32:
        return False
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value, order))
    return learns or key.shape[2] * key.shape[3] <= SHORT


# Otherwise, the CPU path is one PyTorch operator, computed for a few heads and blocks at a time. The backward pass
# recomputes the sorted blocks and the weights, so that neither is saved.

ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor real, Tensor order, Tensor? seed, float scale, bool causal, "
    "float dropout_prob"
)


class _Run:
    """One call and its working memory, for G heads of one row at a time; the inputs are `(B, N, b, H, D)`."""

    def __init__(  # type: ignore[no-untyped-def]
        self, query: Tensor, key, value, real, order, seed, scale: float, causal: bool, dropout_prob: float
    ) -> None:
        self.query, self.key, self.value, self.real, self.order = query, key, value, real, order
        self.scale, self.causal, self.dropout_prob = scale, causal, dropout_prob
        self.buffers = Buffers(query)
        self.wide = order.dtype
        (_, blocks, self.size, heads, _), self.first = query.shape, key.shape[1] - query.shape[1]
        scores_per_head = max(1, blocks * 2 * self.size**2)
        scores = PROCESSOR.sorted_scores
        self.heads = max(1, min(heads, scores // scores_per_head))
        self.blocks = max(1, scores // (self.heads * 2 * self.size**2))
        self.filled = bool(real.all())
        self.generator = None
        if seed is not None:
            self.generator = torch.Generator(query.device)
            self.generator.manual_seed(int(seed))

    def forward(self) -> Tensor:
        result = self.value.new_empty(*self.query.shape[:-1], self.value.shape[-1])
        for row, heads in self._groups():
            keys, values, share = self._sorted(row, heads)
            for blocks in self._pieces():
                query = self._read("query", self.query, row, heads, blocks)
                weights = self._weights(query, keys, share, row, blocks)
                dropout = self._dropout(weights)
                mixed = self._product("mixed", weights if dropout is None else weights.mul_(dropout), values[:, blocks])
                result[row, blocks, :, heads] = mixed.permute(1, 2, 0, 3)
        return result

    def backward(self, grad: Tensor) -> tuple[Tensor, ...]:
        """With weights P: dV = PᵀdO, dP = dO Vᵀ, dS = P∘(dP − rowsum(P∘dP)), dQ = dS K, dK = dSᵀQ."""
        inputs = self.query, self.key, self.value
        grads = tuple(tensor.new_empty(tensor.shape) for tensor in inputs)
        grad_order = torch.empty_like(self.order, memory_format=torch.contiguous_format)
        for row, heads in self._groups():
            keys, values, share = self._sorted(row, heads)
            to_keys, to_values = (
                self.buffers.take(name, *tensor.shape, dtype=self.wide)
                for name, tensor in (("grad keys", keys), ("grad values", values))
            )
            to_share = self.buffers.take("grad share", *share.shape, dtype=self.wide)
            for blocks in self._pieces():
                query = self._read("query", self.query, row, heads, blocks)
                upstream = self._read("grad", grad, row, heads, blocks)
                weights = self._weights(query, keys, share, row, blocks)
                dropout = self._dropout(weights)
                slopes = self._product("slopes", upstream, values[:, blocks].mT)
                used = weights
                if dropout is not None:
                    slopes.mul_(dropout)
                    used = dropout.mul_(weights)
                self._product("", used.mT, upstream, to_values[:, blocks])
                slopes.mul_(weights)
                slopes.addcmul_(weights, slopes.sum(-1, keepdim=True), value=-1)
                to_share[:, blocks] = slopes[..., self.size :].sum(-2)
                slopes.mul_(self.scale)
                to_query = self._product("grad query", slopes, keys[:, blocks])
                grads[0][row, blocks, :, heads] = to_query.permute(1, 2, 0, 3)
                self._product("", slopes.mT, query, to_keys[:, blocks])
            unsorted = self._unsorted(row, heads, keys, values, share, to_keys, to_values, to_share)
            grads[1][row, :, :, heads], grads[2][row, :, :, heads] = (part.permute(1, 2, 0, 3) for part in unsorted[:2])
            grad_order[row, heads] = unsorted[2]
        return *grads, grad_order

    def _groups(self):  # type: ignore[no-untyped-def]
        """Yields the row of the batch and the slice of heads of each group."""
        heads = self.query.shape[3]
        for row in range(len(self.query)):
            for start in range(0, heads, self.heads):
                yield row, slice(start, min(heads, start + self.heads))

    def _pieces(self) -> list[slice]:
        count = self.query.shape[1]
        return [slice(start, min(count, start + self.blocks)) for start in range(0, count, self.blocks)]

    def _taken(self, name: str, tensor: Tensor, row: int, heads: slice, blocks: slice) -> Tensor:
        """Copies vectors of some heads and blocks into working memory, `(G, n, b, D)`, contiguous."""
        part = tensor[row, blocks, :, heads].permute(2, 0, 1, 3)
        return self.buffers.take(name, *part.shape, dtype=self.wide).copy_(part)

    def _read(self, name: str, tensor: Tensor, row: int, heads: slice, blocks: slice) -> Tensor:
        """As `_taken`, without a copy where a view suffices."""
        if heads.stop - heads.start > 1 or tensor.dtype != self.wide:
            return self._taken(name, tensor, row, heads, blocks)
        return tensor[row, blocks, :, heads].permute(2, 0, 1, 3)

    def _product(self, name: str, left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
        """Computes batched matrix products into `out`, which holds all blocks of one head or all of several heads, or
        into a named buffer."""
        if out is None:
            out = self.buffers.take(name, *left.shape[:-1], right.shape[-1], dtype=self.wide)
        torch.bmm(left.flatten(0, -3), right.flatten(0, -3), out=out.flatten(0, -3))
        return out

    def _sorted(self, row: int, heads: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Returns each block's own keys and the sorted ones, `(G, M, 2b, D)`, the values likewise, and the share of
        each sorted position that is real, `(G, M, b)`."""
        order, real = self.order[row, heads], self.real[row]
        share = (order @ real.to(self.wide)).div_(row_sums(order)[..., None])
        sorted_pair = []
        for name, tensor in (("keys", self.key), ("values", self.value)):
            own = self._taken("own " + name, tensor, row, heads, slice(None))
            if not self.filled:
                own.mul_(real[..., None])
            mixed = self._product("mixed blocks", order, own.flatten(2)).unflatten(-1, own.shape[2:])
            mixed.div_(share.clamp(min=torch.finfo(self.wide).tiny)[..., None])
            both = self.buffers.take(name, *mixed.shape[:2], 2 * self.size, own.shape[-1], dtype=self.wide)
            both[:, :, : self.size], both[:, :, self.size :] = own[:, self.first :], mixed
            sorted_pair.append(both)
        return sorted_pair[0], sorted_pair[1], share

    def _unsorted(  # type: ignore[no-untyped-def]
        self, row, heads, keys, values, share, to_keys: Tensor, to_values: Tensor, to_share: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the gradients of keys and values, `(G, N, b, D)`, and of the order, `(G, M, N)`.

        The sorted keys are A / share with the sums A = order · keys, and log share is added to the scores; share is
        relative to the sum of the order's row.
        """
        order, flags = self.order[row, heads], self.real[row].to(self.wide)
        divisor, unsorted_pair, products = share.clamp(min=torch.finfo(self.wide).tiny)[..., None], [], []
        for name, both, grads in (("own keys", keys, to_keys), ("own values", values, to_values)):
            sorted_, to_sorted = both[:, :, self.size :], grads[:, :, self.size :]
            to_share = to_share - (to_sorted * sorted_).sum(-1)
            to_sum = (to_sorted / divisor).flatten(2)
            own = self.buffers.take(name, *both.shape[:1], *flags.shape, both.shape[-1], dtype=self.wide)
            products.append(to_sum @ own.flatten(2).mT)
            total = (order.mT @ to_sum).unflatten(-1, own.shape[2:])
            if not self.filled:
                total.mul_(flags[..., None])
            total[:, self.first :] += grads[:, :, : self.size]
            unsorted_pair.append(total)
        to_share = to_share / divisor[..., 0]
        of_rows = (to_share @ flags.mT - (to_share * share).sum(-1, keepdim=True)) / row_sums(order)[..., None]
        return unsorted_pair[0], unsorted_pair[1], products[0] + products[1] + of_rows

    def _weights(self, query: Tensor, keys: Tensor, share: Tensor, row: int, blocks: slice) -> Tensor:
        """Returns the weights `(G, n, b, 2b)`, 0 in padding rows."""
        size, share = self.size, share[:, blocks]
        scores = self._product("scores", query, keys[:, blocks].mT).mul_(self.scale)
        least = torch.finfo(self.wide).tiny
        scores[..., size:].add_(share.clamp(min=least).log().masked_fill_(share <= least, -torch.inf)[..., None, :])
        if self.causal:
            scores[..., :size].add_(scores.new_full((size, size), -torch.inf).triu_(1))
        if self.filled:
            return torch.softmax(scores, -1, out=scores)
        real = self.real[row, self.first :][blocks]
        scores[..., :size].add_(torch.zeros_like(real, dtype=self.wide).masked_fill_(~real, -torch.inf)[:, None])
        # A padding row may see nothing, for which softmax is undefined.
        scores.masked_fill_(~real[..., None], 0)
        return torch.softmax(scores, -1, out=scores).mul_(real[..., None])

    def _dropout(self, weights: Tensor) -> Tensor | None:
        return None if self.generator is None else dropout_factors(weights, self.dropout_prob, self.generator)


def _kernel(*arguments) -> Tensor:  # type: ignore[no-untyped-def]
    with full_precision(arguments[0]):
        return _Run(*arguments).forward()


block_attention = torch.library.custom_op(
    "longspan::block_attention", _kernel, mutates_args=(), schema=f"({ARGUMENTS}) -> Tensor"
)


@block_attention.register_fake
def _(query, key, value, *rest):  # type: ignore[no-untyped-def]
    return value.new_empty(*query.shape[:-1], value.shape[-1])


def _backward_kernel(grad, *arguments):  # type: ignore[no-untyped-def]
    with full_precision(grad):
        return _Run(*arguments).backward(grad)


block_attention_backward = torch.library.custom_op(
    "longspan::block_attention_backward",
    _backward_kernel,
    mutates_args=(),
    schema=f"(Tensor grad, {ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)",
)


@block_attention_backward.register_fake
def _(grad, query, key, value, real, order, *rest):  # type: ignore[no-untyped-def]
    return tuple(tensor.new_empty(tensor.shape) for tensor in (query, key, value, order))


def _setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs[:6])
    ctx.options = inputs[6:]


def _gradient(ctx, grad):  # type: ignore[no-untyped-def]
    query, key, value, order = block_attention_backward(grad, *ctx.saved_tensors, *ctx.options)
    return query, key, value, None, order, None, None, None, None


block_attention.register_autograd(_gradient, setup_context=_setup_context)
