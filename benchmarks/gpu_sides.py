"""What `gpu.py` runs on a GPU: layers of every mechanism, other people's attention, and plain products; whole models
are in `gpu_models.py`.

A side is a function of a cell and a setting that gives what to run; it fails where a package or a form is missing, and
the row says so.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpu_cells import Cell, Run, Setting, side_of
from gpu_models import DECODING, STEPS, decode, prefill, training_step
from gpu_tiles import parsed
from longspan import attend
from longspan.attention import MECHANISMS, Tokens
from longspan.errors import InputError
from longspan.patterns import Window


def hidden_states(cell: Cell, setting: Setting) -> Tensor:
    """Random `(1, T, E)`, the same on every device."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, cell.tokens, setting.width, generator=generator)
    return hidden.to(setting.dtype).to(setting.device)


def tokens_of(cell: Cell, device: Any) -> Tokens:
    """Masks `(1, T)` of real tokens, three quarters where the cell is padded, and of global ones where it has some."""
    place = torch.arange(cell.tokens)[None]
    mask = (place < cell.tokens - cell.tokens // 4).to(device) if cell.padded else None
    is_global = (place < cell.global_tokens).to(device) if cell.global_tokens else None
    tokens = Tokens(mask=mask, is_global=is_global)
    return tokens if is_global is None else tokens.with_slots()


def layer_of(cell: Cell, setting: Setting) -> nn.Module:
    """A layer of a mechanism with the options that a model of this length has by default."""
    torch.manual_seed(0)
    kind = MECHANISMS[cell.side]
    options = kind.defaults_for(cell.tokens, {}) | ({"dropout": cell.dropout} if cell.dropout else {})
    options |= {"left_tokens": cell.window, "right_tokens": cell.window} if cell.window else {}
    layer = kind(**options).build(width=setting.width, heads=setting.heads, causal=cell.causal)
    if cell.form == "bare":
        for name in ("query", "key", "value", "output"):
            setattr(layer, name, nn.Identity())
    if cell.form == "joined":
        layer.project = partial(joined_products, layer)
    return layer.to(setting.dtype).to(setting.device).train(cell.work == "training")


def joined_products(layer: Any, hidden: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys and values `(B, H, T, D)` by one product; the weights stay three, and are joined in every call."""
    weights, biases = zip(*((each.weight, each.bias) for each in (layer.query, layer.key, layer.value)), strict=True)
    parts = F.linear(hidden, torch.cat(weights), torch.cat(biases)).chunk(3, dim=-1)
    return tuple(layer.split_heads(part) for part in parts)


def mechanism(cell: Cell, setting: Setting) -> Run:
    """A layer forward, or forward and backward with the gradients of its weights."""
    layer, tokens, hidden = layer_of(cell, setting), tokens_of(cell, setting.device), hidden_states(cell, setting)
    called: Any = torch.compile(layer, backend=setting.compiler) if cell.compiled else layer
    return passes(lambda given: called(given, tokens), hidden, backward=cell.work == "training")


def passes(function: Callable[[Tensor], Tensor], hidden: Tensor, *, backward: bool) -> Run:
    """What runs a function of hidden states; the result is what it gives, or the gradient of the states. The gradient
    of the result is there before, as a loss of our own would be timed with the function."""
    gradient = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(2))
    gradient = gradient.to(hidden.dtype).to(hidden.device)

    def run() -> Tensor:
        if not backward:
            with torch.no_grad():
                return function(hidden)
        given = hidden.detach().requires_grad_()
        torch.autograd.backward(function(given), gradient)
        assert given.grad is not None
        return given.grad

    return run


# Attention alone: heads `(1, H, T, D)` that are query, key and value at once --------------------------------------


def heads_of(hidden: Tensor, setting: Setting) -> Tensor:
    return hidden.unflatten(-1, (setting.heads, -1)).transpose(1, 2)


def core(attention: Callable[[Tensor], Tensor], cell: Cell, setting: Setting) -> Run:
    """Attention of heads on themselves."""

    def function(hidden: Tensor) -> Tensor:
        return attention(heads_of(hidden, setting)).transpose(1, 2).flatten(2)

    called = torch.compile(function, backend=setting.compiler) if cell.compiled else function
    return passes(called, hidden_states(cell, setting), backward=cell.work == "training")


def sdpa(backend: str | None, cell: Cell, setting: Setting) -> Run:
    """Full attention by PyTorch: what it chooses itself, or one of its kernels."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def attention(heads: Tensor) -> Tensor:
        if backend is None:
            return F.scaled_dot_product_attention(heads, heads, heads, is_causal=cell.causal)
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return F.scaled_dot_product_attention(heads, heads, heads, is_causal=cell.causal)

    return core(attention, cell, setting)


def window(backend: str, cell: Cell, setting: Setting) -> Run:
    """Our operator with a window."""
    pattern = Window(side_of(cell, setting), side_of(cell, setting))
    return core(lambda heads: attend(heads, heads, heads, pattern=pattern, backend=backend), cell, setting)


def banded(backend: str | None, cell: Cell, setting: Setting) -> Run:
    """A window as a band of blocks, in plain PyTorch: each block of queries over its own keys and those of both
    neighbours, under a mask; by the kernel that PyTorch chooses, or one of them."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    size, length = side_of(cell, setting), cell.tokens
    blocks = -(-length // size)
    place = torch.arange(blocks * size, device=setting.device).view(blocks, size, 1)
    others = (torch.arange(blocks, device=setting.device)[:, None] - 1) * size
    others = (others + torch.arange(3 * size, device=setting.device))[:, None]
    mask = (((place - others).abs() <= size) & (others >= 0) & (others < length))[:, None]  # (N, 1, W, 3W)

    def attention(heads: Tensor) -> Tensor:
        whole = F.pad(heads, (0, 0, 0, -length % size)).unflatten(2, (blocks, size))[0].transpose(0, 1)  # (N, H, W, D)
        beside = F.pad(whole, (0, 0, 0, 0, 0, 0, 1, 1))
        keys = torch.cat([beside[first : first + blocks] for first in range(3)], dim=2)
        with nullcontext() if backend is None else sdpa_kernel(getattr(SDPBackend, backend)):
            mixed = F.scaled_dot_product_attention(whole, keys, keys, attn_mask=mask)
        return mixed.transpose(0, 1).flatten(1, 2)[None, :, :length]

    return core(attention, cell, setting)


def flash_window(cell: Cell, setting: Setting) -> Run:
    """FlashAttention's local window, where the package is installed."""
    from flash_attn import flash_attn_func  # type: ignore[import-not-found]

    side = side_of(cell, setting)

    def function(hidden: Tensor) -> Tensor:
        heads = hidden.unflatten(-1, (setting.heads, -1))
        return flash_attn_func(heads, heads, heads, window_size=(side, side)).flatten(2)

    return passes(function, hidden_states(cell, setting), backward=cell.work == "training")


def varlen_window(cell: Cell, setting: Setting) -> Run:
    """The window of the FlashAttention 2 that PyTorch brings, for rows of any lengths."""
    from torch.nn.attention.varlen import varlen_attn

    side, ends = side_of(cell, setting), torch.tensor([0, cell.tokens], dtype=torch.int32).to(setting.device)

    def function(hidden: Tensor) -> Tensor:
        heads = hidden.unflatten(-1, (setting.heads, -1))[0]
        context: Any = varlen_attn(heads, heads, heads, ends, ends, cell.tokens, cell.tokens, window_size=(side, side))
        return context.flatten(1)[None]

    return passes(function, hidden_states(cell, setting), backward=cell.work == "training")


def flex_window(cell: Cell, setting: Setting) -> Run:
    """FlexAttention as its own pages say: a block mask from a predicate, both compiled. With the options
    "BACKEND=FLASH" it uses FlashAttention's program, where `flash_attn.cute` is installed."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    side, options = side_of(cell, setting), {"kernel_options": parsed(cell.options)} if cell.options else {}

    def within(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query - key <= side) & (key - query <= side)

    lengths, inductor = (cell.tokens, cell.tokens), setting.compiler == "inductor"
    mask = create_block_mask(within, None, None, *lengths, device=setting.device, _compile=inductor)
    compiled: Any = torch.compile(flex_attention, backend=setting.compiler)
    return core(lambda heads: compiled(heads, heads, heads, block_mask=mask, **options), cell, setting)


class _Copy(nn.Module):
    """The layer scales its queries in place, and they must not be the keys."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden.clone()


def hf_longformer(cell: Cell, setting: Setting) -> Run:
    """The attention of transformers' Longformer without its projections, which is what the other windows compute."""
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = LongformerConfig(
        hidden_size=setting.width,
        num_attention_heads=setting.heads,
        attention_window=[2 * side_of(cell, setting)],
        attention_probs_dropout_prob=0.0,
    )
    layer = LongformerSelfAttention(config, layer_id=0).to(setting.device)
    for name in ("key", "value", "query_global", "key_global", "value_global"):
        setattr(layer, name, nn.Identity())
    layer.query = _Copy()  # type: ignore[assignment]
    hidden = hidden_states(cell, setting)
    mask = torch.zeros(hidden.shape[:2], dtype=hidden.dtype, device=hidden.device)
    none = torch.zeros(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
    return passes(lambda given: layer(given, mask, none, none, False)[0], hidden, backward=cell.work == "training")


def hf_big_bird(cell: Cell, setting: Setting) -> Run:
    """A layer of transformers' BigBird with its projections, beside our `bigbird`."""
    from transformers import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdAttention, BigBirdModel

    config = BigBirdConfig(
        hidden_size=setting.width,
        num_attention_heads=setting.heads,
        max_position_embeddings=cell.tokens,
        block_size=setting.block,
    )
    layer = BigBirdAttention(config, seed=0).to(setting.dtype).to(setting.device).eval()
    blocked, band, start, end = BigBirdModel.create_masks_for_block_sparse_attn(
        torch.ones(1, cell.tokens, dtype=setting.dtype, device=setting.device), setting.block
    )

    def function(hidden: Tensor) -> Tensor:
        context = layer.self(hidden, band, start, end, blocked, blocked)[0]
        return layer.output.dense(context)

    return passes(function, hidden_states(cell, setting), backward=cell.work == "training")


# What the device can do -----------------------------------------------------------------------------------------------


def product(dtype: torch.dtype, cell: Cell, setting: Setting) -> Run:
    """A product of square matrices."""
    matrix = torch.randn(cell.tokens, cell.tokens).to(dtype).to(setting.device)
    return lambda: matrix @ matrix


def copy(cell: Cell, setting: Setting) -> Run:
    """A copy of eight such matrices in bfloat16."""
    numbers = torch.zeros(8, cell.tokens, cell.tokens, dtype=torch.bfloat16, device=setting.device)
    return numbers.clone


RATES: dict[str, tuple[Callable[[Cell, Setting], Run], Callable[[int], float]]] = {
    "product-bfloat16": (partial(product, torch.bfloat16), lambda size: 2.0 * size**3),
    "product-float32": (partial(product, torch.float32), lambda size: 2.0 * size**3),
    "copy": (copy, lambda size: 8 * 2 * 2.0 * size**2),
}
"""What is timed for a rate per second, and its operations, or the bytes that it reads and writes."""
CORES: dict[str, Callable[[Cell, Setting], Run]] = {
    "sdpa": partial(sdpa, None),
    "sdpa-flash": partial(sdpa, "FLASH_ATTENTION"),
    "sdpa-cudnn": partial(sdpa, "CUDNN_ATTENTION"),
    "sdpa-efficient": partial(sdpa, "EFFICIENT_ATTENTION"),
    "window": partial(window, "auto"),
    "window-flex": partial(window, "flex"),
    "window-blocked": partial(window, "blocked"),
    "varlen-window": varlen_window,
    "banded": partial(banded, None),
    "banded-cudnn": partial(banded, "CUDNN_ATTENTION"),
    "flash-window": flash_window,
    "flex-window": flex_window,
    "hf-longformer": hf_longformer,
    "hf-bigbird": hf_big_bird,
}
"""Attention of others, and ours beside it."""
WINDOWS = (*(name for name in CORES if "window" in name or "band" in name), "hf-longformer")
"""Those that compute what `window` does, without projections: they are compared with it before they are timed."""


def build(cell: Cell, setting: Setting) -> Run:
    """What a cell runs.

    Raises:
        InputError: nobody knows such a side.
    """
    if cell.work == "step":
        return training_step(STEPS[cell.side], cell, setting)
    if cell.work == "prefill" or cell.work in DECODING:
        return (prefill if cell.work == "prefill" else decode)(cell.side, cell, setting)
    if cell.work == "rate":
        return RATES[cell.side][0](cell, setting)
    if cell.side in CORES:
        return CORES[cell.side](cell, setting)
    if cell.side not in MECHANISMS:
        raise InputError(f"side {cell.side!r} is unknown; choose one of {', '.join([*MECHANISMS, *CORES, *STEPS])}")
    return mechanism(cell, setting)
