"""A tiny language model that writes by `generate()`, and a clock on it: for the benchmarks of generation."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.generation import BaseStreamer

from longspan.compare.machine import resident
from longspan.models import LongspanConfig, LongspanForCausalLM

WIDTH, HEADS, LAYERS = 64, 4, 2
PROMPT = 64


def model(attention: Any, width: int = WIDTH, heads: int = HEADS, layers: int = LAYERS) -> LongspanForCausalLM:
    """By default two layers, 64 wide, 256 tokens: small enough to write 100,000 tokens in minutes."""
    torch.manual_seed(0)
    config = LongspanConfig(
        vocab_size=256, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * width,
        attention=attention, position_embedding="sinusoidal", init_std=0.3 * (WIDTH / width) ** 0.5, eos_token_id=None,
    )  # fmt: skip
    return LongspanForCausalLM(config).eval()


def prompt(length: int = PROMPT) -> Tensor:
    """Random tokens `(1, T)`, the same at every call."""
    return torch.randint(256, (1, length), generator=torch.Generator().manual_seed(1))


def write(writer: LongspanForCausalLM, start: Tensor, count: int, **options: Any) -> Tensor:
    """`count` new tokens behind the prompt `(1, T)`, the likeliest each time."""
    mask = torch.ones_like(start)
    return writer.generate(
        start, attention_mask=mask, do_sample=False, max_new_tokens=count, eos_token_id=None, **options
    )


class Clock(BaseStreamer):
    """Notes the processor time of every token, how much of it the model took, and at some lengths of the text what the
    states and the process hold."""

    def __init__(
        self, writer: LongspanForCausalLM, cache: DynamicCache | None = None, marks: Sequence[int] = ()
    ) -> None:
        self.cache, self.marks = cache, marks
        self.times: list[float] = []
        self.starts: list[float] = []
        self.ends: list[float] = []
        writer.register_forward_pre_hook(lambda *_: self.starts.append(time.process_time()))
        writer.register_forward_hook(lambda *_: self.ends.append(time.process_time()))
        self.states: dict[int, int] = {}
        self.process: dict[int, int] = {}
        self.length = 0

    def put(self, value: Tensor) -> None:
        self.length += value.numel()
        self.times.append(time.process_time())
        if self.cache is not None and self.length in self.marks:
            self.states[self.length] = held_bytes(self.cache)
            self.process[self.length] = resident("VmRSS")

    def end(self) -> None: ...

    def taken(self, last: int, before: int | None = None) -> dict[str, float]:
        """Milliseconds for a token, and in the model, over the last ones before a length of the text, or its end."""
        end = None if before is None else before - self.length
        whole = [after - before for before, after in itertools.pairwise(self.times)]
        inner = [after - before for before, after in zip(self.starts, self.ends, strict=True)]
        return {"milliseconds": typical(whole[:end][-last:]), "model": typical(inner[:end][-last:])}


def typical(seconds: Sequence[float]) -> float:
    """In milliseconds, what nine in ten exceed, since whoever else is at the machine can only add to a time."""
    return 1000 * sorted(seconds)[len(seconds) // 10]


def held_bytes(cache: DynamicCache) -> int:
    """What the layers of a cache hold, whole buffers counted."""
    found: dict[int, int] = {}
    layers: list[Any] = cache.layers
    for layer in layers:
        tensors = getattr(layer, "tensors", None) or {"keys": layer.keys, "values": layer.values}
        storages = [each.untyped_storage() for each in tensors.values()]
        found |= {storage.data_ptr(): storage.nbytes() for storage in storages}
    return sum(found.values())


def filled(length: int) -> tuple[LongspanForCausalLM, DynamicCache]:
    """Softmax attention whose cache holds noise: what keys and values say makes no difference to the time."""
    writer, cache = model("full"), DynamicCache()
    blocks: Any = writer.decoder.layers
    for block in blocks:
        layer = block.attention.new_state()
        layer.update(*torch.randn(2, 1, HEADS, length, WIDTH // HEADS))
        cache.layers.append(layer)
    return writer, cache
