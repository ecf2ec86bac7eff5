"""What `gpu.py` runs on a GPU: layers of every mechanism, other people's attention, whole models.

A side is a function of a cell and a setting that gives what to run; it fails where a package or a form is missing, and
the row says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan import attend
from longspan.attention import MECHANISMS, Tokens
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanForMaskedLM
from longspan.patterns import Window

Run = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where and how large: what a dry run has smaller.

    Attributes:
        device: of all tensors.
        dtype: of a layer; models compute in it by autocast.
        width: of hidden states, E.
        heads: H.
        layers: of a model.
        vocabulary: of a model.
        written: tokens that a decoder writes behind its prompt.
        side: tokens that a window sees on each side, where windows are compared.
        block: tokens of BigBird's blocks.
        seconds: for which a cell is measured, where one run takes less.
        runs: that a cell is measured in, at least.
    """

    device: Any = "cuda"
    dtype: torch.dtype = torch.bfloat16
    width: int = 768
    heads: int = 12
    layers: int = 12
    vocabulary: int = 32_768
    written: int = 64
    side: int = 128
    block: int = 64
    seconds: float = 0.3
    runs: int = 3


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One row to measure.

    Attributes:
        side: a mechanism's name, or one of `SIDES`.
        work: `forward`, or `training` with the backward pass; of models `step`, `prefill` or `decode`; or `check`,
            which compares the device with the processor.
        tokens: of the one row, T.
        causal: the causal form.
        padded: a quarter of the row is padding.
        dropout: of attention weights, in training.
        compiled: by `torch.compile`.
        global_tokens: number of tokens at the beginning that see and are seen by all.
    """

    side: str
    work: str
    tokens: int
    causal: bool = False
    padded: bool = False
    dropout: float = 0.0
    compiled: bool = False
    global_tokens: int = 0

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells rows apart."""
        return tuple(asdict(self).values())


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
    layer = kind(**options).build(width=setting.width, heads=setting.heads, causal=cell.causal)
    return layer.to(setting.dtype).to(setting.device).train(cell.work == "training")


def mechanism(cell: Cell, setting: Setting) -> Run:
    """A layer forward, or forward and backward with the gradients of its weights."""
    layer, tokens, hidden = layer_of(cell, setting), tokens_of(cell, setting.device), hidden_states(cell, setting)
    called: Any = torch.compile(layer) if cell.compiled else layer
    return passes(lambda given: called(given, tokens), hidden, backward=cell.work == "training")


def passes(function: Callable[[Tensor], Tensor], hidden: Tensor, *, backward: bool) -> Run:
    """What runs a function of hidden states; the result is what it gives, or the gradient of the states."""

    def run() -> Tensor:
        if not backward:
            with torch.no_grad():
                return function(hidden)
        given = hidden.detach().requires_grad_()
        function(given).float().square().sum().backward()
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

    called = torch.compile(function) if cell.compiled else function
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
    pattern = Window(setting.side, setting.side)
    return core(lambda heads: attend(heads, heads, heads, pattern=pattern, backend=backend), cell, setting)


def flash_window(cell: Cell, setting: Setting) -> Run:
    """FlashAttention's local window, where the package is installed."""
    from flash_attn import flash_attn_func  # type: ignore[import-not-found]

    def function(hidden: Tensor) -> Tensor:
        heads = hidden.unflatten(-1, (setting.heads, -1))
        return flash_attn_func(heads, heads, heads, window_size=(setting.side, setting.side)).flatten(2)

    return passes(function, hidden_states(cell, setting), backward=cell.work == "training")


def flex_window(cell: Cell, setting: Setting) -> Run:
    """FlexAttention as its own pages say: a block mask from a predicate, both compiled."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def within(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query - key <= setting.side) & (key - query <= setting.side)

    mask = create_block_mask(within, None, None, cell.tokens, cell.tokens, device=setting.device, _compile=True)
    compiled = torch.compile(flex_attention)
    return core(lambda heads: compiled(heads, heads, heads, block_mask=mask), cell, setting)


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
        attention_window=[2 * setting.side],
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


# Whole models -------------------------------------------------------------------------------------------------------


def sizes(setting: Setting) -> dict[str, int]:
    """What our models and transformers' have in common."""
    return {
        "vocab_size": setting.vocabulary,
        "hidden_size": setting.width,
        "num_hidden_layers": setting.layers,
        "num_attention_heads": setting.heads,
        "intermediate_size": 4 * setting.width,
    }


def window_spec(setting: Setting) -> dict[str, Any]:
    """The mechanism with the window of transformers' models."""
    return {"mechanism": "longformer", "left_tokens": setting.side, "right_tokens": setting.side}


def our_encoder(attention: Any, cell: Cell, setting: Setting) -> nn.Module:
    """A masked language model of ours."""
    attention = window_spec(setting) if attention == "longformer" else attention
    config = LongspanConfig(
        **sizes(setting), attention=attention, position_embedding="sinusoidal", max_position_embeddings=cell.tokens
    )
    return LongspanForMaskedLM(config)


def their_encoder(kind: str, cell: Cell, setting: Setting) -> nn.Module:
    """A masked language model of transformers."""
    import transformers

    own = {"attention_window": 2 * setting.side} if kind == "Longformer" else {"block_size": setting.block}
    positions = {"max_position_embeddings": cell.tokens + 2}
    config = getattr(transformers, f"{kind}Config")(**sizes(setting), **positions, **own)
    return getattr(transformers, f"{kind}ForMaskedLM")(config)


