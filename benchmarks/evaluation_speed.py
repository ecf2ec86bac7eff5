"""Evaluation of a language model: a window that moves by one token against segments behind a memory.

    python benchmarks/evaluation_speed.py            # a minute on one core
    python benchmarks/evaluation_speed.py --quick    # tiny sizes, and no page

A model without a memory that predicts every token from the L tokens before it reads all of them again for each; one
with a memory (Dai et al. 2019, "Transformer-XL", arXiv 1901.02860, section 4.6, table 9) reads a segment once, behind
states that it kept. Both have the same sizes, random weights, and see L tokens. Before anything is timed, segments
behind a memory that forgets nothing are compared with one pass over the text.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import DynamicCache

from longspan import LongspanConfig, LongspanForCausalLM
from measure import check_close, machine, paired_seconds, table, write_page

PUBLISHED = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
"""Attention length → how many times as long the model without a memory took, on one GPU (table 9)."""
SEGMENT, WIDTH, HEADS, LAYERS = 128, 512, 8, 2
VOCABULARY = 256


def model(memory: int | None, *, width: int = WIDTH, layers: int = LAYERS) -> LongspanForCausalLM:
    """With a memory and relative positions, or with neither and sinusoidal ones."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": width, "num_hidden_layers": layers, "dropout": 0.0}
    sizes |= {"num_attention_heads": HEADS, "intermediate_size": 4 * width, "activation_function": "relu"}
    if memory is None:
        config = LongspanConfig(attention="full", position_embedding="sinusoidal", **sizes)
    else:
        attention = {"mechanism": "full", "positions": "relative", "bias": False}
        stack = {"stack": "recurrent", "memory_tokens": memory}
        config = LongspanConfig(attention=attention, stack=stack, position_embedding="none", **sizes)
    return LongspanForCausalLM(config).eval()


def text(tokens: int) -> torch.Tensor:
    """Random tokens `(1, T)`."""
    return torch.randint(3, VOCABULARY, (1, tokens), generator=torch.Generator().manual_seed(tokens))


def window_step(length: int, **sizes: int) -> Callable[[], Any]:
    """One predicted token of the model without a memory: a pass over the window before it."""
    reader, ids = model(None, **sizes), text(length)
    return lambda: reader(ids, use_cache=False, logits_to_keep=1).logits


def segment_step(length: int, segment: int, **sizes: int) -> Callable[[], Any]:
    """A segment of the model with a memory, whose last token sees `length` tokens and all others as many or fewer; the
    memory is full, and stays so however often it is run."""
    reader, cache = model(length - segment, **sizes), DynamicCache()
    reader(text(length), cache=cache, use_cache=True, logits_to_keep=1)
    ids = text(segment)
    return lambda: reader(ids, cache=cache, use_cache=True).logits


def agree(length: int, segment: int, **sizes: int) -> float:
    """Stop unless segments behind a memory as long as the text equal one pass over it; the largest difference."""
    reader, cache, ids = model(length, **sizes), DynamicCache(), text(length)
    parts = [reader(part, cache=cache, use_cache=True).logits for part in ids.split(segment, 1)]
    return check_close(
        "segments and one pass", torch.cat(parts, 1), reader(ids, use_cache=False).logits, tolerance=1e-3
    )


@torch.no_grad()
def measure(lengths: Sequence[int], segment: int, rounds: int, **sizes: int) -> list[dict[str, float]]:
    """Milliseconds for a token on both sides, by attention length."""
    rows = []
    for length in lengths:
        agree(min(length, 1000), segment, **sizes)
        sides = {"window": window_step(length, **sizes), "segments": segment_step(length, segment, **sizes)}
        seconds = paired_seconds(sides, rounds=rounds, clock=time.process_time)
        row = {"length": length, "window": 1e3 * seconds["window"], "segments": 1e3 * seconds["segments"] / segment}
        rows.append(row | {"ratio": row["window"] / row["segments"]})
        print(rows[-1], flush=True)
    return rows


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the line through them: how much a ratio grows with each token of attention length."""
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def report(rows: Sequence[dict[str, float]]) -> list[str]:
    """The page's parts."""
    ours, theirs = slope([(row["length"], row["ratio"]) for row in rows]), slope(list(PUBLISHED.items()))
    last = rows[-1]
    cells = [
        [
            f"{row['length']:,.0f}",
            f"{row['window']:,.0f}",
            f"{row['segments']:.2f}",
            f"{row['ratio']:,.0f}",
            f"{PUBLISHED[int(row['length'])]:,}",
            f"{row['ratio'] / row['length']:.2f}",
            f"{PUBLISHED[int(row['length'])] / row['length']:.2f}",
        ]
        for row in rows
    ]
    header = ["attention length", "window, ms for a token", "segments, ms for a token", "ratio", "published ratio"]
    return [
        f"{machine()}, which did other work as well.",
        f"Two language models of {LAYERS} layers, {WIDTH} wide, {HEADS} heads, float32, random weights. *Window*: no "
        "memory, sinusoidal positions; every predicted token is a pass over the L tokens before it, as such models "
        "were evaluated. *Segments*: the stack `recurrent` with relative positions; segments of "
        f"{SEGMENT} tokens behind a memory of L - {SEGMENT}, kept as keys and values. Processor time of one thread, "
        "the median of turns. Segments behind a memory that forgets nothing were first compared with one pass over "
        "the text.",
        f"**What it shows.** At {last['length']:,.0f} tokens a predicted token takes {last['ratio']:,.0f} times as "
        f"long without a memory (published: {PUBLISHED[int(last['length'])]:,}, another model on a GPU). The ratio "
        f"grows by {ours:.2f} with each token of attention length, the published one by {theirs:.2f}: a window reads "
        "L tokens for one that it predicts, a segment one. Ours grows more slowly the longer the window. A token of a "
        "segment sees almost L keys as well, by two products in tiles instead of one in a fused kernel, and behind "
        f"long memories that is most of its time: from {rows[0]['length']:,.0f} to {last['length']:,.0f} tokens it "
        f"takes {last['segments'] / rows[0]['segments']:.1f} times as long, a pass of the window "
        f"{last['window'] / rows[0]['window']:.1f} times, for {last['length'] / rows[0]['length']:.1f} times the "
        "tokens.",
        table([*header, "ratio / L", "published ratio / L"], cells),
        "A text must not be read by windows that move by one token to be read well: windows that move by half their "
        "length cost two passes, and tell each token half as much or more. The ratio is about the published way of "
        "evaluating, not about what a model without a memory must cost.",
    ]


def main() -> None:
    """Measure and write `results/evaluation-speed.md`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, and no page")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    if quick:
        measure([80, 180], 16, 3, width=32, layers=2)
        return
    rows = measure(list(PUBLISHED), SEGMENT, 3)
    print(write_page("evaluation-speed", "Evaluation with and without a memory", report(rows)))


if __name__ == "__main__":
    main()
