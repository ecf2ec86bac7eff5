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
from pathlib import Path
from typing import Any

from arms import (
    RESULTS,
    finished,
    is_finished,
    machine,
    options,
    paired,
    run_summarizer,
    seeds_of,
    shared_tokenizer,
    table,
    write,
)
from longspan.settings import from_plain
from longspan.training.recipe import Recipe
from longspan.training.sections import Data

RUNS = RESULTS / "ablation.jsonl"


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
    given = options("Ablation of windows and pooling kinds, from scratch.", "runs/ablation")
    RESULTS.mkdir(exist_ok=True)
    tokenizer = shared_tokenizer(given.work, DATA)
    for seed in given.seeds:
        for arm in ARMS:
            if not is_finished(RUNS, arm, seed):
                recipe = recipe_of(arm, seed, given.steps, tokenizer)
                run_summarizer(RUNS, arm, seed, recipe, given.work / recipe.name, "pubmed", SUMMARIES)
    write(RESULTS / "ablation.md", _report(finished(RUNS), given))


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


def _report(rows: list[dict[str, Any]], given: argparse.Namespace) -> str:
    lines = [
        "# Ablation from scratch: windows and pooling kinds",
        "",
        "A new encoder-decoder (4 + 1 layers, 64 wide, 2 heads, vocabulary 2 000; second level in layers 2 and 3), "
        f"{given.steps} updates of one document each, 2 048 source tokens, 128 target tokens, learning rate 2e-3. "
        f"PubMed papers to abstracts: {DATA.train_rows} training papers of which each run sees {given.steps}, "
        f"validation loss on {DATA.validation_rows}, ROUGE of greedy summaries (48 to 64 tokens, no trigram twice) "
        f"on {SUMMARIES}. "
        f"Mean ± standard deviation over seeds {seeds_of(rows)}.",
        "",
        *table(rows, ARMS, "attention", PUBLISHED),
        "",
        *paired(rows, ARMS, "window 128"),
        "",
        f"ROUGE: {rows[0]['flavour'] if rows else ''}. The published column is BART-base on 50 000 arXiv papers: "
        "compare orders, not levels.",
        "",
        *machine(),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
