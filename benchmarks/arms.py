"""What comparisons of models trained from scratch share: arms at equal steps over some seeds, kept runs and a table.

A finished run is a line of a JSON Lines file, and is skipped when the script is started again; one that was killed
goes on where it was. Processes with different `--seeds` may run side by side.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

import longspan
from longspan.tasks.summaries.base import texts_of
from longspan.tasks.summaries.summarization import Summarization
from longspan.training.evaluate import evaluate
from longspan.training.recipe import Recipe
from longspan.training.sections import Data
from longspan.training.tokenizers import train_tokenizer
from longspan.training.train import load_rows, train
from measure import add_run, reading
from measure import finished as finished  # for the benchmarks

RESULTS = Path(__file__).parent / "results"
MEASURES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def options(about: str, work: str) -> argparse.Namespace:
    """Folder for checkpoints, steps and seeds."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--work", type=Path, default=Path(work), help="folder for checkpoints")
    parser.add_argument("--steps", type=int, default=240, help="updates of the weights in every run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    return parser.parse_args()


def shared_tokenizer(work: Path, data: Data) -> Path:
    """One vocabulary for all runs."""
    folder = work / "tokenizer"
    if not (folder / "tokenizer_config.json").is_file():
        train_tokenizer(texts_of(load_rows(Summarization(), data, "train")[:600]), 2000).save_pretrained(folder)
    return folder


def is_finished(file: Path, arm: str, seed: int) -> bool:
    """Whether this run is done."""
    return any(row["arm"] == arm and row["seed"] == seed for row in finished(file))


def run_summarizer(file: Path, arm: str, seed: int, recipe: Recipe, folder: Path, source: str, summaries: int) -> None:
    """Train a summariser, or go on, score the first summaries of a source, and add the line."""
    resumed = folder.exists()
    began, cpu = time.monotonic(), time.process_time()
    trained = train(recipe, folder, resume=True)
    middle = time.process_time()
    scored = evaluate(trained.folder, source, limit=summaries)
    row = {
        "arm": arm,
        "seed": seed,
        "steps": recipe.optimisation.steps,
        "bits": trained.best["eval_loss"] / math.log(2),
        "scores": scored.scores,
        "flavour": scored.report["flavour"],
        "train_cpu_seconds": None if resumed else round(middle - cpu, 1),
        "seconds": round(time.monotonic() - began, 1),
    }
    add_run(file, row)


def spread(values: Sequence[float], digits: int) -> str:
    """Mean and standard deviation; of a single value itself."""
    mean = f"{statistics.mean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def seeds_of(rows: Sequence[dict[str, Any]]) -> str:
    """The seeds of some runs, in words."""
    return ", ".join(map(str, sorted({row["seed"] for row in rows})))


def table(
    rows: Sequence[dict[str, Any]], arms: Iterable[str], first: str, published: dict[str, Sequence[float]]
) -> list[str]:
    """A line for each arm: validation loss, ROUGE, time, and the published ROUGE-1, -2, -L; `first` heads the arms."""
    lines = [
        f"| {first} | bits per token ↓ | bits, each seed | ROUGE-1 | ROUGE-2 | ROUGE-L | ROUGE-Lsum "
        "| CPU s, training | published R-1 / R-2 / R-L |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for arm in arms:
        runs = sorted((row for row in rows if row["arm"] == arm), key=lambda row: row["seed"])
        if not runs:
            continue
        bits = [row["bits"] for row in runs]
        rouge = [spread([row["scores"][name] for row in runs], 2) for name in MEASURES]
        measured = [row["train_cpu_seconds"] for row in runs if row["train_cpu_seconds"]]
        seconds = f"{statistics.mean(measured):.0f}" if measured else "–"
        each = " ".join(f"{value:.3f}" for value in bits)
        cells = [arm, spread(bits, 3), each, *rouge, seconds, " / ".join(map(str, published[arm]))]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def paired(rows: Sequence[dict[str, Any]], arms: Iterable[str], base: str) -> list[str]:
    """Differences to one arm within each seed: the documents and their order cancel."""
    bits = {(row["arm"], row["seed"]): row["bits"] for row in rows}
    lines = [f"Bits per token minus those of `{base}` with the same seed (below zero is better):", ""]
    for arm in arms:
        found = [bits[arm, seed] - bits[base, seed] for name, seed in bits if name == arm and (base, seed) in bits]
        if found and arm != base:
            lines.append(f"- {arm}: {spread(found, 3)} ({', '.join(f'{value:+.3f}' for value in found)})")
    return lines


def machine() -> list[str]:
    """The machine, the versions and the command."""
    return [
        f"Machine: {platform.machine()}, {os.cpu_count()} CPUs, {torch.get_num_threads()} thread; Python "
        f"{platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}, longspan "
        f"{longspan.__version__}. CPU seconds were measured beside other work on the machine.",
        "",
        f"Command: `OMP_NUM_THREADS={torch.get_num_threads()} python {' '.join(sys.argv)}`",
    ]


def write(file: Path, report: str) -> None:
    """Write the page; what a person wrote about the numbers stays."""
    words = reading(file)
    file.write_text("\n".join([report, *words, ""]) if words else report, encoding="utf-8")
