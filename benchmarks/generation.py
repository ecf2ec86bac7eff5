"""Decoding to 100,000 tokens: what a token costs and what is kept for it, by mechanism.

    python benchmarks/generation.py            # half an hour on one core; what is finished is not done again
    python benchmarks/generation.py --quick    # the same up to 3,000 tokens, and no page

A tiny language model with random weights writes by `generate()`, token by token; its sinusoidal positions have no end.
`linear` (Katharopoulos et al. 2020, arXiv 2006.16236, section 3.4), `performer` and a window keep a state of constant
size, and write every token from the prompt to the last mark. Softmax attention keeps keys and values, a cache that is
filled with noise up to each mark, or nothing at all, as in that paper's comparison. Before anything is timed, text
written in steps is compared with one pass over all of it. Rows stand in `results/generation.jsonl`; remove those that
are to be measured anew.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from curves import Curve, Panel, draw_curves
from decoding import HEADS, LAYERS, PROMPT, WIDTH, Clock, filled, held_bytes, model, prompt, typical, write
from measure import RESULTS, check_close, machine, table, write_page

WINDOW = 256
LAST, STEPS, PASSES = 1000, 50, 3
"""Tokens of which the fastest tenth tell a token's time: where all are written, behind a filled cache, without one."""
SIDES: dict[str, Any] = {
    "linear": "linear",
    "performer": "performer",
    f"window of {WINDOW}": {"mechanism": "longformer", "left_tokens": WINDOW},
}
"""Those that write every token."""
CACHED, UNCACHED = "softmax, cached", "softmax, no cache"
LONGEST_UNCACHED = 10_000


def written(name: str, marks: Sequence[int]) -> list[dict[str, Any]]:
    """One text from the prompt to the last mark."""
    writer, cache = model(SIDES[name]), DynamicCache()
    clock = Clock(writer, cache, marks)
    write(writer, prompt(), marks[-1] - PROMPT + 1, cache=cache, streamer=clock)
    return [row(name, mark, clock.taken(LAST, mark), clock.states[mark], process=clock.process[mark]) for mark in marks]


def cached(mark: int) -> dict[str, Any]:
    """A few tokens behind so many."""
    writer, cache = filled(mark)
    clock, held = Clock(writer), held_bytes(cache)
    write(writer, prompt(mark + 1), STEPS + 2, cache=cache, streamer=clock)
    return row(CACHED, mark, clock.taken(STEPS), held)


def uncached(mark: int) -> dict[str, Any]:
    """A few tokens, each with a pass over everything before it."""
    writer = model("full")
    clock = Clock(writer)
    write(writer, prompt(mark), PASSES + 1, use_cache=False, streamer=clock)
    return row(UNCACHED, mark, clock.taken(PASSES), 0)


@torch.no_grad()
def turns(marks: Sequence[int], steps: int = 400) -> dict[int, float]:
    """The model's time for a token with `linear` behind texts of these lengths, in turns, and without a mask."""
    writer, caches = model("linear"), {mark: DynamicCache() for mark in marks}
    for mark, cache in caches.items():
        writer(prompt(mark), cache=cache, logits_to_keep=1)
    runs: dict[int, list[float]] = {mark: [] for mark in marks}
    for _ in range(steps):
        for mark, cache in caches.items():
            start = time.process_time()
            writer(prompt(1), cache=cache)
            runs[mark].append(time.process_time() - start)
    return {mark: typical(seconds) for mark, seconds in runs.items()}


def row(name: str, tokens: int, taken: Mapping[str, float], held: int, **more: Any) -> dict[str, Any]:
    """What is kept of a measurement."""
    return {"side": name, "tokens": tokens, **taken, "bytes": held, **more, "machine": machine()}


