"""Denoising pre-training on dialogues: with it, without it, and with each noise left out, from scratch.

    LONGSPAN_DATA=… OMP_NUM_THREADS=1 python benchmarks/dialogue.py [--work DIR] [--seeds 1 2] [--steps 500]

Every arm is the recipe `dialogue-small` and then `dialogue-small-qmsum`, both with the changes of `SMALLER`; they
differ in `task.without`, and the arm without pre-training takes one step that moves nothing. Denoising is scored with
all noises, whatever an arm was trained on, on the same windows of held-out dialogues; summaries by ROUGE on held-out
queries of QMSum. All arms share one tokenizer. Finished runs are kept in `results/dialogue.jsonl` and skipped when the
script is started again; `results/dialogue.md` is written after every run, and the answers lie beside the models.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from coreference import spread
from longspan.checkpoints.loading import load_pair
from longspan.files import whole_folder
from longspan.training.evaluate import evaluate
from longspan.training.recipe_file import load_recipe
from longspan.training.tokenizers import train_tokenizer
from longspan.training.train import train
from longspan_papers.dialogue.noises import NOISES
from longspan_papers.dialogue.reading import read_dialogues
from measure import RESULTS, machine, table

KEPT = RESULTS / "dialogue.jsonl"
NOTHING = "no pre-training"
ARMS: dict[str, tuple[str, ...]] = {NOTHING: (), "all noises": (), **{f"without {name}": (name,) for name in NOISES}}
"""Name in the table → noises left out."""
HELD_OUT = {"qmsum": 8, "crd3": 2}
"""How many held-out dialogues of which set denoising is scored on."""
READ, SEEN = 512, 1024
"""How many tokens are read in pre-training, and of a query's meeting."""
SMALLER = {
    "dialogue-small": (f"task.max_source_tokens={READ}", "data.train_rows=200", "optimisation.warmup_steps=50"),
    "dialogue-small-qmsum": (
        *(f"task.max_source_tokens={SEEN}", "data.validation_rows=64"),
        *("optimisation.warmup_steps=25", "optimisation.micro_batch_size=4"),
    ),
}
"""What makes the recipes fit an hour of one thread, all runs together."""
STILL = ("optimisation.steps=1", "optimisation.evaluate_every=1", "optimisation.log_every=1")
STILL += ("optimisation.warmup_steps=0", "optimisation.learning_rate=1.0e-12", "optimisation.weight_decay=0")


def main() -> None:
    """Run what is missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/dialogue"), help="folder for checkpoints")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=500, help="of pre-training")
    parser.add_argument("--tune", type=int, default=200, help="steps on QMSum")
    parser.add_argument("--queries", type=int, default=40, help="held-out queries that are answered")
    options = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    done = {(row["arm"], row["seed"], row["steps"], row["tune"]) for row in finished()}
    for seed in options.seeds:
        for arm in ARMS:
            if (arm, seed, options.steps, options.tune) not in done:
                found = run(arm, seed, options)
                with KEPT.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found) + "\n")
                write()
    write()


def run(arm: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Pre-train and fine-tune one arm with one seed, and score both models."""
    name, began = f"{arm.replace(' ', '-')}-{seed}-{options.steps}", time.process_time()
    shared = [f"optimisation.seed={seed}", "optimisation.report_to=[none]"]
    given = ["tokenizer.train=null", "tokenizer.rows=null", f"tokenizer.from={tokenizer_in(options.work)}"]
    steps = STILL if arm == NOTHING else steps_of(options.steps)
    changes = [*shared, *given, *SMALLER["dialogue-small"], *steps, f"task.without={json.dumps(ARMS[arm])}"]
    first = train(load_recipe("dialogue-small", changes), options.work / name, resume=True).folder
    changes = [*shared, *SMALLER["dialogue-small-qmsum"], *steps_of(options.tune), f"model.from={first}"]
    tuned = load_recipe("dialogue-small-qmsum", changes)
    second = train(tuned, options.work / f"{name}-qmsum-{options.tune}", resume=True).folder
    asked = evaluate(second, "qmsum-queries", limit=options.queries)
    return {
        "arm": arm,
        "seed": seed,
        "steps": options.steps,
        "tune": options.tune,
        "queries": options.queries,
        "denoising": denoising(first),
        "rouge": asked.scores,
        "seconds": round(time.process_time() - began),
        "machine": machine(),
    }


def tokenizer_in(work: Path) -> Path:
    """The tokenizer of all arms, trained as the recipe would, once."""
    folder, recipe = work / "tokenizer", load_recipe("dialogue-small")
    if not folder.exists():
        rows = [row for name in recipe.data.train for row in read_dialogues(name)]
        assert recipe.tokenizer.train
        assert recipe.tokenizer.rows
        texts = (row.text for row in rows[:: len(rows) // recipe.tokenizer.rows])
        with whole_folder(folder) as partial:
            train_tokenizer(texts, recipe.tokenizer.train).save_pretrained(partial)
    return folder


def steps_of(count: int) -> tuple[str, ...]:
    """Changes for so many steps, with a look at the validation rows at the end."""
    every = {"steps": count, "evaluate_every": count, "log_every": max(1, count // 5)}
    return tuple(f"optimisation.{name}={value}" for name, value in every.items())


def denoising(folder: Path) -> dict[str, float]:
    """Bits per token of held-out windows that all noises have disturbed."""
    recipe = load_recipe("dialogue-small", SMALLER["dialogue-small"])
    task, (model, tokenizer) = recipe.task, load_pair(str(folder))
    rows = [row for name, count in HELD_OUT.items() for row in read_dialogues(name, "validation", count)]
    return task.evaluate(model.eval(), tokenizer, rows, batch_size=4).scores


def finished() -> list[dict[str, Any]]:
    """The runs that are done."""
    return [json.loads(line) for line in KEPT.read_text(encoding="utf-8").splitlines()] if KEPT.is_file() else []


def write() -> None:
    """The page of results."""
    runs, rows = finished(), []
    for arm in ARMS:
        if of := [one for one in runs if one["arm"] == arm]:
            bits, right = ([one["denoising"][name] for one in of] for name in ("bits_per_token", "accuracy"))
            rouge = [spread([one["rouge"][name] for one in of]) for name in ("rouge1", "rouge2", "rougeLsum")]
            minutes = spread([one["seconds"] / 60 for one in of])
            rows.append([arm, spread(bits, 2), spread(right), *rouge, str(len(of)), minutes])
    header = ["", "bits per token", "right, %", "ROUGE-1", "ROUGE-2", "ROUGE-Lsum", "seeds", "minutes"]
    first = runs[0]
    text = f"""# Denoising pre-training on dialogues, from scratch

Machine: {first["machine"]}.

The recipe `dialogue-small` on QMSum's 162 and CRD3's first 38 training dialogues for {first["steps"]:,} steps of
{READ:,} source tokens, then the recipe `dialogue-small-qmsum` for {first["tune"]:,} of {SEEN:,}: the query and the
beginning of its meeting, which has some 12,000. The recipes as they are read more, for longer. Bits per token and the
share of right tokens are of windows in held-out dialogues, disturbed by all noises whatever was trained on, before
fine-tuning; ROUGE is of {first["queries"]} held-out queries of QMSum, after it. With several seeds: the mean, then the
least and the most. Minutes are of processor time.

{table(header, rows)}
"""
    (RESULTS / "dialogue.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
