"""Every mechanism against full attention, at short and long inputs: `python benchmarks/never_slower.py [--only NAME]`.

One layer with its projections and default options, one row, float32, one thread, both ways and causal where the
mechanism is, a forward pass and one with its gradients. The sides take turns; each has its best processor time. A ratio
above 1 means slower than full attention; what is more than 5 % slower has a mark. With --write the tables go to
`results/never-slower.md`.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from layers import document, step
from longspan.attention import MECHANISMS
from measure import machine, table, write_page

SHAPES = ((256, 4), (512, 8))
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
LIMIT = 1.05
TURN = 0.03
"""Seconds that a side runs in one turn, at least."""


def best_seconds(sides: dict[str, Callable[[], None]], *, turns: int) -> dict[str, float]:
    """The best processor seconds of one run of each side, the sides taking turns."""
    best: dict[str, float] = dict.fromkeys(sides, math.inf)
    times = {}
    for name, run in sides.items():
        run()
        times[name] = max(1, math.ceil(TURN / max(1e-5, taken(run))))
    for _ in range(turns):
        for name, run in sides.items():
            best[name] = min(best[name], *(taken(run) for _ in range(times[name])))
    return best


def taken(run: Callable[[], None]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def layer(name: str, length: int, width: int, heads: int, *, causal: bool) -> torch.nn.Module:
    """A layer with the options that a model of this length has by default."""
    torch.manual_seed(0)
    kind = MECHANISMS[name]
    return kind(**kind.defaults_for(length, {})).build(width=width, heads=heads, causal=causal)


def ratios(name: str, length: int, width: int, heads: int, *, causal: bool, turns: int) -> tuple[float, ...]:
    """Milliseconds of full attention and of a mechanism, forward, then with gradients."""
    hidden, found = document(length, width, torch.float32), []
    for backward in (False, True):
        sides = {}
        for each in ("full", name):
            module = layer(each, length, width, heads, causal=causal)
            sides[each] = partial(step, module, hidden, backward=backward)
        seconds = best_seconds(sides, turns=turns)
        found += [seconds["full"] * 1e3, seconds[name] * 1e3]
    return tuple(found)


def forms(names: list[str], kinds: list[str]) -> Iterator[tuple[str, bool]]:
    for name in names:
        for causal in (False, True):
            served = MECHANISMS[name].causal if causal else MECHANISMS[name].bidirectional
            if served and ("causal" if causal else "both") in kinds:
                yield name, causal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[name for name in MECHANISMS if name != "full"])
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--widths", nargs="+", type=int, default=[width for width, _ in SHAPES])
    parser.add_argument("--kinds", nargs="+", choices=["both", "causal"], default=["both", "causal"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write the page of results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    parts = []
    for width, heads in (shape for shape in SHAPES if shape[0] in options.widths):
        for backward, kind in ((0, "forward"), (1, "forward and backward")):
            parts.append((f"Width {width}, {heads} heads, {kind}: times of full attention.", backward, []))
        for name, causal in forms(options.only or [each for each in MECHANISMS if each != "full"], options.kinds):
            lines: tuple[list[str], list[str]] = ([], [])
            for length in options.lengths:
                times = ratios(name, length, width, heads, causal=causal, turns=options.turns)
                for line, full, own in zip(lines, times[::2], times[1::2], strict=True):
                    line.append(f"{own / full:.2f}{' !' if own > LIMIT * full else ''} ({own:.1f} ms)")
            label = name + " causal" * causal
            for line, (title, _, rows) in zip(lines, parts[-2:], strict=True):
                rows.append([label, *line])
                print(title.split(":")[0], "|", " | ".join(rows[-1]), flush=True)
    shown = [part for title, _, rows in parts for part in (title, table(["", *map(str, options.lengths)], rows))]
    print(*shown, sep="\n\n")
    if options.write:
        notes = f"{machine('cpu')}, one thread. Best of {options.turns} turns; a mark stands where a layer is slower."
        print(write_page("never-slower", "Layers against full attention", [notes, *shown]))


if __name__ == "__main__":
    main()