def led(cell: Cell, setting: Setting) -> nn.Module:
    """transformers' LED: half of the layers read, half write."""
    from transformers import LEDConfig, LEDForConditionalGeneration

    half = max(1, setting.layers // 2)
    config = LEDConfig(
        vocab_size=setting.vocabulary, d_model=setting.width, encoder_layers=half, decoder_layers=half,
        encoder_attention_heads=setting.heads, decoder_attention_heads=setting.heads,
        encoder_ffn_dim=4 * setting.width, decoder_ffn_dim=4 * setting.width, attention_window=2 * setting.side,
        max_encoder_position_embeddings=cell.tokens,
    )  # fmt: skip
    return LEDForConditionalGeneration(config)


def our_led(cell: Cell, setting: Setting) -> nn.Module:
    """Ours with the same layers."""
    from longspan.models import LongspanForConditionalGeneration

    half = max(1, setting.layers // 2)
    config = LongspanConfig(
        **sizes(setting) | {"num_hidden_layers": half}, decoder_layers=half, attention=window_spec(setting),
        position_embedding="sinusoidal", max_position_embeddings=cell.tokens,
    )  # fmt: skip
    return LongspanForConditionalGeneration(config)


def training_step(make: Callable[[Cell, Setting], nn.Module], cell: Cell, setting: Setting) -> Run:
    """Forward, backward and AdamW's update of a model, weights in float32, products by autocast."""
    torch.manual_seed(0)
    model = make(cell, setting).to(setting.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(5, setting.vocabulary, (1, cell.tokens), generator=torch.Generator().manual_seed(1))
    ids = ids.to(setting.device)
    labels = ids[:, : min(256, cell.tokens)] if "Conditional" in type(model).__name__ else ids
    called: Any = torch.compile(model) if cell.compiled else model

    def run() -> Tensor:
        with torch.autocast(torch.device(setting.device).type, dtype=torch.bfloat16):
            loss = called(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return run


def writer_of(attention: str, cell: Cell, setting: Setting) -> tuple[LongspanForCausalLM, Tensor]:
    """A causal language model of ours, and a prompt `(1, T)`."""
    torch.manual_seed(0)
    config = LongspanConfig(**sizes(setting), attention=attention, position_embedding="sinusoidal", eos_token_id=None)
    model = LongspanForCausalLM(config).to(setting.dtype).to(setting.device).eval()
    ids = torch.randint(5, setting.vocabulary, (1, cell.tokens), generator=torch.Generator().manual_seed(1))
    return model, ids.to(setting.device)


def prefill(attention: str, cell: Cell, setting: Setting) -> Run:
    """A prompt read into a cache."""
    model, ids = writer_of(attention, cell, setting)

    def run() -> Tensor:
        with torch.no_grad():
            return model(input_ids=ids, use_cache=True, logits_to_keep=1).logits

    return run


def decode(attention: str, cell: Cell, setting: Setting) -> Run:
    """Tokens behind a prompt, the likeliest each time; the prompt is read once, before anything is timed."""
    import copy

    model, ids = writer_of(attention, cell, setting)
    with torch.no_grad():
        cache = model(input_ids=ids[:, :-1], use_cache=True, logits_to_keep=1).cache

    def run() -> Tensor:
        given = copy.deepcopy(cache)
        mask = torch.ones_like(ids)
        return model.generate(ids, attention_mask=mask, cache=given, do_sample=False, max_new_tokens=setting.written)

    return run


WRITERS = ("full", "longformer", "poolingformer", "linear")
"""Mechanisms of the models that write."""
CORES: dict[str, Callable[[Cell, Setting], Run]] = {
    "sdpa": partial(sdpa, None),
    "sdpa-flash": partial(sdpa, "FLASH_ATTENTION"),
    "sdpa-cudnn": partial(sdpa, "CUDNN_ATTENTION"),
    "sdpa-efficient": partial(sdpa, "EFFICIENT_ATTENTION"),
    "window": partial(window, "auto"),
    "window-blocked": partial(window, "blocked"),
    "flash-window": flash_window,
    "flex-window": flex_window,
    "hf-longformer": hf_longformer,
    "hf-bigbird": hf_big_bird,
}
"""Attention of others, and ours beside it."""
AGREEING = ("window-blocked", "flash-window", "flex-window", "hf-longformer")
"""Those that compute what `window` does: they are compared with it before they are timed."""
STEPS: dict[str, Callable[[Cell, Setting], nn.Module]] = {
    "model-full": partial(our_encoder, "full"),
    "model-longformer": partial(our_encoder, "longformer"),
    "model-poolingformer": partial(our_encoder, "poolingformer"),
    "model-bigbird": partial(our_encoder, "bigbird"),
    "model-led": our_led,
    "hf-model-longformer": partial(their_encoder, "Longformer"),
    "hf-model-bigbird": partial(their_encoder, "BigBird"),
    "hf-model-led": led,
}
"""Models whose training step is timed."""


def build(cell: Cell, setting: Setting) -> Run:
    """What a cell runs.

    Raises:
        InputError: nobody knows such a side.
    """
    if cell.work == "step":
        return training_step(STEPS[cell.side], cell, setting)
    if cell.work in ("prefill", "decode"):
        return (prefill if cell.work == "prefill" else decode)(cell.side, cell, setting)
    if cell.side in CORES:
        return CORES[cell.side](cell, setting)
    if cell.side not in MECHANISMS:
        raise InputError(f"side {cell.side!r} is unknown; choose one of {', '.join([*MECHANISMS, *CORES, *STEPS])}")
    return mechanism(cell, setting)