def agree(attention: Any, length: int) -> None:
    """Stop unless each token written with a state is the likeliest of a pass without one, but for rounding."""
    writer = model(attention)
    ids = write(writer, prompt(), length)
    with torch.no_grad():
        logits = writer(ids[:, :-1]).logits[:, PROMPT - 1 :]
    chosen = logits.gather(-1, ids[:, PROMPT:, None])[..., 0]
    check_close(f"{attention}: in steps and in one pass", chosen, logits.amax(-1), 1e-3)


def measure(marks: Sequence[int], file: Path | None, sides: Sequence[str]) -> list[dict[str, Any]]:
    """Every row of some sides, softmax in both forms at once; those that a file has are taken from there, and new ones
    are added to it."""
    rows: list[dict[str, Any]] = []
    if file is not None and file.is_file():
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]

    def add(found: list[dict[str, Any]]) -> None:
        rows.extend(found)
        for each in found:
            print(each["side"], each["tokens"], f"{each['model']:.2f} ms", each["bytes"], sep="\t", flush=True)
        if file is not None:
            with file.open("a", encoding="utf-8") as lines:
                lines.writelines(json.dumps(each) + "\n" for each in found)

    def has(name: str, mark: int) -> bool:
        return any(each["side"] == name and each["tokens"] == mark for each in rows)

    for mark in marks if CACHED in sides else ():
        if not has(CACHED, mark):
            add([cached(mark)])
        if mark <= LONGEST_UNCACHED and not has(UNCACHED, mark):
            add([uncached(mark)])
    for name in SIDES:
        if name in sides and not all(has(name, mark) for mark in marks):
            add(written(name, marks))
    return rows


def growth(rows: Sequence[Mapping[str, Any]], name: str, what: str = "model", shortest: int = 0) -> float:
    """The exponent with which something grows with the length: the slope of a line through the logarithms."""
    points = [
        (math.log(each["tokens"]), math.log(each[what]))
        for each in rows
        if each["side"] == name and each["tokens"] >= shortest
    ]
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def cells(rows: Sequence[Mapping[str, Any]], marks: Sequence[int], what: str, form: str) -> str:
    """A table with a row for each length and a column for each side that has such numbers."""
    names = [name for name in (*SIDES, CACHED, UNCACHED) if any(each[what] for each in rows if each["side"] == name)]
    found = {(each["side"], each["tokens"]): format(each[what], form) for each in rows}
    lines = [[f"{mark:,}", *(found.get((name, mark), "not run") for name in names)] for mark in marks]
    return table(["tokens", *names], lines)


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Time and state, side by side."""
    names = (*SIDES, CACHED, UNCACHED)

    def curves(what: str, divisor: float) -> list[Curve]:
        found = [(name, [(r["tokens"], r[what] / divisor) for r in rows if r["side"] == name]) for name in names]
        return [Curve(name, points) for name, points in found]

    panels = [
        Panel("Time of the model for one token, ms", "tokens before it", curves("model", 1)),
        Panel("State, KiB", "tokens before it", curves("bytes", 1024)),
    ]
    draw_curves(panels, path)


def report(rows: Sequence[Mapping[str, Any]], marks: Sequence[int], in_turns: Mapping[int, float]) -> list[str]:
    """The page's parts."""
    process = {(each["side"], each["tokens"]): each["process"] for each in rows if "process" in each}
    grown = ", ".join(f"{name} {(process[name, marks[-1]] - process[name, marks[0]]) / 2**20:.1f}" for name in SIDES)
    flat = ", ".join(f"{name} {growth(rows, name):+.2f}" for name in SIDES)
    return [
        f"{rows[-1]['machine']}, which did other work as well.",
        f"A language model of {LAYERS} layers, {WIDTH} wide, {HEADS} heads, float32, writes by `generate()` with "
        f"greedy choice behind a prompt of {PROMPT} tokens. `linear`, `performer` and causal `longformer` with "
        f"{WINDOW} tokens to the left write every one of {marks[-1]:,} tokens; the {LAST:,} before each length are "
        f"timed. Softmax is `full`: with its cache, filled with noise up to each length and then used for {STEPS} "
        f"tokens, and without one, every token a pass over all before it, {PASSES} of them, up to "
        f"{LONGEST_UNCACHED:,} tokens. Processor time of one thread; nine in ten of the tokens took longer than what "
        "is shown, since others at the machine can only add to it. Each token written in steps was first compared "
        "with one pass over all of the text.",
        f"**What it shows.** {shown(rows, marks[-1], max(m for m in marks if m <= LONGEST_UNCACHED))}",
        "![time for a token and size of the state, by length](generation.png)",
        "## Milliseconds for one token, in the model",
        cells(rows, marks, "model", ".2f"),
        "Long runs meet a machine that is now more, now less busy with other work. In turns, and without a mask that "
        "has to be read, a token of `linear` took "
        f"{' and '.join(f'{value:.2f} ms behind {mark:,} tokens' for mark, value in in_turns.items())}.",
        f"Exponents of growth with the length (0 is constant, 1 linear, 2 quadratic), fitted over all rows: {flat}; "
        f"{CACHED}, from 10,000 tokens on, {growth(rows, CACHED, shortest=10_000):+.2f}; {UNCACHED}, from 3,000 on, "
        f"{growth(rows, UNCACHED, shortest=3000):+.2f}.",
        "## Milliseconds for one token, with what `generate()` does besides",
        cells(rows, marks, "milliseconds", ".2f"),
        "transformers copies the text, its mask and its positions for every token that is appended, 24 bytes for each "
        "token so far, whatever the model is.",
        "## Bytes of the states, counted",
        cells(rows, marks, "bytes", ",d"),
        f"By hand for `linear`: {LAYERS} layers · {HEADS} heads · {WIDTH // HEADS} · ({WIDTH // HEADS} + 1) numbers of "
        f"4 bytes; for softmax {LAYERS} layers · 2 · {WIDTH} numbers of 4 bytes for each token. The whole process, "
        "which also holds the text and a hundred bytes of notes for each token, grew from "
        f"{marks[0]:,} to {marks[-1]:,} tokens by, MiB: {grown}.",
    ]


