"""Triton kernels of LDConv pooling, forward and backward; `longspan.ops.kernels.ldconv` calls them.

A slot m is centred at token `c = m·STRIDE`; its tap t is token `c + t − KERNEL // 2` and weighs
`a_t = softmax_t(w_t · x_c)` over the taps that are real. Each tap is read where it
lies: there is no `(slots, KERNEL, D)` tensor.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportCallIssue=false
# What a kernel is given are numbers and pointers of Triton, whatever the types of its language say.
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _real(mask, batch, length, token, among, HAS_MASK: tl.constexpr):
    """Which of the tokens, `among` those that count at all, are real tokens of the sequence."""
    real = among & (token >= 0) & (token < length)
    if HAS_MASK:
        real &= tl.load(mask + batch * length + token, mask=real, other=0) != 0
    return real


@triton.jit
def ldconv_forward(
    hidden, weight, mask, pooled, logs,
    heads, length, slots, width,
    hidden_b, hidden_h, hidden_t, pooled_b, pooled_h, pooled_t,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, HAS_MASK: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """A block of slots of one head: `pooled` and the logarithms of the sums of its softmax, +∞ where no tap is real."""
    row = tl.program_id(1).to(tl.int64)
    batch, head = row // heads, row % heads
    slot = tl.program_id(0).to(tl.int64) * SLOTS + tl.arange(0, SLOTS)
    channel = tl.arange(0, WIDTH)
    centre, inside = slot * STRIDE, channel < width
    alive = _real(mask, batch, length, centre, slot < slots, HAS_MASK)
    tokens = hidden + batch * hidden_b + head * hidden_h + channel[None, :]
    own = tl.load(tokens + centre[:, None] * hidden_t, mask=alive[:, None] & inside[None, :], other=0).to(tl.float32)
    top = tl.full((SLOTS,), float("-inf"), tl.float32)
    total = tl.zeros((SLOTS,), tl.float32)
    mixed = tl.zeros((SLOTS, WIDTH), tl.float32)
    for tap in range(KERNEL):
        token = centre + tap - KERNEL // 2
        real = _real(mask, batch, length, token, alive, HAS_MASK)
        by = tl.load(weight + (head * KERNEL + tap) * width + channel, mask=inside, other=0).to(tl.float32)
        score = tl.where(real, tl.sum(own * by[None, :], 1), float("-inf"))
        value = tl.load(tokens + token[:, None] * hidden_t, mask=real[:, None] & inside[None, :], other=0)
        new_top = tl.maximum(top, score)
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        decay, share = tl.exp(top - shift), tl.exp(score - shift)
        mixed = mixed * decay[:, None] + share[:, None] * value.to(tl.float32)
        total = total * decay + share
        top = new_top
    mixed = mixed / tl.where(total == 0, 1.0, total)[:, None]
    log = tl.where(total == 0, float("inf"), top + tl.log(tl.where(total == 0, 1.0, total)))
    tl.store(logs + row * slots + slot, log, mask=slot < slots)
    places = pooled + batch * pooled_b + head * pooled_h + slot[:, None] * pooled_t + channel[None, :]
    tl.store(places, mixed.to(pooled.dtype.element_ty), mask=(slot < slots)[:, None] & inside[None, :])


@triton.jit
def ldconv_slopes(
    grad, hidden, weight, mask, logs, shares, slopes, means,
    heads, length, slots, width,
    grad_b, grad_h, grad_t, hidden_b, hidden_h, hidden_t,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, HAS_MASK: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """A block of slots of one head: the weights of its taps and their gradients, `(slots, KERNEL)` both, and the means
    of these gradients by those weights, `(slots,)`."""
    row = tl.program_id(1).to(tl.int64)
    batch, head = row // heads, row % heads
    slot = tl.program_id(0).to(tl.int64) * SLOTS + tl.arange(0, SLOTS)
    channel = tl.arange(0, WIDTH)
    centre, inside = slot * STRIDE, channel < width
    alive = _real(mask, batch, length, centre, slot < slots, HAS_MASK)
    here = alive[:, None] & inside[None, :]
    tokens = hidden + batch * hidden_b + head * hidden_h + channel[None, :]
    own = tl.load(tokens + centre[:, None] * hidden_t, mask=here, other=0).to(tl.float32)
    places = grad + batch * grad_b + head * grad_h + slot[:, None] * grad_t + channel[None, :]
    slope = tl.load(places, mask=here, other=0).to(tl.float32)
    mean = tl.zeros((SLOTS,), tl.float32)
    log = tl.load(logs + row * slots + slot, mask=slot < slots, other=float("inf"))
    for tap in range(KERNEL):
        token = centre + tap - KERNEL // 2
        real = _real(mask, batch, length, token, alive, HAS_MASK)
        by = tl.load(weight + (head * KERNEL + tap) * width + channel, mask=inside, other=0).to(tl.float32)
        share = tl.where(real, tl.exp(tl.sum(own * by[None, :], 1) - log), 0.0)
        value = tl.load(tokens + token[:, None] * hidden_t, mask=real[:, None] & inside[None, :], other=0)
        own_slope = tl.sum(slope * value.to(tl.float32), 1)
        mean += share * own_slope
        to = (row * slots + slot) * KERNEL + tap
        tl.store(shares + to, share, mask=slot < slots)
        tl.store(slopes + to, own_slope, mask=slot < slots)
    tl.store(means + row * slots + slot, mean, mask=slot < slots)


@triton.jit
def ldconv_backward(
    grad, weight, shares, slopes, hidden_grad,
    heads, length, slots, width,
    grad_b, grad_h, grad_t, hidden_b, hidden_h, hidden_t,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """A block of tokens of one head: their gradients, from the slots in whose taps they are, and from the scores of the
    slot that they are the centre of."""
    row = tl.program_id(1).to(tl.int64)
    batch, head = row // heads, row % heads
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    channel = tl.arange(0, WIDTH)
    inside = channel < width
    total = tl.zeros((TOKENS, WIDTH), tl.float32)
    for step in range((KERNEL + STRIDE - 1) // STRIDE):
        slot = (token + KERNEL // 2) // STRIDE - step
        tap = token + KERNEL // 2 - slot * STRIDE
        covers = (slot >= 0) & (slot < slots) & (tap < KERNEL) & (token < length)
        share = tl.load(shares + (row * slots + slot) * KERNEL + tap, mask=covers, other=0.0)
        places = grad + batch * grad_b + head * grad_h + slot[:, None] * grad_t + channel[None, :]
        slope = tl.load(places, mask=covers[:, None] & inside[None, :], other=0).to(tl.float32)
        total += share[:, None] * slope
    slot = token // STRIDE
    is_centre = (token % STRIDE == 0) & (token < length)
    for tap in range(KERNEL):
        slope = tl.load(slopes + (row * slots + slot) * KERNEL + tap, mask=is_centre, other=0.0)
        by = tl.load(weight + (head * KERNEL + tap) * width + channel, mask=inside, other=0).to(tl.float32)
        total += slope[:, None] * by[None, :]
    places = hidden_grad + batch * hidden_b + head * hidden_h + token[:, None] * hidden_t + channel[None, :]
    tl.store(places, total.to(hidden_grad.dtype.element_ty), mask=(token < length)[:, None] & inside[None, :])
