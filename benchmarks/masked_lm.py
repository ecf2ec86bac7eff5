"""Masked-language modelling from scratch: one window, Poolingformer's two levels, and the fusion, at equal steps.

    LONGSPAN_DATA=… OMP_NUM_THREADS=1 python benchmarks/masked_lm.py [--work DIR] [--seeds 1 2 3] [--steps 600]

The recipes `small-mlm-*` are trained on the same chunks of novels and papers, each run in a process of its
own, whose peak memory is measured. All are scored on the same validation chunks with the same tokens hidden, whatever
the attention and the seed. Finished runs are kept in `results/masked-lm.jsonl` and skipped when the script is started
again; a run that was killed continues where it was. `results/masked-lm.md` is written after every run.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import resource
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from longspan.checkpoints.loading import load_tokenizer
from longspan.data.corpus.sources import Corpus
from longspan.data.corpus.tokens import TOKENS
from longspan.tasks.language_modelling.masked_lm import MaskedLM
from longspan.training.recipe import Recipe
from longspan.training.recipe_file import load_recipe
from longspan.training.tokenizers import train_tokenizer
from measure import RESULTS, machine, table

ARMS = {
    "window": "window 256",
    "poolingformer": "Poolingformer 128 + 512",
    "fusion": "fusion 128 + 512",
}
"""Recipe `small-mlm-<key>` → its name in the table."""
TRAIN = {"pg_novels": (56, 100_000), "scisummnet": (200, 40_000), "pubmed": (150, 40_000)}
VALIDATION = {"pg_novels": (5, 30_000), "scisummnet": (15, 8_000), "pubmed": (15, 8_000)}
"""Data set → how many documents, and how many characters from the beginning of each."""


def main() -> None:
    """Run what is missing, then write the table."""
    options = _options()
    RESULTS.mkdir(exist_ok=True)
    prepare(options.work)
    done = {(row["arm"], row["seed"], row["steps"]) for row in finished()}
    for seed in options.seeds:
        for arm in options.arms:
            if (arm, seed, options.steps) not in done:
                asked = (arm, seed, options.steps, options.work)
                process = multiprocessing.get_context("spawn").Process(target=run, args=asked)
                process.start()
                process.join()
                if process.exitcode:
                    raise SystemExit(f"{arm}, seed {seed} ended with code {process.exitcode}")
                write(options.work)
    write(options.work)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Masked-language modelling from scratch, three attentions.")
    parser.add_argument("--work", type=Path, default=Path("runs/masked-lm"), help="folder for texts and checkpoints")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=600, help="updates of the weights in every run")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    return parser.parse_args()


def prepare(work: Path) -> None:
    """The texts and one vocabulary for all runs."""
    work.mkdir(parents=True, exist_ok=True)
    for part, chosen in (("train", TRAIN), ("validation", VALIDATION)):
        if not (work / f"{part}.jsonl").is_file():
            lines = [json.dumps({"text": text}) for text in _stretches(part, chosen)]
            (work / f".{part}").write_text("\n".join(lines), encoding="utf-8")
            (work / f".{part}").replace(work / f"{part}.jsonl")
    if not (work / "tokenizer").is_dir():
        texts = Corpus(source=str(work / "train.jsonl")).texts()
        size = recipe_of("window", 1, 1, work).tokenizer.train
        assert size is not None
        train_tokenizer(islice(texts, 0, None, 2), size).save_pretrained(work / "tokenizer")


def _stretches(part: str, chosen: dict[str, tuple[int, int]]) -> Iterator[str]:
    for source, (documents, characters) in chosen.items():
        for text in Corpus(source=source, split=part, limit=documents).texts():
            yield text[:characters]


def recipe_of(arm: str, seed: int, steps: int, work: Path) -> Recipe:
    """The recipe of an arm with this seed and length, on the texts in `work`."""
    changes = [f"optimisation.seed={seed}", f"optimisation.steps={steps}", f"data.train={work / 'train.jsonl'}"]
    changes += [f"data.validation={work / 'validation.jsonl'}"]
    if (work / "tokenizer").is_dir():
        changes.append(f"tokenizer={{from: {work / 'tokenizer'}}}")
    return load_recipe(f"small-mlm-{arm}", changes)


def run(arm: str, seed: int, steps: int, work: Path) -> None:
    """Train one model and append its numbers to the results."""
    from longspan.training.train import train

    recipe = recipe_of(arm, seed, steps, work)
    folder = work / f"{arm}-{seed}-{steps}"
    resumed = folder.exists()
    began, cpu = time.monotonic(), time.process_time()
    result = train(recipe, folder, resume=True)
    row = {
        "arm": arm,
        "seed": seed,
        "steps": steps,
        "bits": result.best["eval_bits_per_masked_token"],
        "best_step": result.best_step,
        "curve": [
            [entry["step"], round(entry["eval_bits_per_masked_token"], 4)]
            for entry in result.history
            if "eval_bits_per_masked_token" in entry
        ],
        "parameters": _parameters(folder),
        "cpu_seconds": None if resumed else round(time.process_time() - cpu, 1),
        "seconds": None if resumed else round(time.monotonic() - began, 1),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "machine": machine(),
    }
    with (RESULTS / "masked-lm.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def _parameters(folder: Path) -> int:
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118


def finished() -> list[dict[str, Any]]:
    """The runs that have ended."""
    file = RESULTS / "masked-lm.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []


def baseline(work: Path) -> tuple[float, int, int]:
    """Bits per hidden token for who knows the frequencies of the training tokens only; hidden tokens, chunks."""
    task, tokenizer = recipe_of("window", 1, 1, work).task, load_tokenizer(work / "tokenizer")
    assert isinstance(task, MaskedLM)
    counts: Counter[int] = Counter()
    folders = work / "counted"
    train_rows = task.read(str(work / "train.jsonl"), "train", None)
    validation_rows = task.read(str(work / "validation.jsonl"), "validation", None)
    seen = task.dataset(train_rows, tokenizer, training=True, seed=0, folder=folders).files
    for start in range(0, seen.values, 1 << 20):
        counts.update(seen.read(TOKENS, start, min(start + (1 << 20), seen.values)).tolist())
    chunks = task.dataset(validation_rows, tokenizer, training=False, seed=0, folder=folders)
    hidden = [label for index in range(len(chunks)) for label in chunks[index]["labels"].tolist() if label >= 0]
    total = seen.values + len(tokenizer)  # add one to every count
    return -sum(math.log2((counts[token] + 1) / total) for token in hidden) / len(hidden), len(hidden), len(chunks)


def write(work: Path) -> None:
    """The table, with what a person wrote about it."""
    page = RESULTS / "masked-lm.md"
    _, heading, reading = page.read_text(encoding="utf-8").partition("## Reading") if page.exists() else ("", "", "")
    text = report(finished(), work)
    page.write_text(f"{text}\n{heading}{reading}" if heading else text, encoding="utf-8")


def report(rows: list[dict[str, Any]], work: Path) -> str:
    """The whole page."""
    recipe = recipe_of("window", 1, 1, work)
    new = recipe.model.new or {}
    unigram, hidden, chunks = baseline(work)
    lines = [
        "# Masked-language modelling from scratch: one level, two levels, fusion",
        f"An encoder of {new['num_hidden_layers']} layers, {new['hidden_size']} wide, {new['num_attention_heads']} "
        f"heads, vocabulary {len(load_tokenizer(work / 'tokenizer'))}, on novels and papers in chunks of "
        f"{recipe.task.max_tokens} tokens, 15 % of them hidden; one chunk is one update of the weights, learning "
        f"rate {recipe.optimisation.learning_rate:g}. Second level in the upper layer. Sinusoidal positions; the "
        f"fusion has relative ones instead. Validation: {hidden} hidden tokens in {chunks} chunks, the same for every "
        "run. Mean ± standard deviation over seeds.",
        f"Who knows only how frequent each token is needs **{unigram:.3f} bits**.",
    ]
    for steps in sorted({row["steps"] for row in rows}):
        some = [row for row in rows if row["steps"] == steps]
        header = ["attention", "bits per masked token ↓", "each seed", "parameters", "CPU s", "peak memory, MB"]
        cells = [_cells(arm, some) for arm in ARMS if any(row["arm"] == arm for row in some)]
        lines += [f"## {steps} updates", table(header, cells), "\n".join(_paired(some))]
    lines += [
        "## How it was measured",
        f"{rows[-1]['machine'] if rows else machine()}; other work ran beside it, so CPU seconds and not the clock; "
        "bfloat16. CPU seconds are those of a whole run: tokenising, training, one validation. Peak memory is that of "
        "the process, libraries and optimizer included.",
        f"Command: `OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', '')} python benchmarks/masked_lm.py`",
    ]
    return "\n\n".join(lines) + "\n"


def _cells(arm: str, rows: list[dict[str, Any]]) -> list[str]:
    runs = sorted((row for row in rows if row["arm"] == arm), key=lambda row: row["seed"])
    bits = [row["bits"] for row in runs]
    seconds = [row["cpu_seconds"] for row in runs if row["cpu_seconds"]]
    peak = [row["peak_bytes"] for row in runs if row["cpu_seconds"]]
    return [
        ARMS[arm],
        spread(bits),
        " ".join(f"{value:.3f}" for value in bits),
        f"{runs[0]['parameters'] / 1e6:.2f} M",
        f"{statistics.mean(seconds):.0f}" if seconds else "–",
        f"{max(peak) / 1e6:.0f}" if peak else "–",
    ]


def spread(values: list[float]) -> str:
    """Mean ± sample standard deviation."""
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{deviation}"


def _paired(rows: list[dict[str, Any]]) -> list[str]:
    """Differences to the window within each seed: initial draws differ, chunks and their order do not."""
    bits = {(row["arm"], row["seed"]): row["bits"] for row in rows}
    lines = [f"Bits minus those of {ARMS['window']} with the same seed (below zero is better):", ""]
    for arm in list(ARMS)[1:]:
        both = [seed for name, seed in bits if name == arm and ("window", seed) in bits]
        found = [bits[arm, seed] - bits["window", seed] for seed in both]
        if found:
            lines.append(f"- {ARMS[arm]}: {spread(found)} ({', '.join(f'{value:+.3f}' for value in found)})")
    return lines


if __name__ == "__main__":
    main()
