"""Steps of `generate()` compiled by inductor, over a static cache, against steps that are not.

    python benchmarks/compiled_steps.py            # ten minutes on one core
    python benchmarks/compiled_steps.py --quick    # the smaller model behind one prompt, and no page

Random language models write the likeliest tokens behind prompts of two lengths: with transformers' default cache, with
a static one, and with a static one and one compiled graph for all steps. What they write and the logits of it are
compared before anything is timed. The sides take turns; compiling is no part of the times.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import CompileConfig
from transformers.generation import BaseStreamer

from decoding import model, prompt, typical, write
from longspan.models import LongspanForCausalLM
from measure import check_close, machine, table, write_page

SIZES = {"2 layers, 64 wide": (64, 4, 2), "6 layers, 320 wide": (320, 5, 6)}
ATTENTION: dict[str, Any] = {"full": "full", "window of 256": {"mechanism": "longformer", "left_tokens": 256}}
PROMPTS, STEPS, ROUNDS = (448, 3968), 64, 5
DEFAULT, STATIC, COMPILED = "default cache", "static cache", "static cache, compiled"


class Row(NamedTuple):
    """Milliseconds of a token on each side."""

    size: str
    attention: str
    tokens: int
    taken: Mapping[str, float]


def sides(backend: str = "inductor") -> dict[str, dict[str, Any]]:
    """What `generate` is given on each of them."""
    compiled: Any = CompileConfig(fullgraph=True, mode="default", backend=backend)
    compiled._compile_all_devices = True
    static = {"cache_implementation": "static"}
    return {DEFAULT: {}, STATIC: static | {"disable_compile": True}, COMPILED: static | {"compile_config": compiled}}


class Ticks(BaseStreamer):
    """Notes the time at which each token came: that of the processor, or of another clock."""

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        self.clock = clock
        self.times: list[float] = []

    def put(self, value: Tensor) -> None:
        self.times.append(self.clock())

    def end(self) -> None: ...

    @property
    def seconds(self) -> list[float]:
        """From each token to the next, without the prompt and the first, which comes of it."""
        return [after - before for before, after in itertools.pairwise(self.times[1:])]


def agree(writer: LongspanForCausalLM, start: Tensor, steps: int, given: Mapping[str, dict[str, Any]]) -> None:
    """Stop unless all sides write the same tokens, by equal logits but for rounding."""
    more = {"return_dict_in_generate": True, "output_logits": True}
    outputs: dict[str, Any] = {name: write(writer, start, steps, **options, **more) for name, options in given.items()}
    expected = torch.stack(outputs[DEFAULT].logits)
    scale = expected.abs().max()
    for name, output in outputs.items():
        check_close(f"{name}: tokens", output.sequences, outputs[DEFAULT].sequences, 0)
        check_close(f"{name}: logits", torch.stack(output.logits) / scale, expected / scale, 1e-4)


def timed(size: str, attention: str, tokens: int, *, steps: int = STEPS, rounds: int = ROUNDS, backend: str) -> Row:
    """One model behind one prompt."""
    width, heads, layers = SIZES[size]
    writer, start, given = model(ATTENTION[attention], width, heads, layers), prompt(tokens), sides(backend)
    torch.compiler.reset()
    agree(writer, start, steps, given)
    seconds: dict[str, list[float]] = {name: [] for name in given}
    for _ in range(rounds):
        for name, options in given.items():
            ticks = Ticks()
            write(writer, start, steps, streamer=ticks, **options)
            seconds[name] += ticks.seconds
    return Row(size, attention, tokens, {name: typical(found) for name, found in seconds.items()})


def report(rows: list[Row]) -> list[str]:
    """The page's parts."""
    names = (DEFAULT, STATIC, COMPILED)
    lines = [
        [
            row.size,
            row.attention,
            f"{row.tokens:,}",
            *(f"{row.taken[name]:.2f}" for name in names),
            f"{row.taken[DEFAULT] / row.taken[COMPILED]:.2f}",
        ]
        for row in rows
    ]
    return [
        f"{machine()}, which did other work as well.",
        f"Language models with random weights, float32, one row, write {STEPS} tokens with greedy choice behind a "
        "prompt, by `generate()`; a static cache has room for the prompt and these. The whole time of a token, with "
        "what `generate()` does besides, in processor time of one thread; the sides took turns "
        f"{ROUNDS} times, and nine in ten of the tokens took longer than what is shown. All sides wrote the same "
        "tokens, and their logits differ by less than 0.01 % of the largest. One graph, which inductor made, serves "
        "all steps of a row of the table.",
        "## Milliseconds for one token",
        table(["model", "attention", "tokens before", *names, "default / compiled"], lines),
    ]


def main() -> None:
    """Measure and write `results/compiled-steps.md`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the smaller model behind one prompt, and write no page")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    rows = []
    for size, tokens, attention in itertools.product(SIZES, PROMPTS, ATTENTION):
        if not quick or (size == next(iter(SIZES)) and tokens == PROMPTS[0]):
            rows.append(timed(size, attention, tokens, backend="inductor"))
            print(
                size, attention, tokens, *(f"{each:.2f} ms" for each in rows[-1].taken.values()), sep="\t", flush=True
            )
    if not quick:
        print(write_page("compiled-steps", "Compiled steps of decoding", report(rows)))


if __name__ == "__main__":
    main()
