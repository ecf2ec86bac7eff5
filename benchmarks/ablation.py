"""Windows and pooling kinds, trained from scratch at equal steps on real long documents.

    LONGSPAN_DATA=… python benchmarks/ablation.py [--work DIR] [--steps 240] [--seeds 1 2 3]

A small encoder-decoder learns to write the abstracts of PubMed papers. Every arm has the same sizes, steps, documents
and order of documents; only the encoder's attention differs: the rows of the thesis's ablation, at a size that one
core finishes in minutes. Finished runs are appended to `results/ablation.jsonl` and skipped when the script is started
again; a run that was killed continues where it was. Processes with different `--seeds` may run side by side. At the
end, `results/ablation.md` is written.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers

import longspan
from longspan.settings import from_plain
from longspan.tasks.summaries.base import texts_of
from longspan.tasks.summaries.summarization import Summarization
from longspan.training.evaluate import evaluate
from longspan.training.one_run import load_rows
from longspan.training.recipe import Data, Recipe
from longspan.training.tokenizers import train_tokenizer
from longspan.training.train import train

RESULTS = Path(__file__).parent / "results"


def window(tokens: int) -> dict[str, Any]:
    """A single level: `tokens` on each side."""
    return {"mechanism": "longformer", "left_tokens": tokens, "right_tokens": tokens}


def two_level(pooling: str) -> list[dict[str, Any]]:
    """Both levels in the upper half, 128 and 512 tokens on each side, as published; random, for all weights are new."""
    return [
        {"layers": "0-1", **window(128)},
        {"layers": "2-3", "mechanism": "poolingformer", "pooling": pooling, "init": "normal"},
    ]


ARMS: dict[str, Any] = {
    "window 128": window(128),
    "window 256": window(256),
    "128 + 512 conv": two_level("ldconv"),
    "128 + 512 mean": two_level("mean"),
    "128 + 512 max": two_level("max"),
}
PUBLISHED = {
    "window 128": (38.27, 14.39, 33.72),
    "window 256": (38.54, 14.43, 33.89),
    "128 + 512 conv": (38.75, 14.58, 34.13),
    "128 + 512 mean": (38.68, 14.60, 34.05),
    "128 + 512 max": (38.42, 14.45, 33.84),
}
"""The thesis's ROUGE-1, -2 and -L for BART-base on 50 000 arXiv papers: the order to compare with, not the level."""

DATA = Data(train=("pubmed-large",), validation=("pubmed",), train_rows=1000, validation_rows=60)


SUMMARIES = 12
"""Validation papers that are summarised; decoding is slow, and the loss says more about models this small."""


