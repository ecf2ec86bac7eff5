"""What a memory is worth, and relative positions: a small Transformer-XL with and without either, on words and bytes.

    python benchmarks/memory.py --folder /tmp/memory   # a minute of one core each; what is done stays

The recipes `memory-wikitext2` (words) and `memory-novels` (bytes; excerpts) train four models each, which differ in
nothing else: with a memory or reading every segment alone, with relative positions or sinusoids added to the
embeddings. Every seed gives a line of results/memory.jsonl; results/memory.md has means and spreads. Trained models are
also read with longer memories than they learned with.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from longspan.checkpoints.loading import load_model, load_tokenizer
from longspan.data.corpus.sources import Corpus
from longspan.training.recipe_file import load_recipe
from longspan.training.train import train

RESULTS = Path(__file__).parent / "results"
DATA = {"memory-wikitext2": "words of WikiText-2 (a sample)", "memory-novels": "bytes of novels"}
NO_MEMORY = ["model.new.stack.memory_tokens=0"]
# Embeddings and sinusoids are equally large: both start with the same deviation, and a LayerNorm stands behind them.
ABSOLUTE = [
    "model.new.position_embedding=sinusoidal",
    "model.new.sinusoids=two_to_period",
    "model.attention.positions=none",
    "model.new.scale_embedding=false",
    "model.new.embedding_norm=true",
]
FORMS = {
    "memory, relative positions": [],
    "no memory, relative positions": NO_MEMORY,
    "memory, absolute positions": ABSOLUTE,
    "no memory, absolute positions": [*NO_MEMORY, *ABSOLUTE],
}
LONGER = (2, 4)
"""How many times as long memories a model with one is read with, too."""
EXCERPTS = {"train": 400_000, "validation": 40_000}
"""Characters of the novels that are read."""


def excerpts(folder: Path, lengths: dict[str, int] = EXCERPTS) -> list[str]:
    """Changes that replace the novels by their beginnings, in files below the folder."""
    changes = []
    for part, characters in lengths.items():
        file = folder / f"{part}.txt"
        if not file.is_file():
            text = ""
            for found in Corpus(source="pg_novels", split=part).texts():
                text += found
                if len(text) >= characters:
                    break
            file.write_text(text[:characters], encoding="utf-8")
        changes += [f"data.{part}={file}", f"data.{part}_rows=null"]
    return changes


def run(name: str, form: str, seed: int, folder: Path, steps: int | None = None) -> dict[str, Any]:
    """Train one model, for so many steps or those of the recipe; how it guesses the validation text, by its memory."""
    changes = [*FORMS[form], f"optimisation.seed={seed}", "optimisation.report_to=none"]
    if steps is not None:
        changes += [f"optimisation.steps={steps}", f"optimisation.evaluate_every={steps}"]
    changes += excerpts(folder) if name == "memory-novels" else []
    recipe, began = load_recipe(name, changes), time.process_time()
    output = folder / "run"
    shutil.rmtree(output, ignore_errors=True)
    best = train(recipe, output).best
    found = {"data": name, "form": form, "seed": seed, "seconds": round(time.process_time() - began, 1)}
    found |= {"bits": best["eval_bits_per_token"], "perplexity": best["eval_perplexity"], "longer": {}}
    memory = recipe.model.new["stack"]["memory_tokens"]  # pyright: ignore[reportOptionalSubscript]
    for times in LONGER if memory else ():
        found["longer"][times] = read_with(output, recipe, times * memory)
    return found


def read_with(output: Path, recipe: Any, memory: int) -> float:
    """Bits per token of a trained model that is given another memory."""
    task = replace(recipe.task, evaluation=replace(recipe.task.evaluation, memory_tokens=memory))
    rows = [row for source in recipe.data.validation for row in task.read(source, "validation", None)]
    outcome = task.evaluate(load_model(output), load_tokenizer(output), rows, batch_size=1)
    return outcome.scores["bits_per_token"]


def table(lines: list[dict[str, Any]], name: str) -> list[str]:
    """A Markdown table of one data set: mean ± half the range over the seeds."""
    rows = [
        "| | bits per token | perplexity | memory × 2 | memory × 4 | seeds | seconds each |",
        "|---|---|---|---|---|---|---|",
    ]
    for form in FORMS:
        found = [line for line in lines if line["data"] == name and line["form"] == form]
        if not found:
            continue
        longer = [[line["longer"][str(times)] for line in found if line["longer"]] for times in LONGER]
        cells = [spread([line["bits"] for line in found]), spread([line["perplexity"] for line in found], 1)]
        cells += [spread(values) if values else "" for values in longer]
        seconds = statistics.mean(line["seconds"] for line in found)
        rows.append(f"| {form} | {' | '.join(cells)} | {len(found)} | {seconds:.0f} |")
    return rows


def spread(values: list[float], digits: int = 3) -> str:
    """The mean, and half the distance between the largest and the smallest."""
    return f"{statistics.mean(values):.{digits}f} ± {(max(values) - min(values)) / 2:.{digits}f}"


def write(lines: list[dict[str, Any]]) -> None:
    """The page with everything that there is so far."""
    text = ["# Memory and relative positions", ""]
    text += [
        f"`python benchmarks/memory.py`; {platform.machine()} CPU, {torch.get_num_threads()} thread, torch "
        f"{torch.__version__}. Means over seeds ± half the range; processor seconds of training and its evaluation. "
        "Memory × 2 and × 4: the trained model, read with a longer memory than it learned with.",
        "",
    ]
    for name, words in DATA.items():
        text += [f"## `{name}`: {words}", "", *table(lines, name), ""]
    (RESULTS / "memory.md").write_text("\n".join(text), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the runs are made")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="updates of the weights; remove results/memory.jsonl first")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    log = RESULTS / "memory.jsonl"
    done = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    for seed in range(1, arguments.seeds + 1):
        for name in DATA:
            for form in FORMS:
                if any((line["data"], line["form"], line["seed"]) == (name, form, seed) for line in done):
                    continue
                done.append(json.loads(json.dumps(run(name, form, seed, arguments.folder, arguments.steps))))
                with log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(done[-1]) + "\n")
                write(done)


if __name__ == "__main__":
    main()
