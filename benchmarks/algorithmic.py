"""Copy, reverse, addition and stories: the universal stack against layers with weights of their own, small and short.

    OMP_NUM_THREADS=1 python benchmarks/algorithmic.py [--seeds 1 2 3 4 5]    # twenty minutes on one core

The recipes `universal-*` and their twins `sequential-*`, made small by the same changes. A
twin has the same widths and as many layers as the universal one has steps, with weights of their own: equal depth, not
equal weights. Runs stand in `results/algorithmic.jsonl`; those that are there are not done again.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from longspan.checkpoints.loading import load_model, load_tokenizer
from longspan.tasks.predicting import FeatureRows, batches
from longspan.training.recipe import Recipe
from longspan.training.recipe_file import load_recipe
from longspan.training.train import train
from measure import RESULTS, machine, table, write_page

ARMS = {"universal": "universal, adaptive", "sequential": "sequential"}
EXERCISES = ("copy", "reverse", "addition", "babi")
STEPS, LAYERS = 250, 3
TESTS = (40, 400)
"""Lengths that the algorithms are tested at, the trained one first."""
ROWS = 50
SMALL = {
    "model.new.hidden_size": 64,
    "model.new.init_std": 0.125,
    "model.new.intermediate_size": 128,
    "model.new.num_hidden_layers": LAYERS,
    "model.new.decoder_layers": LAYERS,
    "model.new.dropout": 0.0,
    "optimisation.epochs": None,
    "optimisation.steps": STEPS,
    "optimisation.batch_size": 32,
    "optimisation.micro_batch_size": 32,
    "optimisation.learning_rate": 2.0e-3,
    "optimisation.schedule": "linear",
    "optimisation.warmup_steps": STEPS // 5,
    "optimisation.log_every": STEPS,
    "optimisation.evaluate_every": STEPS,
    "optimisation.report_to": ["none"],
    "data.validation_rows": ROWS,
}
MADE_UP = {"data.train": ["synthetic"], "data.validation": ["synthetic"], "data.train_rows": 5000}


def small(arm: str, exercise: str, seed: int) -> Recipe:
    """A recipe with the changes that all have in common."""
    changes = SMALL | {"optimisation.seed": seed} | (MADE_UP if exercise == "babi" else {})
    return load_recipe(f"{arm}-{exercise}", [f"{key}={json.dumps(value)}" for key, value in changes.items()])


def run(arm: str, exercise: str, seed: int) -> dict[str, Any]:
    """Train one, and test it."""
    recipe, start = small(arm, exercise, seed), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        train(recipe, folder)
        seconds = time.process_time() - start
        model, tokenizer = load_model(folder), load_tokenizer(folder)
    weights = sum(each.numel() for name, each in model.named_parameters() if ".layers." in name)
    found: dict[str, Any] = {"arm": arm, "exercise": exercise, "seed": seed, "seconds": seconds, "weights": weights}
    for length in TESTS if exercise != "babi" else ("made up",):
        task = replace(recipe.task, test_length=length) if exercise != "babi" else recipe.task
        rows = task.read("synthetic", "test", ROWS)
        scores = task.evaluate(model, tokenizer, rows, batch_size=10).scores
        found[str(length)] = scores | {"steps": steps_taken(model, tokenizer, task, rows)}
    return found | {"machine": machine()}


def steps_taken(model: Any, tokenizer: Any, task: Any, rows: Sequence[Any]) -> float | None:
    """The mean steps of a token of the texts, where it decides; `None` elsewhere."""
    data, taken, count = FeatureRows(rows, lambda row: task.features(row, tokenizer)), 0.0, 0
    with torch.no_grad():
        for batch in batches(model, data, task.collator(tokenizer), 10):
            times = model(**batch).encoder_ponder_times
            if times is None:
                return None
            taken, count = taken + float(times.sum()), count + int(batch["attention_mask"].sum())
    return taken / count


def cells(rows: Sequence[dict[str, Any]], length: str, score: str) -> str:
    """Mean and every seed."""
    values = [row[length][score] for row in rows]
    return f"**{statistics.mean(values):.1f}** ({', '.join(f'{value:.1f}' for value in values)})"


def report(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The page's parts."""
    lines = []
    for exercise in EXERCISES:
        for arm, name in ARMS.items():
            some = sorted(
                (row for row in rows if (row["arm"], row["exercise"]) == (arm, exercise)), key=lambda row: row["seed"]
            )
            for length in map(str, TESTS) if exercise != "babi" else ["made up"]:
                if some:
                    steps = [row[length]["steps"] for row in some]
                    lines.append(
                        [
                            "stories" if exercise == "babi" else exercise,
                            length,
                            name,
                            cells(some, length, "character_accuracy"),
                            cells(some, length, "sequence_accuracy"),
                            f"{LAYERS}" if None in steps else f"{statistics.mean(steps):.2f}",
                            f"{some[0]['weights']:,}",
                            f"{statistics.mean(row['seconds'] for row in some):.0f}",
                        ]
                    )
    header = ["exercise", "length", "stack", "characters", "whole answers", "steps", "weights of the stack", "CPU s"]
    return [
        f"{rows[-1]['machine']}, which did other work as well; processor time.",
        f"Encoder and decoder, 64 wide, at most {LAYERS} steps or {LAYERS} layers each, {STEPS} updates of 32 texts, "
        "AdamW at 0.002: far fewer than these exercises are given in the paper. The algorithms are trained on texts of "
        f"1 to 40 digits, and tested on {ROWS} texts of exactly 40 and of exactly 400. Stories are made up in the "
        "manner of bAbI's first task, since its files are not here. Percent; the mean and each seed. Every token of an "
        "answer is guessed from the right ones before it. The twin has equal depth, so three times the weights in its "
        "blocks. Each is told places as published and in one way: it once, with the embeddings, the universal stack at "
        "every step, which this table does not tell from the sharing of weights.",
        table(header, lines),
    ]


def main() -> None:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--page", action="store_true", help="write the page of what there is, and run nothing")
    options, file = parser.parse_args(), RESULTS / "algorithmic.jsonl"
    logging.disable(logging.WARNING)
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []
    asked = [(arm, exercise, seed) for seed in options.seeds for exercise in EXERCISES for arm in ARMS]
    for arm, exercise, seed in [] if options.page else asked:
        if not any((row["arm"], row["exercise"], row["seed"]) == (arm, exercise, seed) for row in rows):
            rows.append(run(arm, exercise, seed))
            print(json.dumps(rows[-1]), flush=True)
            with Path(file).open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(rows[-1]) + "\n")
    write_page("algorithmic", "Copy, reverse, addition and stories", report(rows))


if __name__ == "__main__":
    main()
