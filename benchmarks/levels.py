"""What do more levels of pooled attention bring? One to four levels of Poolingformer at equal cost, and others.

    LONGSPAN_DATA=… OMP_NUM_THREADS=1 python benchmarks/levels.py [--seeds 1 2 3 4 5] [--tasks recall novels]

Two tasks of `longspan compare`, both causal and 512 tokens long: `recall`, where sixteen keys at the end of a row ask
for values at distances from 1 to the whole row, and `novels`, a language model over the bytes of novels (it needs the
data set `pg_novels`). All arms have two layers, 64 wide, as many weights within 1 %, 32 scores per token in every
layer, and read the same rows in the same order for as many updates. What differs is how the 32 scores are spread: over
near tokens alone, or over near tokens and over pools of 4, 10 and 28 tokens farther away. The reach of an arm, in
tokens, is what its two layers can bring to a token at most; recall from beyond it must be chance.

Runs stand in `results/levels.jsonl`; those that are there are not done again.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from longspan.attention import attention_config
from longspan.compare.probes import PROBES, Probe
from longspan.compare.probes.base import HELD_OUT
from longspan.models import LongspanConfig, LongspanForCausalLM
from longspan.models.losses import IGNORED
from longspan.tasks.metrics.bootstrap import bootstrap, bootstrap_difference
from measure import RESULTS, add_run, finished, machine, rows_of, shown, table, write_page

FILE = RESULTS / "levels.jsonl"
TOKENS, WIDTH, LAYERS, HEADS, FEED_FORWARD = 512, 64, 2, 4, 512
BATCH, RATE = 8, 2e-3
UPDATES = {"recall": 1500, "novels": 1000}
TESTED = {"recall": 256, "novels": 128}
EVERY = 100
BANDS = (16, 62, 126, 266, 512)
"""Upper ends of the ranges of distances: near ones, then the reach of one, two and three levels."""


def levels(*windows: int, pooling: str = "ldconv") -> dict[str, Any]:
    """A window over tokens, then windows over pools with strides of 3, 9 and 27, which overlap by a token."""
    data = [{"left_tokens": windows[0], "right_tokens": 0}]
    for number, left in enumerate(windows[1:], start=1):
        pools = {"kernel": 3**number + 1, "stride": 3**number, "pooling": pooling}
        data.append({"left_tokens": left, "right_tokens": 0, **pools})
    return {"mechanism": "poolingformer", "levels": data, "init": "normal"}


@dataclass(frozen=True)
class Arm:
    """What is compared.

    Attributes:
        about: in words.
        reach: tokens that two layers bring to a token at most; `None` where it is the whole row.
        attention, stack: of the model.
        seeds: how many; the levels have all that are asked for.
    """

    about: str
    reach: int | None
    attention: dict[str, Any]
    stack: Any = "sequential"
    seeds: int = 100


ARMS = {
    "1 level": Arm("31 tokens", 62, levels(31)),
    "2 levels": Arm("15 tokens, 48 by 3", 126, levels(15, 48)),
    "3 levels": Arm("10 tokens, 33 by 3, 90 by 9", 266, levels(10, 33, 90)),
    "4 levels": Arm("7 tokens, 24 by 3, 72 by 9, 216 by 27", 638, levels(7, 24, 72, 216)),
    "3 levels, mean": Arm("as 3 levels, pools are means", 266, levels(10, 33, 90, pooling="mean"), seeds=1),
    "3 levels, max": Arm("as 3 levels, pools are maxima", 266, levels(10, 33, 90, pooling="max"), seeds=1),
    "dilated": Arm(
        "every 8th of 248 tokens in half of the heads, 31 in the others",
        496,
        {"mechanism": "longformer", "left_tokens": 31, "right_tokens": 0, "dilation": [1, 1, 8, 8]},
        seeds=1,
    ),
    "linear": Arm("a sum of all tokens, linear attention", None, {"mechanism": "linear"}, seeds=1),
}


def build(arm: Arm, probe: Probe, feed_forward: int, seed: int) -> LongspanForCausalLM:
    """A language model with the mechanism or the stack of an arm."""
    torch.manual_seed(seed)
    config = LongspanConfig(
        vocab_size=probe.vocabulary,
        pad_token_id=probe.padding,
        bos_token_id=None,
        eos_token_id=None,
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_hidden_layers=LAYERS,
        intermediate_size=feed_forward,
        max_position_embeddings=TOKENS,
        position_embedding="sinusoidal",
        scale_embedding=True,
        init_std=0.8 / WIDTH**0.5,
        normalization="pre",
        dropout=0.0,
        attention=arm.attention,
        stack=arm.stack,
    )
    return LongspanForCausalLM(config)


def weights(model: nn.Module) -> int:
    """How many numbers a model's weights have."""
    return sum(weight.numel() for weight in model.parameters())


