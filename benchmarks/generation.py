"""Decoding to 100,000 tokens: a window's state and its time per token stay as they are, full attention's grow.

    python benchmarks/generation.py            # a few minutes on one core
    python benchmarks/generation.py --quick    # the same up to 4,000 tokens

A tiny language model with random weights writes by `generate()`, token by token; its sinusoidal positions have no end.
Before anything is timed, its text is compared with that of a pass over everything, without a state, at every step.
"""

from __future__ import annotations

import argparse
import itertools
import re
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.generation import BaseStreamer

from longspan.models import LongspanConfig, LongspanForCausalLM
from measure import machine, table, write_page

WINDOW = 256
LAST = 300
"""The time per token is the median over so many tokens before a mark."""


def model(attention: Any) -> LongspanForCausalLM:
    """Two layers, 64 wide, 256 tokens: small enough to write 100,000 tokens in minutes."""
    torch.manual_seed(0)
    config = LongspanConfig(
        vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256,
        attention=attention, position_embedding="sinusoidal", init_std=0.3, eos_token_id=None,
    )  # fmt: skip
    return LongspanForCausalLM(config).eval()


def write(writer: LongspanForCausalLM, prompt: Tensor, count: int, **options: Any) -> Tensor:
    """`count` new tokens behind the prompt `(1, T)`, the likeliest each time."""
    mask = torch.ones_like(prompt)
    return writer.generate(
        prompt, attention_mask=mask, do_sample=False, max_new_tokens=count, eos_token_id=None, **options
    )


class Clock(BaseStreamer):
    """Notes the processor time of every token, and at some of them what the states hold."""

    def __init__(self, cache: DynamicCache, marks: list[int]) -> None:
        self.cache, self.marks = cache, marks
        self.times: list[float] = []
        self.states: dict[int, int] = {}
        self.process: dict[int, int] = {}

    def put(self, value: Tensor) -> None:
        self.times.append(time.process_time())
        if len(self.times) in self.marks:
            self.states[len(self.times)] = held_bytes(self.cache)
            self.process[len(self.times)] = resident_bytes()

    def end(self) -> None: ...

    def milliseconds(self, mark: int) -> float:
        """Median time per token over the `LAST` before a mark."""
        times = self.times[mark - LAST : mark]
        return 1000 * statistics.median(after - before for before, after in itertools.pairwise(times))


def held_bytes(cache: DynamicCache) -> int:
    """What the layers of a cache hold, whole buffers counted."""
    layers: list[Any] = cache.layers
    return sum(each.untyped_storage().nbytes() for layer in layers for each in (layer.keys, layer.values))


def resident_bytes() -> int:
    """Memory of this process, as Linux counts it."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def window_side(marks: list[int]) -> Clock:
    """One text from the first token to the last mark."""
    cache = DynamicCache()
    clock = Clock(cache, marks)
    window = {"mechanism": "longformer", "left_tokens": WINDOW}
    write(model(window), torch.zeros(1, 1, dtype=torch.int64), marks[-1], past_key_values=cache, streamer=clock)
    return clock


def full_side(mark: int) -> tuple[float, int]:
    """Milliseconds per token and bytes of the states at a mark, up to which the cache is filled with noise: what keys
    and values say makes no difference to the time."""
    writer, cache = model("full"), DynamicCache()
    for block in writer.decoder.layers:
        layer = block.attention.new_state()
        layer.update(torch.randn(1, 4, mark - 1, 16), torch.randn(1, 4, mark - 1, 16))
        cache.layers.append(layer)
    clock = Clock(cache, [])
    write(writer, torch.zeros(1, mark, dtype=torch.int64), 40, past_key_values=cache, streamer=clock)
    steps = itertools.pairwise(clock.times[2:])
    return 1000 * statistics.median(after - before for before, after in steps), held_bytes(cache)


def agree(length: int) -> None:
    """Stop unless text written with states is the text written without, for the window and for full attention."""
    for attention in ({"mechanism": "longformer", "left_tokens": WINDOW}, "full"):
        writer, prompt = model(attention), torch.zeros(1, 1, dtype=torch.int64)
        written = write(writer, prompt, length)
        with torch.no_grad():
            expected = writer(written[:, :-1]).logits.argmax(-1)
        if not torch.equal(written[:, 1:], expected):
            raise SystemExit(f"{attention}: text written in steps is not that of one pass; nothing is timed")


def main() -> None:
    """Measure and write `results/generation.md`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="up to 4,000 tokens, and write no page")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    marks = [1000, 2000, 4000] if quick else [1000, 10_000, 50_000, 100_000]
    agree(700 if quick else 1500)
    clock = window_side(marks)
    rows = []
    for mark in marks:
        milliseconds, held = full_side(mark)
        window = (clock.milliseconds(mark), clock.states[mark] / 2**20, clock.process[mark] / 2**20)
        rows.append([f"{mark:,}", *(f"{value:.2f}" for value in (*window, milliseconds, held / 2**20))])
        print(*rows[-1], sep="\t", flush=True)
    names = ["tokens", "window: ms per token", "window: states, MiB", "window: process, MiB"]
    lines = table([*names, "full: ms per token", "full: states, MiB"], rows)
    if not quick:
        about = (
            f"A language model of two layers, 64 wide, writes by `generate()` with greedy choice: `window` is causal "
            f"`longformer` with {WINDOW} tokens to the left, `full` is full attention. Processor time, median over "
            f"{LAST} tokens. The process also holds the text so far and its mask, 16 bytes per token. Text written in "
            f"steps is checked against one pass over all of it first."
        )
        print(write_page("generation", "Decoding to 100,000 tokens", [machine(), about, lines]))


if __name__ == "__main__":
    main()