def main() -> None:
    """Run what is missing, then write the table."""
    options = _options()
    RESULTS.mkdir(exist_ok=True)
    tokenizer = _tokenizer(options.work)
    for seed in options.seeds:
        for arm in ARMS:
            if not any(row["arm"] == arm and row["seed"] == seed for row in _finished()):
                _run(arm, seed, options, tokenizer)
    table = RESULTS / "ablation.md"
    # What a person wrote about the numbers stays.
    _, heading, reading = table.read_text(encoding="utf-8").partition("## Reading") if table.exists() else ("", "", "")
    report = _report(_finished(), options)
    table.write_text(f"{report}\n{heading}{reading}" if heading else report, encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Ablation of windows and pooling kinds, from scratch.")
    parser.add_argument("--work", type=Path, default=Path("runs/ablation"), help="folder for checkpoints")
    parser.add_argument("--steps", type=int, default=240, help="updates of the weights in every run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    return parser.parse_args()


def _tokenizer(work: Path) -> Path:
    """One vocabulary for all runs."""
    folder = work / "tokenizer"
    if not (folder / "tokenizer_config.json").is_file():
        train_tokenizer(texts_of(load_rows(Summarization(), DATA, "train")[:600]), 2000).save_pretrained(folder)
    return folder


def recipe_of(arm: str, seed: int, steps: int, tokenizer: Path) -> Recipe:
    """The experiment of one arm and seed."""
    attention = ARMS[arm]
    model: dict[str, Any] = {
        "new": {
            "hidden_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 2,
            "intermediate_size": 256,
            "decoder_layers": 1,
            "max_decoder_position_embeddings": 256,
        },
        "attention": attention,
        "max_tokens": 2048,
    }
    return from_plain(
        Recipe,
        {
            "name": f"{arm} seed {seed}".replace(" ", "-").replace("+-", ""),
            "task": {"name": "summarization", "max_source_tokens": 2048, "max_target_tokens": 128},
            "data": {
                "train": list(DATA.train),
                "validation": list(DATA.validation),
                "train_rows": DATA.train_rows,
                "validation_rows": DATA.validation_rows,
            },
            "model": model,
            "tokenizer": {"from": str(tokenizer)},
            "optimisation": {
                "steps": steps,
                "batch_size": 1,
                "learning_rate": 2e-3,
                "warmup_steps": 40,
                "log_every": 40,
                "evaluate_every": steps,
                "seed": seed,
            },
            "generation": {"max_tokens": 64, "min_tokens": 48, "no_repeat_ngram": 3},
        },
    )


def _run(arm: str, seed: int, options: argparse.Namespace, tokenizer: Path) -> None:
    recipe = recipe_of(arm, seed, options.steps, tokenizer)
    folder = options.work / recipe.name
    resumed = folder.exists()
    began, cpu = time.monotonic(), time.process_time()
    trained = train(recipe, folder, resume=True)
    middle = time.process_time()
    scored = evaluate(trained.folder, "pubmed", limit=SUMMARIES)
    row = {
        "arm": arm,
        "seed": seed,
        "steps": options.steps,
        "bits": trained.best["eval_loss"] / math.log(2),
        "scores": scored.scores,
        "flavour": scored.report["flavour"],
        "train_cpu_seconds": None if resumed else round(middle - cpu, 1),
        "seconds": round(time.monotonic() - began, 1),
    }
    with (RESULTS / "ablation.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def _finished() -> list[dict[str, Any]]:
    file = RESULTS / "ablation.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []


def _spread(values: list[float], digits: int) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else float("nan")
    return f"{statistics.mean(values):.{digits}f} ± {deviation:.{digits}f}"


def _report(rows: list[dict[str, Any]], options: argparse.Namespace) -> str:
    lines = [
        "# Ablation from scratch: windows and pooling kinds",
        "",
        "A new encoder-decoder (4 + 1 layers, 64 wide, 2 heads, vocabulary 2 000; second level in layers 2 and 3), "
        f"{options.steps} updates of one document each, 2 048 source tokens, 128 target tokens, learning rate 2e-3. "
        f"PubMed papers to abstracts: {DATA.train_rows} training papers of which each run sees {options.steps}, "
        f"validation loss on {DATA.validation_rows}, ROUGE of greedy summaries (48 to 64 tokens, no trigram twice) "
        f"on {SUMMARIES}. "
        f"Mean ± standard deviation over seeds {', '.join(map(str, sorted({row['seed'] for row in rows})))}.",
        "",
        "| attention | bits per token ↓ | bits, each seed | ROUGE-1 | ROUGE-2 | ROUGE-L | ROUGE-Lsum "
        "| CPU s, training | published R-1 / R-2 / R-L |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for arm in ARMS:
        runs = sorted((row for row in rows if row["arm"] == arm), key=lambda row: row["seed"])
        if not runs:
            continue
        bits = [row["bits"] for row in runs]
        rouge = [
            _spread([row["scores"][name] for row in runs], 2) for name in ("rouge1", "rouge2", "rougeL", "rougeLsum")
        ]
        measured = [row["train_cpu_seconds"] for row in runs if row["train_cpu_seconds"]]
        seconds = f"{statistics.mean(measured):.0f}" if measured else "–"
        each = " ".join(f"{value:.3f}" for value in bits)
        cells = [arm, _spread(bits, 3), each, *rouge, seconds, " / ".join(map(str, PUBLISHED[arm]))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_paired(rows), "", *_machine(rows)]) + "\n"


def _paired(rows: list[dict[str, Any]]) -> list[str]:
    """Differences to the window of 128 within each seed: the documents and their order cancel."""
    bits = {(row["arm"], row["seed"]): row["bits"] for row in rows}
    lines = ["Bits per token minus those of `window 128` with the same seed (below zero is better):", ""]
    for arm in list(ARMS)[1:]:
        found = [bits[arm, seed] - bits["window 128", seed] for name, seed in bits if name == arm]
        if found:
            lines.append(f"- {arm}: {_spread(found, 3)} ({', '.join(f'{value:+.3f}' for value in found)})")
    return lines


def _machine(rows: list[dict[str, Any]]) -> list[str]:
    flavour = rows[0]["flavour"] if rows else ""
    return [
        f"ROUGE: {flavour}. The published column is BART-base on 50 000 arXiv papers: compare orders, not levels.",
        "",
        f"Machine: {platform.machine()}, {os.cpu_count()} CPUs, {torch.get_num_threads()} thread; Python "
        f"{platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}, longspan "
        f"{longspan.__version__}. CPU seconds were measured beside other work on the machine.",
        "",
        f"Command: `OMP_NUM_THREADS={torch.get_num_threads()} python {' '.join(sys.argv)}`",
    ]


if __name__ == "__main__":
    main()