def shown(rows: Sequence[Mapping[str, Any]], last: int, long: int) -> str:
    """Two sentences, at the last length and at the longest that goes without a cache."""
    time_of = {(each["side"], each["tokens"]): each["model"] for each in rows}
    held = next(each["bytes"] for each in rows if each["side"] == "linear")
    ahead = time_of[CACHED, last] / time_of["linear", last]
    cache, total = (time_of[UNCACHED, long] / time_of[name, long] for name in (CACHED, "linear"))
    return (
        f"With `linear` a token takes as long behind {last:,} tokens as behind a thousand, and the same {held:,} "
        f"bytes, while softmax with a cache takes {ahead:.0f} times as long there. Most of what the paper reports, up "
        f"to 4,000 times, is for the missing cache of its softmax: behind {long:,} tokens `linear` is {total:,.0f} "
        f"times as fast as softmax without one, of which the cache alone is worth {cache:,.0f}."
    )


def main() -> None:
    """Measure and write `results/generation.md`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="up to 3,000 tokens, and write no page")
    parser.add_argument("--only", choices=[*SIDES, CACHED], help="measure this one alone, and write no page")
    options = parser.parse_args()
    quick = options.quick
    torch.set_num_threads(1)
    marks = [1000, 3000] if quick else [1000, 3000, 10_000, 30_000, 100_000]
    for attention in (*SIDES.values(), "full"):
        agree(attention, 400 if quick else 1500)
    sides = (options.only,) if options.only else (CACHED, *SIDES)
    rows = measure(marks, None if quick else RESULTS / "generation.jsonl", sides)
    rows = [each for each in rows if each["tokens"] in marks]
    if quick or options.only:
        return
    draw(rows, RESULTS / "generation.png")
    print(
        write_page("generation", f"Decoding to {marks[-1]:,} tokens", report(rows, marks, turns((marks[0], marks[-1]))))
    )


if __name__ == "__main__":
    main()