def matched(arm: Arm, probe: Probe, seed: int) -> LongspanForCausalLM:
    """The model of an arm, whose feed-forward layers make up for the weights of its attention."""
    target = weights(build(ARMS["1 level"], probe, FEED_FORWARD, seed))
    count, wider = (weights(build(arm, probe, FEED_FORWARD + more, seed)) for more in (0, 1))
    model = build(arm, probe, FEED_FORWARD + round((target - count) / (wider - count)), seed)
    assert abs(weights(model) - target) <= 0.01 * target
    return model


@cache
def prepared(task: str) -> Probe:
    """A task, with the documents that it needs."""
    kind, folder = PROBES[task], Path(tempfile.mkdtemp())
    kind.prepare(folder)
    return kind(TOKENS, folder)


def losses(model: nn.Module, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The loss in nats and whether the likeliest answer is right, of every place that asks."""
    asked = labels != IGNORED
    logits, answers = model(input_ids=ids).logits[asked], labels[asked]
    return cross_entropy(logits, answers, reduction="none"), logits.argmax(-1) == answers


@torch.no_grad()
def score(model: nn.Module, probe: Probe, task: str) -> dict[str, Any]:
    """On held-out rows: bits per answer, the percentage of right ones, and that in every range of distances."""
    model.eval()
    bits, right, far = [], [], []
    for first in range(0, TESTED[task], BATCH):
        ids, labels, distances = rows_of(probe, HELD_OUT, first, BATCH)
        nats, is_right = losses(model, ids, labels)
        bits.append(nats / math.log(2))
        right.append(is_right)
        far.append(distances[labels != IGNORED])
    model.train()
    found, distance = torch.cat(right).double(), torch.cat(far)
    scores: dict[str, Any] = {"bits": round(float(torch.cat(bits).double().mean()), 4)}
    scores["right"] = round(100 * float(found.mean()), 2)
    if task == "recall":
        lower = (0, *BANDS[:-1])
        within = [found[(distance > low) & (distance <= high)] for low, high in zip(lower, BANDS, strict=True)]
        scores["by_distance"] = [round(100 * float(some.mean()), 2) for some in within]
    return scores


def run(task: str, name: str, seed: int) -> dict[str, Any]:
    """Train and score one arm."""
    arm, probe, start = ARMS[name], prepared(task), time.process_time()
    model = matched(arm, probe, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    curve, updates = [], UPDATES[task]
    for update in range(1, updates + 1):
        ids, labels, _ = rows_of(probe, seed, (update - 1) * BATCH, BATCH)
        optimizer.param_groups[0]["lr"] = RATE * min(1.0, 10 * update / updates) * (1 - update / (updates + 1))
        optimizer.zero_grad()
        loss = losses(model, ids, labels)[0].mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if update % EVERY == 0:
            curve.append(round(loss.item() / math.log(2), 4))
    scores_per_token = attention_config(arm.attention).scores_per_token(TOKENS, causal=True)
    return {
        "task": task,
        "arm": name,
        "seed": seed,
        **score(model, probe, task),
        "curve": curve,
        "weights": weights(model),
        "scores_per_token": round(scores_per_token, 1),
        "seconds": round(time.process_time() - start, 1),
    }


def runs_of(task: str) -> list[dict[str, Any]]:
    """The runs of a task that are done, by seed."""
    return sorted((row for row in finished(FILE) if row["task"] == task), key=lambda row: row["seed"])


def of(rows: Sequence[dict[str, Any]], arm: str, score: str) -> list[float]:
    """A score of an arm, for every seed."""
    return [row[score] for row in rows if row["arm"] == arm]


def recall_lines(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A line for each arm: right answers by distance."""
    lines = []
    for name, arm in ARMS.items():
        runs = [row for row in rows if row["arm"] == name]
        if runs:
            bands = [shown(bootstrap([run["by_distance"][band] for run in runs])) for band in range(len(BANDS))]
            lines.append([name, reach_of(arm), str(len(runs)), *bands, f"{runs[0]['seconds']:.0f}"])
    return lines


def novel_lines(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A line for each arm: bits per byte, and the difference to one level with the same seeds."""
    lines, base = [], {row["seed"]: row["bits"] for row in rows if row["arm"] == "1 level"}
    for name, arm in ARMS.items():
        runs = [row for row in rows if row["arm"] == name]
        if not runs:
            continue
        paired = [(run["bits"], base[run["seed"]]) for run in runs if run["seed"] in base]
        difference = (
            "–"
            if name == "1 level" or not paired
            else shown(bootstrap_difference(*zip(*paired, strict=True)), signed=True, digits=3)
        )
        bits = shown(bootstrap([run["bits"] for run in runs]), digits=3)
        lines.append([name, reach_of(arm), str(len(runs)), bits, difference, f"{runs[0]['seconds']:.0f}"])
    return lines


def reach_of(arm: Arm) -> str:
    """In tokens."""
    return "the row" if arm.reach is None or arm.reach >= TOKENS else f"{arm.reach}"


def report() -> list[str]:
    """The page's parts."""
    recall, novels = runs_of("recall"), runs_of("novels")
    arms = [[name, arm.about, reach_of(arm)] for name, arm in ARMS.items()]
    costs = {row["arm"]: (row["weights"], row["scores_per_token"]) for row in recall or novels}
    lines = [[*line, *(f"{value:,}" for value in costs.get(line[0], ("–", "–")))] for line in arms]
    low = (0, *BANDS[:-1])
    parts = [
        f"{machine()}, which did other work as well; processor time.",
        f"Causal, {TOKENS} tokens, {LAYERS} layers, {WIDTH} wide, {HEADS} heads; AdamW at {RATE}, {BATCH} rows an "
        f"update: {UPDATES['recall']:,} updates of recall, {UPDATES['novels']:,} of novels. *Reach* is what two layers "
        "bring to a token at most. Scores per token are a layer's, edges of the row counted. 95 % bootstrap intervals "
        "over seeds.",
        table(["arm", "windows to the left", "reach", "weights", "scores per token"], lines),
    ]
    if recall:
        header = ["arm", "reach", "seeds", *(f"{a + 1}–{b}" for a, b in zip(low, BANDS, strict=True)), "CPU s"]
        text = f"## Recall\n\nRight answers in percent by distance (chance is {100 / 8}); {TESTED['recall']} rows."
        parts += [text, table(header, recall_lines(recall))]
    if novels:
        text = "## Novels\n\nBits per byte of held-out text, behind half a row at least; lower is better."
        header = ["arm", "reach", "seeds", "bits per byte ↓", "against 1 level", "CPU s"]
        parts += [text, table(header, novel_lines(novels))]
    return parts


def main() -> None:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--tasks", nargs="+", choices=list(UPDATES), default=list(UPDATES))
    parser.add_argument("--page", action="store_true", help="write the page of what there is, and run nothing")
    options = parser.parse_args()
    done = {(row["task"], row["arm"], row["seed"]) for row in finished(FILE)}
    asked = [(task, arm, seed) for seed in options.seeds for task in options.tasks for arm in ARMS]
    for task, arm, seed in [] if options.page else asked:
        if seed <= ARMS[arm].seeds and (task, arm, seed) not in done:
            row = run(task, arm, seed)
            print(json.dumps(row), flush=True)
            add_run(FILE, row)
    write_page("levels", "What more levels of pooled attention bring", report())


if __name__ == "__main__":
    main()
