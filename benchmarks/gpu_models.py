"""Whole models for `gpu.py`: training steps, prefill and decoding, ours and transformers'."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from compiled_steps import Ticks
from gpu_cells import Cell, Run, Setting
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanForMaskedLM


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
    called: Any = torch.compile(model, backend=setting.compiler) if cell.compiled else model

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


DECODING: dict[str, dict[str, Any]] = {
    "decode": {},
    "decode-static": {"cache_implementation": "static", "disable_compile": True},
    "decode-graph": {"cache_implementation": "static"},
}
"""What `generate` is given: nothing, a static cache, and one with all steps one CUDA graph."""


def decode(attention: str, cell: Cell, setting: Setting) -> Run:
    """Tokens behind a prompt, the likeliest each time: all tokens `(1, T + written)`, and the seconds of those written,
    but for the first, which comes of the prompt."""
    from transformers import CompileConfig

    model, ids = writer_of(attention, cell, setting)
    options = dict(DECODING[cell.work])
    if cell.work == "decode-graph":
        graph = "reduce-overhead" if setting.compiler == "inductor" else None
        config: Any = CompileConfig(fullgraph=True, mode=graph, backend=setting.compiler)
        config._compile_all_devices = True
        options["compile_config"] = config

    def run() -> tuple[Tensor, list[float]]:
        ticks = Ticks(time.perf_counter)
        given: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "streamer": ticks, **options}
        written = model.generate(ids, do_sample=False, max_new_tokens=setting.written, **given)
        return written, ticks.seconds

    return run


WRITERS = ("full", "longformer", "poolingformer", "linear")
"""Mechanisms of the models that write."""
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
