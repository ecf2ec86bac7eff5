"""Do the headline claims of the papers hold at a size where they can be seen? Arms at equal updates, five seeds each.

    LONGSPAN_DATA=… OMP_NUM_THREADS=1 python benchmarks/claims.py [--claims fusion sparse …] [--seeds 1 2 3 4 5]

A claim states that one arm is better than another; both read the same rows in the same order for as many updates, with
equal numbers of weights within 1 % (the feed-forward layers make up for the attention) unless an arm states otherwise.
Five tasks, 256 tokens each: `novels`, a causal language model over bytes, and `masked`, 15 % of whose bytes are hidden
(both need the data set `pg_novels`); `textures`, a causal model of pictures of 16 × 16 whose pixels follow from the
pixel above and the one to the left; `recall`, bidirectional, four facts and sixteen questions at the end
(`levels.py`); `few`, 200 pieces of documents, read twelve times: which source is it from (needs `LONGSPAN_DATA`)?

Finished runs are lines of `results/claims.jsonl` and are not run again. About a minute of one core for a run. The page
that compares these and all other measurements with the papers' is `docs/claims.md`, written by hand from
`results/claims.md`.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from levels import FarRecall
from longspan.compare.probes import PROBES, Probe
from longspan.compare.probes.base import HELD_OUT, Form, Row, asked
from longspan.models import LongspanForCausalLM, LongspanForMaskedLM
from longspan.models.losses import IGNORED
from longspan.tasks.metrics.bootstrap import bootstrap, bootstrap_difference
from measure import RESULTS, add_run, finished, machine, shown, table, write_page
from small_models import HEADS, LAYERS, WIDTH, prepared, small_config, train, weights, with_weights

FILE = RESULTS / "claims.jsonl"
TOKENS, FEED_FORWARD = 256, 448
SIDE, SHADES = 16, 8


@dataclass(frozen=True)
class Task:
    """How a task is trained and tested; `higher` is whether more is better."""

    rate: float
    batch: int
    updates: int
    tested: int
    causal: bool
    higher: bool = False
    distinct: int | None = None
    """Rows of training; read again and again. Without, no row comes twice."""


TASKS = {
    "novels": Task(rate=2e-3, batch=8, updates=600, tested=192, causal=True),
    "masked": Task(rate=2e-3, batch=8, updates=1200, tested=192, causal=False),
    "textures": Task(rate=2e-3, batch=8, updates=400, tested=128, causal=True),
    "recall": Task(rate=1e-3, batch=16, updates=600, tested=256, causal=False, higher=True),
    "few": Task(rate=1e-3, batch=8, updates=300, tested=512, causal=False, higher=True, distinct=200),
}


@dataclass(frozen=True)
class Arm:
    """A model: the attention of all layers (None where the stack has its own), further fields of the configuration, and
    whether questions are global."""

    attention: dict[str, Any] | None
    fields: dict[str, Any] = field(default_factory=dict)
    global_questions: bool = False
    equal_weights: bool = True


def window(left: int, right: int = 0, **options: Any) -> dict[str, Any]:
    return {"mechanism": "longformer", "left_tokens": left, "right_tokens": right, **options}


def pooled(mechanism: str, **options: Any) -> dict[str, Any]:
    """11 tokens and 36 to each side in pools of 4, three apart."""
    windows = {"left_tokens": 11, "right_tokens": 11, "pooled_left_tokens": 36, "pooled_right_tokens": 36}
    return {"mechanism": mechanism, **windows, "kernel": 4, "stride": 3, "init": "normal", **options}


def synthesizer(*members: str, rank: int = 8) -> dict[str, Any]:
    return {"mechanism": "synthesizer", "members": list(members), "max_tokens": TOKENS, "rank": rank}


def linformer(slots: int) -> Arm:
    attention = {"mechanism": "linformer", "slots": slots, "max_tokens": TOKENS, "sharing": "layerwise"}
    return Arm(attention, equal_weights=False)


def bigbird(random_blocks: int) -> Arm:
    return Arm({"mechanism": "bigbird", "block_tokens": 8, "global_blocks": 0, "random_blocks": random_blocks})


FULL = {"mechanism": "full"}
SPARSE: dict[str, Any] = {"mechanism": "sparse", "stride": SIDE, "summary_tokens": 4, "heads": "merged"}
ARMS: dict[str, dict[str, Arm]] = {
    "novels": {
        "full": Arm(FULL),
        "window 31": Arm(window(31)),
        "fixed columns": Arm(SPARSE | {"kind": "fixed"}),
        "strided columns": Arm(SPARSE | {"kind": "strided"}),
        "the largest 8": Arm({"mechanism": "explicit_sparse", "top_k": 8}),
        "elu features": Arm({"mechanism": "linear"}),
        "random features": Arm({"mechanism": "performer"}),
        "Synthesizer, random": Arm(synthesizer("factorised_random")),
        "Synthesizer, random + scores": Arm(synthesizer("factorised_random", "vanilla")),
    },
    "masked": {
        "full": Arm(FULL),
        "window 23": Arm(window(23, 23)),
        "Poolingformer": Arm(pooled("poolingformer")),
        "fusion": Arm(pooled("fusion", relative_span=64), {"position_embedding": "none"}),
        "fusion, one level": Arm(
            pooled("fusion", relative_span=64, two_level=False, left_tokens=23, right_tokens=23),
            {"position_embedding": "none"},
        ),
        "Linformer, 64 slots": linformer(64),
    },
    "textures": {
        "full": Arm(FULL),
        "fixed columns": Arm(SPARSE | {"kind": "fixed"}),
        "strided columns": Arm(SPARSE | {"kind": "strided"}),
    },
    "recall": {
        "full": Arm(FULL),
        "windows of blocks": bigbird(0),
        "and 3 random blocks": bigbird(3),
        "window 11": Arm(window(11, 11)),
        "and global questions": Arm(window(11, 11), global_questions=True),
    },
    "few": {"full": Arm(FULL), "star": Arm(None, {"stack": {"stack": "star"}}, equal_weights=False)},
}


@dataclass(frozen=True)
class Claim:
    """`better` beats `than`, or is no worse by more than `within` of the score of `than`."""

    words: str
    source: str
    task: str
    better: str
    than: str
    within: float | None = None


CLAIMS = {
    "fusion": Claim(
        "relative positions in both levels beat absolute ones",
        "fusion of Poolingformer and DeBERTa",
        "masked",
        "fusion",
        "Poolingformer",
    ),
    "fusion-levels": Claim(
        "with relative positions, too, two levels beat one at equal cost",
        "the same",
        "masked",
        "fusion",
        "fusion, one level",
    ),
    "two-levels": Claim(
        "two levels beat one at equal cost", "Zhang et al. 2021", "masked", "Poolingformer", "window 23"
    ),
    "fixed-text": Claim(
        "fixed columns beat strided ones on text",
        "Child et al. 2019",
        "novels",
        "fixed columns",
        "strided columns",
    ),
    "strided-pictures": Claim(
        "strided columns beat fixed ones on pictures",
        "Child et al. 2019",
        "textures",
        "strided columns",
        "fixed columns",
    ),
    "columns": Claim(
        "columns beat a window of as many tokens", "Child et al. 2019", "novels", "fixed columns", "window 31"
    ),
    "top-8": Claim("the 8 largest scores alone beat all", "Zhao et al. 2019", "novels", "the largest 8", "full"),
    "elu": Claim(
        "elu features come within 5 % of softmax",
        "Katharopoulos et al. 2020",
        "novels",
        "elu features",
        "full",
        within=0.05,
    ),
    "random-features": Claim(
        "random features come within 5 % of softmax",
        "Choromanski et al. 2021",
        "novels",
        "random features",
        "full",
        within=0.05,
    ),
    "synthesizer-random": Claim(
        "a random Synthesizer (factorised) comes within 5 % of full attention",
        "Tay et al. 2021",
        "novels",
        "Synthesizer, random",
        "full",
        within=0.05,
    ),
    "synthesizer-mixture": Claim(
        "a Synthesizer added to scores beats scores alone",
        "Tay et al. 2021",
        "novels",
        "Synthesizer, random + scores",
        "full",
    ),
    "linformer-k": Claim(
        "a quarter of the length in slots comes within 5 % of full attention",
        "Wang et al. 2020",
        "masked",
        "Linformer, 64 slots",
        "full",
        within=0.05,
    ),
    "random-blocks": Claim(
        "random blocks added to windows beat windows alone",
        "Zaheer et al. 2020",
        "recall",
        "and 3 random blocks",
        "windows of blocks",
    ),
    "star": Claim("a star beats full attention where data are few", "Guo et al. 2019", "few", "star", "full"),
    "global": Claim(
        "global tokens beat windows alone in answering",
        "Beltagy et al. 2020",
        "recall",
        "and global questions",
        "window 11",
    ),
}


class Textures(Probe):
    """Pictures read pixel by pixel: a pixel is the sum of the one above and the one to the left, modulo `SHADES`, or,
    once in eight, any. The first row and column are random; every pixel is predicted, with its left neighbour known.
    """

    name = "textures"
    forms = ("causal",)
    score = "bits per pixel"

    @property
    def vocabulary(self) -> int:
        return SHADES + 1

    @property
    def chance(self) -> None:
        return None

    def make(self, random: np.random.Generator, form: Form) -> Row:
        shades = random.integers(SHADES, size=(SIDE, SIDE))
        noise = random.random((SIDE, SIDE)) < 1 / 8
        for y in range(1, SIDE):
            for x in range(1, SIDE):
                if not noise[y, x]:
                    shades[y, x] = (shades[y - 1, x] + shades[y, x - 1]) % SHADES
        ids = shades.reshape(-1)
        return asked(ids, np.arange(len(ids) - 1), ids[1:])


def probe(task: str) -> Probe:
    kinds = {"recall": FarRecall, "textures": Textures, "few": PROBES["bytes"]}
    return prepared(kinds.get(task, PROBES["novels"]), TOKENS)


def whole_row(task: str, seed: int, number: int) -> Row:
    """The row of a number, or, where a document ended early, the next one that is as long as the others."""
    while True:
        row = probe(task).row(seed, number, "causal")
        if len(row.ids) == TOKENS:
            return row
        number += 1_000_000


def rows(task: str, seed: int, first: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, labels and global tokens of a batch, `(B, T)` each."""
    numbers, distinct = range(first, first + TASKS[task].batch), TASKS[task].distinct
    if distinct is not None and seed != HELD_OUT:
        numbers = [number % distinct for number in numbers]
    drawn = [whole_row(task, seed, number) for number in numbers]
    ids, labels, is_global = (
        torch.from_numpy(np.stack([getattr(row, name) for row in drawn])) for name in ("ids", "labels", "is_global")
    )
    if task == "masked":
        choice = torch.Generator().manual_seed(seed * 1_000_003 + first)
        hidden = torch.rand(ids.shape, generator=choice) < 0.15
        labels = torch.where(hidden, ids, IGNORED)
        ids = ids.masked_fill(hidden, probe(task).vocabulary)
    return ids, labels, is_global


