"""Which windows a character model wants: growing from layer to layer, shrinking or equal, dilated, and in stages.

    python benchmarks/windows.py --folder /tmp/windows   # a minute and a half of one core each; what is done stays

The recipe `novels-windows` is Longformer's ablation in small (Beltagy et al. 2020, table 4): on bytes of novels, with
equally many updates of equally many tokens, and with several seeds. Every seed gives a line of results/windows.jsonl;
results/windows.md has the means and the spreads.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from longspan.training.recipe_file import load_recipe
from longspan.training.train import train
from measure import RESULTS, machine, table, write_page
from memory import excerpts, spread

RECIPE = "novels-windows"
LEFT, DILATION = "model.attention.left_tokens.per_layer", "model.attention.dilation.per_layer"
STAGES = (
    "stages=[{task.max_tokens: /2, model.attention.left_tokens: /2, optimisation.batch_size: x2, "
    "optimisation.micro_batch_size: x2, optimisation.steps: 300, optimisation.evaluate_every: 300}, "
    "{task.max_tokens: x2, model.attention.left_tokens: x2, optimisation.batch_size: /2, "
    "optimisation.micro_batch_size: /2, optimisation.learning_rate: /2, optimisation.steps: 200, "
    "optimisation.evaluate_every: 200}]"
)
FORMS = {
    "decreasing": [f"{LEFT}=[64, 32, 16, 8]"],
    "fixed": [f"{LEFT}=[30, 30, 30, 30]"],
    "increasing": [],
    "increasing, two heads dilated": [f"{DILATION}=[1, 1, [1, 1, 2, 2], [1, 1, 3, 3]]"],
    "increasing, in two stages": [STAGES],
}
PUBLISHED = {
    "decreasing": "1.24",
    "fixed": "1.23",
    "increasing": "1.21",
    "increasing, two heads dilated": "1.20",
}
"""Bits per character of text8's validation part after 150,000 steps (table 4)."""
EXCERPTS = {"train": 2_000_000, "validation": 80_000}
"""Characters of the novels that are read."""


def run(form: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train one model; the bits that it takes for the validation text."""
    changes = [f"optimisation.seed={seed}", "optimisation.report_to=none", *excerpts(folder, EXCERPTS), *FORMS[form]]
    output, began = folder / "run", time.process_time()
    shutil.rmtree(output, ignore_errors=True)
    best = train(load_recipe(RECIPE, changes), output).best
    return {
        "form": form,
        "seed": seed,
        "bits": best["eval_bits_per_token"],
        "seconds": round(time.process_time() - began, 1),
    }


def rows(lines: list[dict[str, Any]]) -> list[list[str]]:
    """A row for each form that there is something of."""
    found = []
    for form in FORMS:
        own = [line for line in lines if line["form"] == form]
        if own:
            bits = [line["bits"] for line in own]
            seconds = statistics.mean(line["seconds"] for line in own)
            each = ", ".join(f"{value:.3f}" for value in bits)
            found.append([form, spread(bits), each, PUBLISHED.get(form, ""), f"{seconds:.0f}"])
    return found


def write(lines: list[dict[str, Any]]) -> None:
    """The page with everything that there is so far."""
    header = ["windows", "bits per byte", "by seed", "published (text8, full size)", "seconds each"]
    about = (
        f"`python benchmarks/windows.py`; {machine()}. Four layers of width 64 and four heads, relative positions, 512 "
        "bytes of novels at a time, 500 updates of 1,024 bytes; windows of 8, 16, 32 and 64 tokens from the lowest "
        "layer to the highest, the reverse, or 30 (their average) in all; dilated: two heads of layers 2 and 3 by 2 "
        "and 3. In two stages: 300 updates at half the length and windows and twice the batch, then 200 at half the "
        "learning rate. Means over seeds ± half the range; every byte is guessed from 256 to 511 bytes before it "
        "(sliding, step 256); processor seconds of training and its evaluation."
    )
    write_page("windows", "Windows of a character model", [about, table(header, rows(lines))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the runs are made")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--forms", nargs="+", choices=list(FORMS), default=list(FORMS))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    log = RESULTS / "windows.jsonl"
    done = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    for seed in range(1, arguments.seeds + 1):
        for form in arguments.forms:
            if any((line["form"], line["seed"]) == (form, seed) for line in done):
                continue
            done.append(run(form, seed, arguments.folder))
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(done[-1]) + "\n")
            write(done)


if __name__ == "__main__":
    main()
