"""One thread against one for each core where another process wants the same cores: `longspan summarize` on the text of
`make demo`, on a quiet machine and beside one busy process.

    python benchmarks/crowded.py [--times 1 10] [--rounds 3]    # without OMP_NUM_THREADS

Several threads are what PyTorch begins with, and what its user gets who sets OMP_NUM_THREADS; one is what the bundled
models take by themselves. Both sides pick the same sentences, or no speed is told. The page is `results/crowded.md`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from longspan_documents.cli.demo import SENTENCES, python_reference
from longspan_documents.inference.encoders import CHOSEN_BY
from longspan_documents.inference.summarize import load_summarizer
from longspan_documents.text.reading import document_of
from measure import machine, table, write_page

SIDES = ("several", "one")


def main() -> None:
    """Compare, time and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--times", type=int, nargs="+", default=[1, 10], help="copies of the text")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    threads = torch.get_num_threads()
    if threads == 1 or any(os.environ.get(name) for name in CHOSEN_BY):
        raise SystemExit(f"the number of threads is chosen ({threads}); unset {' and '.join(CHOSEN_BY)}")
    rows = []
    load_summarizer().summarize(document_of(python_reference()[:5000]))  # what is loaded and made once
    for times in options.times:
        document = document_of("\n\n".join([python_reference()] * times))
        for name, beside in (("as it is", 0), ("beside a busy process", 1)):
            with busy(beside):
                rows.append([name, *measured(document, options.rounds)])
            print(*rows[-1], sep=" | ", flush=True)
    head = [
        "machine",
        "tokens",
        f"{threads} threads, s",
        "one, s",
        "ratio",
        f"{threads} threads, processor s",
        "one",
        "ratio",
        "load",
    ]
    how = (
        f"`longspan.summarize`, {SENTENCES} sentences of the Python language reference, by turns in one process, "
        f"medians of {options.rounds}; the sentences were the same. Seconds by the clock, and of the processor for "
        "this process alone; the load is what the system says of the last minute, other work on a shared machine "
        f"and this process included. Made by `python benchmarks/crowded.py` on {machine()}."
    )
    write_page("crowded", "Threads on a crowded machine", [how, table(head, rows)])


def measured(document: Any, rounds: int) -> list[str]:
    """Tokens; seconds by the clock of both sides and their ratio, and of the processor; the load of the machine."""
    clock: dict[str, list[float]] = {side: [] for side in SIDES}
    processor: dict[str, list[float]] = {side: [] for side in SIDES}
    picked, loads = [], []
    for _ in range(rounds):
        for side in SIDES:
            begin = time.perf_counter(), time.process_time()
            picked.append(summary(document, side))
            clock[side].append(time.perf_counter() - begin[0])
            processor[side].append(time.process_time() - begin[1])
            loads.append(os.getloadavg()[0])
    if any(one.sentences != picked[0].sentences for one in picked):
        raise SystemExit("the sides pick different sentences; no speed is told")
    cells = []
    for seconds in (clock, processor):
        several, one = (statistics.median(seconds[side]) for side in SIDES)
        cells += [f"{several:.1f}", f"{one:.1f}", f"{several / one:.2f}"]
    return [f"{picked[0].tokens:,}", *cells, f"{statistics.mean(loads):.1f}"]


def summary(document: Any, side: str) -> Any:
    """The summary with as many threads as PyTorch begins with, as if its user had chosen them, or with one."""
    name = CHOSEN_BY[0]
    if side == "several":
        os.environ[name] = str(torch.get_num_threads())
    try:
        return load_summarizer().summarize(document, SENTENCES)
    finally:
        os.environ.pop(name, None)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many other processes that always have something to do."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


if __name__ == "__main__":
    main()
