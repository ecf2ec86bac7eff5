"""Does a token learn from a far segment? Top-down inference and its ablations on a task that none can guess.

    OMP_NUM_THREADS=1 python benchmarks/far_segment.py [--seeds 1 2 3 4 5]    # about an hour and a half on one core

A row has 128 tokens: four facts "key = value", each one token in a segment of its own, fillers, and eight tokens that
each ask for one key; the label of an asking token is the value, one of four. Places are drawn anew for every row, so
that the only way to a label is to read the fact. Windows reach 4 tokens to each side, 16 through the four layers: what
is asked from farther away has to come through the segments.

Of the tokens of a segment one matters at most: the mean of a segment (AvgPool) says 1/8 or 1/32 of it, and weights that
know which tokens are facts (AdaPool, with the right importance) all of it. A run ends when it answers 99 % twice in
sequence, or after 2,000 updates. Runs stand in `results/far-segment.jsonl`; those that are there are not done again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from longspan.models import LongspanConfig, LongspanForTokenClassification
from longspan.tasks.metrics.bootstrap import bootstrap, bootstrap_difference
from measure import RESULTS, add_run, finished, machine, shown, table, write_page

FILE = RESULTS / "far-segment.jsonl"
KEYS, VALUES, FILLERS, TOKENS, ASKED = 4, 4, 8, 128, 8
FIRST_KEY = VALUES + FILLERS
FIRST_FACT = FIRST_KEY + KEYS
VOCABULARY = FIRST_FACT + KEYS * VALUES + 1
LAYERS, WINDOW = 4, 4
KERNELS = (8, 32)
BATCH, UPDATES, EVERY, TESTED = 16, 2000, 50, 256
LEARNED, DONE = 0.95, 0.99
"""The share of right labels that counts as learned, and that at which a run ends."""

BOTTOM_UP, CONCATENATION, AVERAGE, ADAPTIVE, FULL = "bottom-up only", "concatenation", "AvgPool", "AdaPool", "full"
STACKS: dict[str, dict[str, Any]] = {
    BOTTOM_UP: {"top_down": "none"},
    CONCATENATION: {"top_down": "concatenate"},
    AVERAGE: {},
    ADAPTIVE: {"pooling": "importance"},
}
"""What differs between the arms; `FULL` is a plain stack of full attention, which sees every fact."""
ARMS = [(BOTTOM_UP, None), (FULL, None)] + [
    (arm, kernel) for kernel in KERNELS for arm in (CONCATENATION, AVERAGE, ADAPTIVE)
]


class Rows(NamedTuple):
    """Rows of the task, each `(B, T)`: ids, labels (−100 where nothing is asked), importance, and distance to the
    fact that a token asks for."""

    ids: Tensor
    labels: Tensor
    importance: Tensor
    distances: Tensor


def make(random: np.random.Generator, count: int, kernel: int) -> Rows:
    """So many rows, with at most one fact in each segment of `kernel` tokens."""
    ids = VALUES + random.integers(FILLERS, size=(count, TOKENS))
    labels, importance = np.full((count, TOKENS), -100), np.zeros((count, TOKENS), np.float32)
    distances = np.zeros((count, TOKENS), np.int64)
    asks = np.arange(ASKED) % KEYS
    for row in range(count):
        segments = random.permutation(TOKENS // kernel)[:KEYS]
        facts, values = segments * kernel + random.integers(kernel, size=KEYS), random.integers(VALUES, size=KEYS)
        places = random.permutation(np.setdiff1d(np.arange(TOKENS), facts))[:ASKED]
        ids[row, facts] = FIRST_FACT + np.arange(KEYS) * VALUES + values
        ids[row, places] = FIRST_KEY + asks
        importance[row, facts] = 1
        labels[row, places] = values[asks]
        distances[row, places] = abs(places - facts[asks])
    return Rows(*map(torch.from_numpy, (ids, labels, importance, distances)))


def build(arm: str, kernel: int | None, seed: int) -> LongspanForTokenClassification:
    """Four layers, 64 wide, pre-normalised; two of them top-down, with one layer over segments."""
    torch.manual_seed(seed)
    stack: dict[str, Any] = {"stack": "top_down", "top_down_layers": 2, "segment_layers": 1, **STACKS.get(arm, {})}
    if kernel is not None:
        stack |= {"kernel": kernel, "stride": kernel}
    window = {"mechanism": "longformer", "left_tokens": WINDOW, "right_tokens": WINDOW}
    config = LongspanConfig(
        vocab_size=VOCABULARY,
        pad_token_id=VOCABULARY - 1,
        bos_token_id=None,
        eos_token_id=None,
        hidden_size=64,
        num_attention_heads=4,
        num_hidden_layers=LAYERS,
        intermediate_size=128,
        max_position_embeddings=TOKENS,
        position_embedding="sinusoidal",
        scale_embedding=True,
        init_std=0.1,
        normalization="pre",
        dropout=0.0,
        attention="full" if arm == FULL else window,
        stack="sequential" if arm == FULL else stack,
        head="token_classification",
        num_labels=VALUES,
    )
    return LongspanForTokenClassification(config)


def inputs(arm: str, rows: Rows) -> dict[str, Tensor]:
    """What the model of an arm is given."""
    return {"input_ids": rows.ids} | ({"importance": rows.importance} if arm == ADAPTIVE else {})


@torch.no_grad()
def scores(model: nn.Module, arm: str, rows: Rows) -> dict[str, float]:
    """The share of right labels: within reach of the windows of all layers, and beyond."""
    right = model.eval()(**inputs(arm, rows)).logits.argmax(-1) == rows.labels
    model.train()
    asked, near = rows.labels >= 0, rows.distances <= LAYERS * WINDOW
    return {"near": float(right[asked & near].float().mean()), "far": float(right[asked & ~near].float().mean())}


def run(arm: str, kernel: int | None, seed: int) -> dict[str, Any]:
    """Train one model. Arms with the same seed and kernel read the same rows; all are tested on rows of their own."""
    drawn = kernel or KERNELS[0]
    model, random, test = (
        build(arm, kernel, seed),
        np.random.default_rng(seed),
        make(np.random.default_rng(0), TESTED, drawn),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    start, curve, learned = time.process_time(), [], None
    for update in range(1, UPDATES + 1):
        rows = make(random, BATCH, drawn)
        optimizer.param_groups[0]["lr"] = 1e-3 * min(1.0, update / 100)
        optimizer.zero_grad()
        model(**inputs(arm, rows), labels=rows.labels).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if update % EVERY:
            continue
        curve.append({"update": update} | {key: round(value, 4) for key, value in scores(model, arm, test).items()})
        if learned is None and curve[-1]["far"] >= LEARNED:
            learned = update
        if len(curve) > 1 and min(curve[-1]["far"], curve[-2]["far"]) >= DONE:
            break
    weights = sum(weight.numel() for weight in model.parameters())
    seconds = round(time.process_time() - start, 1)
    return {"arm": arm, "kernel": kernel, "seed": seed, "learned": learned, "seconds": seconds, "weights": weights} | {
        "curve": curve
    }


def of(rows: Sequence[dict[str, Any]], arm: str, kernel: int | None) -> list[dict[str, Any]]:
    """The runs of an arm, by seed."""
    some = [row for row in rows if (row["arm"], row["kernel"]) == (arm, kernel)]
    return sorted(some, key=lambda row: row["seed"])


def percents(runs: Sequence[dict[str, Any]], where: str) -> list[float]:
    """The last score of each run."""
    return [100 * run["curve"][-1][where] for run in runs]


def updates(runs: Sequence[dict[str, Any]]) -> list[int]:
    """Updates until a run had learned; one that never did counts as the last."""
    return [run["learned"] or UPDATES for run in runs]


def lines(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A line for each arm."""
    cells = []
    for arm, kernel in ARMS:
        runs = of(rows, arm, kernel)
        if not runs:
            continue
        each = ", ".join(f"{run['learned']:,}" if run["learned"] else "never" for run in runs)
        far, near = bootstrap(percents(runs, "far")), bootstrap(percents(runs, "near"))
        seconds = statistics.mean(run["seconds"] for run in runs)
        first = [arm, "–" if kernel is None else str(kernel)]
        cells.append([*first, shown(far), shown(near), each, f"{runs[0]['weights']:,}", f"{seconds:.0f}"])
    return cells