def build(task: str, arm: Arm, feed_forward: int, seed: int) -> LongspanForCausalLM | LongspanForMaskedLM:
    torch.manual_seed(seed)
    fields: dict[str, Any] = {"position_embedding": "sinusoidal"} | arm.fields
    if arm.attention is not None:
        fields |= {"attention": arm.attention, "normalization": "pre", "intermediate_size": feed_forward}
    # One token more than the probe has hides those of `masked`.
    config = small_config(probe(task).vocabulary + 1, probe(task).padding, TOKENS, **fields)
    return (LongspanForCausalLM if TASKS[task].causal else LongspanForMaskedLM)(config)


def matched(task: str, arm: Arm, seed: int) -> LongspanForCausalLM | LongspanForMaskedLM:
    """The model of an arm, with as many weights as `full` has unless it states otherwise."""
    if not arm.equal_weights:
        return build(task, arm, FEED_FORWARD, seed)
    target = weights(build(task, ARMS[task]["full"], FEED_FORWARD, seed))
    return with_weights(lambda width: build(task, arm, width, seed), FEED_FORWARD, target)


def losses(model: Any, arm: Arm, batch: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Nats and whether the likeliest token is right, of every token that has a label."""
    ids, labels, is_global = batch
    inputs = {"global_attention_mask": is_global.long()} if arm.global_questions else {}
    asks = labels != IGNORED
    logits, answers = model(ids, **inputs).logits[asks], labels[asks]
    return cross_entropy(logits, answers, reduction="none"), logits.argmax(-1) == answers


def run(task: str, name: str, seed: int) -> dict[str, Any]:
    """Train and score one arm."""
    arm, plan, start = ARMS[task][name], TASKS[task], time.process_time()
    model = matched(task, arm, seed).train()

    def backward(update: int) -> None:
        nats, _ = losses(model, arm, rows(task, seed, (update - 1) * plan.batch))
        nats.mean().backward()

    train(model, plan.rate, plan.updates, backward)
    model.eval()
    with torch.no_grad():
        parts = [losses(model, arm, rows(task, HELD_OUT, first)) for first in range(0, plan.tested, plan.batch)]
    bits = torch.cat([nats for nats, _ in parts]).double().mean() / math.log(2)
    right = torch.cat([right for _, right in parts]).double().mean()
    return {
        "task": task,
        "arm": name,
        "seed": seed,
        "score": round(100 * float(right), 2) if plan.higher else round(float(bits), 4),
        "weights": weights(model),
        "seconds": round(time.process_time() - start, 1),
    }


def verdict(claim: Claim, pairs: list[tuple[float, float]]) -> tuple[str, str]:
    """The difference with its interval, positive where the claim's arm is better, and what it decides."""
    sign = 1 if TASKS[claim.task].higher else -1
    ours, theirs = zip(*pairs, strict=True)
    middle, low, high = (
        bootstrap_difference([sign * x for x in ours], [sign * x for x in theirs])
        if len(pairs) > 1
        else (sign * (ours[0] - theirs[0]),) * 3
    )
    allowed = 0.0 if claim.within is None else -claim.within * sum(theirs) / len(theirs)
    decided = "holds" if low > allowed else "does not hold" if high < allowed else "not decided"
    digits = 1 if TASKS[claim.task].higher else 3
    return shown((middle, low, high), signed=True, digits=digits), decided if len(pairs) >= 5 else "not decided"


def report(done: list[dict[str, Any]]) -> list[str]:
    scores = {(row["task"], row["arm"], row["seed"]): row["score"] for row in done}
    lines = []
    for claim in CLAIMS.values():
        seeds = sorted({seed for task, arm, seed in scores if (task, arm) == (claim.task, claim.better)})
        seeds = [seed for seed in seeds if (claim.task, claim.than, seed) in scores]
        if seeds:
            pairs = [tuple(scores[claim.task, arm, seed] for arm in (claim.better, claim.than)) for seed in seeds]
            lines.append([claim.words, claim.source, claim.task, str(len(seeds)), *verdict(claim, pairs)])  # pyright: ignore[reportArgumentType]
    arms = []
    for task, some in ARMS.items():
        for name in some:
            runs = [row for row in done if (row["task"], row["arm"]) == (task, name)]
            if runs:
                digits = 1 if TASKS[task].higher else 3
                values = [row["score"] for row in sorted(runs, key=lambda row: row["seed"])]
                mean = shown(bootstrap(values), digits=digits) if len(values) > 1 else f"{values[0]:.{digits}f}"
                each = " ".join(f"{value:.{digits}f}" for value in values)
                seconds = f"{sum(row['seconds'] for row in runs) / len(runs):.0f}"
                arms.append([task, name, mean, each, f"{runs[0]['weights']:,}", seconds])
    plans = "; ".join(
        f"{name}: {task.updates:,} updates of {task.batch} rows, AdamW at {task.rate}, {task.tested} rows tested"
        for name, task in TASKS.items()
    )
    return [
        f"{machine()}, which did other work as well; processor time.",
        f"{TOKENS} tokens, {LAYERS} layers, {WIDTH} wide, {HEADS} heads. {plans}. `recall` is scored in percent of "
        "right answers (chance is 25), the others in bits per token. Intervals: 95 %, bootstrap over seeds, paired.",
        "## Claims\n\nThe difference is positive where the arm of the claim is better. *Holds*: the whole interval is "
        "above zero (above minus 5 % where the claim is to come near); *does not hold*: the whole interval is below; "
        "with fewer than five seeds nothing is decided.",
        table(["claim", "of", "task", "seeds", "difference", "here"], lines),
        "## Arms",
        table(["task", "arm", "score", "each seed", "weights", "CPU s"], arms),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--claims", nargs="+", choices=list(CLAIMS), default=list(CLAIMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--page", action="store_true", help="write the page of what there is, and run nothing")
    options = parser.parse_args()
    done = {(row["task"], row["arm"], row["seed"]) for row in finished(FILE)}
    for seed in [] if options.page else options.seeds:
        for claim in (CLAIMS[name] for name in options.claims):
            for arm in (claim.better, claim.than):
                if (claim.task, arm, seed) not in done:
                    row = run(claim.task, arm, seed)
                    print(json.dumps(row), flush=True)
                    add_run(FILE, row)
                    done.add((claim.task, arm, seed))
    write_page("claims", "Which claims of the papers hold at this size?", report(finished(FILE)))


if __name__ == "__main__":
    main()