def differences(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Updates saved, within each seed: the rows that were read and their order are the same."""
    cells = []
    for kernel in KERNELS:
        for better, worse in ((ADAPTIVE, AVERAGE), (AVERAGE, CONCATENATION), (CONCATENATION, BOTTOM_UP)):
            one, two = of(rows, better, kernel), of(rows, worse, None if worse == BOTTOM_UP else kernel)
            both = {run["seed"] for run in one} & {run["seed"] for run in two}
            one, two = ([run for run in runs if run["seed"] in both] for runs in (one, two))
            if both:
                far = bootstrap_difference(percents(one, "far"), percents(two, "far"))
                saved = bootstrap_difference(updates(two), updates(one))
                name = f"{better} over {worse}"
                cells.append([name, str(kernel), str(len(both)), shown(far, signed=True), shown(saved, digits=0)])
    return cells


def report(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The page's parts."""
    return [
        f"{machine()}, which did other work as well; processor time.",
        f"Rows of {TOKENS} tokens with {KEYS} facts, at most one in a segment; {ASKED} tokens ask, {VALUES} labels "
        f"(chance is {100 / VALUES:.0f} %). {LAYERS} layers, 64 wide, windows of {WINDOW} to each side, which reach "
        f"{LAYERS * WINDOW} tokens; two of the layers are top-down, "
        f"with one layer over segments that do not overlap. At "
        f"most {UPDATES:,} updates of {BATCH} rows, AdamW at 0.001. *Far* is beyond the reach of the windows, *near* "
        f"within it. AdaPool is given the right importance (1 for facts). Scores are of {TESTED} rows that no arm was "
        "trained on, in percent, with 95 % bootstrap intervals over seeds "
        f"{', '.join(str(seed) for seed in sorted({row['seed'] for row in rows}))}.",
        table(
            [
                "tokens learn of segments by",
                "tokens of a segment",
                "far ↑",
                "near ↑",
                "updates until 95 % of far, each seed ↓",
                "weights",
                "CPU s",
            ],
            lines(rows),
        ),
        "Paired by seed; a run that never learned counts as the last update:",
        table(["", "tokens of a segment", "seeds", "far, points more", "updates fewer"], differences(rows)),
    ]


def main() -> None:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--page", action="store_true", help="write the page of what there is, and run nothing")
    options = parser.parse_args()
    rows = finished(FILE)
    done = {(row["arm"], row["kernel"], row["seed"]) for row in rows}
    for seed in [] if options.page else options.seeds:
        for arm, kernel in ARMS:
            if (arm, kernel, seed) not in done:
                row = run(arm, kernel, seed)
                print(json.dumps({key: value for key, value in row.items() if key != "curve"}), flush=True)
                add_run(FILE, row)
    write_page("far-segment", "Learning from a far segment", report(finished(FILE)))


if __name__ == "__main__":
    main()
