"""What do more levels of pooled attention bring? One to four levels of Poolingformer at equal cost, and others.

    LONGSPAN_DATA=… OMP_NUM_THREADS=1 python benchmarks/levels.py [--seeds 1 2 3 4 5] [--tasks recall novels] [--arms …]

Two tasks, both causal and 256 tokens long. `recall`: four facts "key = value", each one token, stand among fillers, and
sixteen tokens at the end ask for the keys; a fact is as likely in each range of distances. `novels`, a task of
`longspan compare`: a language model over the bytes of novels (it needs the data set `pg_novels`). All arms have two
layers, 64 wide, as many weights within 1 %, about 24 scores per token in every layer (`linear` has none), and
read the same rows in the same order for as many updates. What differs is how the 24 scores are spread: over near tokens
alone, or over near tokens and over pools of 4, 10 and 28 tokens farther away. The reach of an arm, in tokens, is what
its two layers can bring to a token at most; recall from beyond it must be chance.

Runs stand in `results/levels.jsonl`; those that are there are not done again. About seven minutes on one core for a
seed of the levels, and fifteen for all arms.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from curves import Curve, Panel, draw_curves
from longspan.attention import attention_config
from longspan.compare.probes import PROBES, Probe
from longspan.compare.probes.base import HELD_OUT, Form, Row, asked
from longspan.compare.probes.made_up import Recall
from longspan.models import LongspanForCausalLM
from longspan.models.losses import IGNORED
from longspan.stacks import stack_config
from longspan.tasks.metrics.bootstrap import bootstrap, bootstrap_difference
from measure import RESULTS, add_run, finished, machine, rows_of, shown, table, write_page
from small_models import HEADS, LAYERS, WIDTH, prepared, small_config, train, weights, with_weights

FILE = RESULTS / "levels.jsonl"
TOKENS, FEED_FORWARD = 256, 448
EVERY = 100
RATE = {"recall": 1e-3, "novels": 2e-3}
BATCH = {"recall": 16, "novels": 8}
UPDATES = {"recall": 800, "novels": 400}
TESTED = {"recall": 256, "novels": 128}
BANDS = (16, 46, 94, 206, 256)
"""Upper ends of the ranges of distances: near ones, then the reach of one, two and three levels, and the whole row."""
LEVELS = ("1 level", "2 levels", "3 levels", "4 levels")


class FarRecall(Recall):
    """Facts that are as likely in each range of distances, behind which sixteen tokens ask for four keys."""

    keys, values, fillers, asking = 4, 4, 8, 16

    def make(self, random: np.random.Generator, form: Form) -> Row:
        room, asking = self.tokens - self.asking, np.arange(self.tokens - self.asking, self.tokens)
        ids = self.values + random.integers(self.fillers, size=self.tokens)
        answers = random.integers(self.values, size=self.keys)
        asked_keys = np.concatenate([random.permutation(self.keys) for _ in range(self.asking // self.keys)])
        lowest, highest = np.array((0, *BANDS[:-1])), np.minimum(BANDS, room)
        places = np.zeros(self.keys, np.int64)
        while len(set(places.tolist())) < self.keys:
            bands = random.integers(len(BANDS), size=self.keys)
            places = room - 1 - random.integers(lowest[bands], highest[bands])
        ids[asking] = self.values + self.fillers + asked_keys
        ids[places] = self.values + self.fillers + self.keys + np.arange(self.keys) * self.values + answers
        return asked(ids, asking, answers[asked_keys], asking - places[asked_keys])


def levels(*windows: int, pooling: str = "ldconv") -> dict[str, Any]:
    """A window over tokens, then windows over pools with strides of 3, 9 and 27, which overlap by a token."""
    data = [{"left_tokens": windows[0], "right_tokens": 0}]
    for number, left in enumerate(windows[1:], start=1):
        pools = {"kernel": 3**number + 1, "stride": 3**number, "pooling": pooling}
        data.append({"left_tokens": left, "right_tokens": 0, **pools})
    return sequential({"mechanism": "poolingformer", "levels": data, "init": "normal"})


def sequential(attention: dict[str, Any]) -> dict[str, Any]:
    """Blocks with an attention, one behind the other."""
    return {"attention": attention, "normalization": "pre"}


@dataclass(frozen=True)
class Arm:
    """What is compared.

    Attributes:
        about: in words.
        reach: tokens that two layers bring to a token at most; `None` where it is the whole row.
        fields: of the model's configuration, where arms differ.
        seeds: how many; the levels have all that are asked for.
        segment: tokens that are read at once, where a memory goes on with the row.
    """

    about: str
    reach: int | None
    fields: dict[str, Any]
    seeds: int = 100
    segment: int = TOKENS


COMPRESSIVE: dict[str, Any] = {"stack": "recurrent", "memory_tokens": 8, "compressed_tokens": 8, "rate": 3}
ARMS = {
    "1 level": Arm("23 tokens", 46, levels(23)),
    "2 levels": Arm("11 tokens, 36 by 3", 94, levels(11, 36)),
    "3 levels": Arm("7 tokens, 24 by 3, 72 by 9", 206, levels(7, 24, 72)),
    "4 levels": Arm("7 tokens, 21 by 3, 63 by 9, 81 by 27", 344, levels(7, 21, 63, 81)),
    "3 levels, mean": Arm("as 3 levels, pools are means", 206, levels(7, 24, 72, pooling="mean"), seeds=5),
    "3 levels, max": Arm("as 3 levels, pools are maxima", 206, levels(7, 24, 72, pooling="max"), seeds=5),
    "dilated": Arm(
        "every 8th of 184 tokens in half of the heads, 23 in the others",
        368,
        sequential({"mechanism": "longformer", "left_tokens": 23, "right_tokens": 0, "dilation": [1, 1, 8, 8]}),
        seeds=1,
    ),
    "binary partition": Arm(
        "a tree: 2 tokens or spans of each length from 1 to 256",
        None,
        {"stack": {"stack": "binary_partition", "neighbours": 2}},
        seeds=1,
    ),
    "compressive": Arm(
        "segments of 16, a memory of 8 and 8 compressed by 3; relative positions",
        2 * (8 + 8 * 3) + 15,
        {"stack": COMPRESSIVE, "position_embedding": "none"}
        | sequential({"mechanism": "full", "positions": "relative", "bias": False}),
        seeds=1,
        segment=16,
    ),
    "linear": Arm("a sum of all tokens, linear attention", None, sequential({"mechanism": "linear"}), seeds=1),
}


def scores_per_token(arm: Arm) -> float:
    """Of a layer: its attention's, what lies in a memory counted; of a tree, those of its spans too."""
    own = arm.fields.get("attention")
    if arm.segment < TOKENS:
        return (arm.segment + 1) / 2 + COMPRESSIVE["memory_tokens"] + COMPRESSIVE["compressed_tokens"]
    if own is not None:
        return attention_config(own).scores_per_token(TOKENS, causal=True)
    costs = stack_config(arm.fields["stack"]).costs(layers=1, tokens=TOKENS, width=WIDTH)
    assert costs is not None
    assert costs.layers is not None
    ((attention, nodes),) = costs.layers
    return attention.scores_per_token(nodes, causal=True) * nodes / TOKENS


def build(arm: Arm, probe: Probe, feed_forward: int, seed: int) -> LongspanForCausalLM:
    """A language model with the mechanism or the stack of an arm."""
    torch.manual_seed(seed)
    fields: dict[str, Any] = {"position_embedding": "sinusoidal"} | arm.fields
    return LongspanForCausalLM(
        small_config(probe.vocabulary, probe.padding, TOKENS, intermediate_size=feed_forward, **fields)
    )


def matched(arm: Arm, probe: Probe, seed: int) -> LongspanForCausalLM:
    """The model of an arm, whose feed-forward layers make up for the weights of its attention."""
    target = weights(build(ARMS["1 level"], probe, FEED_FORWARD, seed))
    return with_weights(lambda width: build(arm, probe, width, seed), FEED_FORWARD, target)


def probe_of(task: str) -> Probe:
    return prepared(FarRecall if task == "recall" else PROBES[task], TOKENS)


def losses(model: Any, ids: Tensor, labels: Tensor, segment: int) -> tuple[Tensor, Tensor, Tensor | float]:
    """The loss in nats and whether the likeliest answer is right, of every place that asks; and what the stack has lost
    besides, in training."""
    cache, lost, states = None, 0.0, []
    for part in ids.split(segment, 1):
        decoded = model.decoder(part, cache=cache, use_cache=segment < TOKENS)
        cache, lost = decoded.cache, lost + (0.0 if decoded.stack_loss is None else decoded.stack_loss)
        states.append(decoded.last_hidden_state)
    asks = labels != IGNORED
    logits, answers = model.lm_head(torch.cat(states, 1)[asks]), labels[asks]
    return cross_entropy(logits, answers, reduction="none"), logits.argmax(-1) == answers, lost


@torch.no_grad()
def score(model: nn.Module, task: str, segment: int, count: int) -> dict[str, Any]:
    """On held-out rows: bits per answer, the percentage of right ones, and that in every range of distances."""
    model.eval()
    bits, right, far = [], [], []
    for first in range(0, count, BATCH[task]):
        ids, labels, distances = rows_of(probe_of(task), HELD_OUT, first, BATCH[task])
        nats, is_right, _ = losses(model, ids, labels, segment)
        bits.append(nats / math.log(2))
        right.append(is_right)
        far.append(distances[labels != IGNORED])
    model.train()
    answers, distance = torch.cat(right).double(), torch.cat(far)
    scores: dict[str, Any] = {"bits": round(float(torch.cat(bits).double().mean()), 4)}
    scores["right"] = round(100 * float(answers.mean()), 2)
    if task == "recall":
        lower = (0, *BANDS[:-1])
        within = [answers[(distance > low) & (distance <= high)] for low, high in zip(lower, BANDS, strict=True)]
        scores["by_distance"] = [round(100 * float(some.mean()), 2) for some in within]
    return scores


def run(task: str, name: str, seed: int) -> dict[str, Any]:
    """Train and score one arm."""
    arm, start = ARMS[name], time.process_time()
    model = matched(arm, probe_of(task), seed).train()
    curve = []

    def backward(update: int) -> None:
        ids, labels, _ = rows_of(probe_of(task), seed, (update - 1) * BATCH[task], BATCH[task])
        nats, _, lost = losses(model, ids, labels, arm.segment)
        (nats.mean() + lost).backward()

    def after(update: int) -> None:
        if update % EVERY == 0:
            curve.append({"update": update} | score(model, task, arm.segment, TESTED[task] // 4))

    train(model, RATE[task], UPDATES[task], backward, after)
    return {
        "task": task,
        "arm": name,
        "seed": seed,
        **score(model, task, arm.segment, TESTED[task]),
        "curve": curve,
        "weights": weights(model),
        "scores_per_token": round(scores_per_token(arm), 1),
        "seconds": round(time.process_time() - start, 1),
    }


def of(rows: Sequence[dict[str, Any]], task: str, arm: str) -> list[dict[str, Any]]:
    """The runs of an arm, by seed."""
    return sorted((row for row in rows if (row["task"], row["arm"]) == (task, arm)), key=lambda row: row["seed"])


def reach_of(arm: Arm) -> str:
    """In tokens."""
    return "the row" if arm.reach is None or arm.reach >= TOKENS else f"{arm.reach}"


def recall_lines(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A line for each arm: right answers by distance; those that are beyond its reach are in brackets."""
    lines = []
    for name, arm in ARMS.items():
        runs = of(rows, "recall", name)
        if not runs:
            continue
        cells = []
        for band, low in enumerate((0, *BANDS[:-1])):
            cell = shown(bootstrap([run["by_distance"][band] for run in runs]))
            if len(runs) < 3:  # too few for an interval
                cell = " / ".join(f"{run['by_distance'][band]:.1f}" for run in runs)
            cells.append(f"[{cell}]" if arm.reach is not None and low >= arm.reach else cell)
        lines.append([name, reach_of(arm), str(len(runs)), *cells, seconds(runs)])
    return lines


def novel_lines(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A line for each arm: bits per byte, and the difference to one level with the same seeds."""
    lines, base = [], {row["seed"]: row["bits"] for row in of(rows, "novels", LEVELS[0])}
    for name, arm in ARMS.items():
        runs = of(rows, "novels", name)
        if not runs:
            continue
        paired = [(run["bits"], base[run["seed"]]) for run in runs if run["seed"] in base]
        bits, difference = f"{runs[0]['bits']:.3f}", "–"
        if len(runs) > 1:
            bits = shown(bootstrap([run["bits"] for run in runs]), digits=3)
        if name != LEVELS[0] and paired:
            difference = f"{paired[0][0] - paired[0][1]:+.3f}"
            if len(paired) > 1:
                difference = shown(bootstrap_difference(*zip(*paired, strict=True)), signed=True, digits=3)
        lines.append([name, reach_of(arm), str(len(runs)), bits, difference, seconds(runs)])
    return lines


def seconds(runs: Sequence[dict[str, Any]]) -> str:
    """Of a run, on average."""
    return f"{statistics.mean(run['seconds'] for run in runs):.0f}"


def draw(rows: Sequence[dict[str, Any]]) -> None:
    """Recall by distance and by update, and bits per byte by update; means over the seeds of each number of levels."""

    def means(task: str, points: Callable[[dict[str, Any]], list[tuple[float, float]]]) -> list[Curve]:
        curves = []
        for name in LEVELS:
            runs = [points(run) for run in of(rows, task, name)]
            across = [(each[0][0], statistics.mean(y for _, y in each)) for each in zip(*runs, strict=True)]
            curves.append(Curve(name, across))
        return curves

    by_distance = means("recall", lambda run: list(zip(BANDS, run["by_distance"], strict=True)))
    right = means("recall", lambda run: [(point["update"], point["right"]) for point in run["curve"]])
    bits = means("novels", lambda run: [(point["update"], point["bits"]) for point in run["curve"]])
    panels = [
        Panel("Right answers, %", "distance of the fact, up to", by_distance, ("linear", "linear")),
        Panel("Right answers, %", "updates", right, ("linear", "linear")),
        Panel("Novels, bits per byte", "updates", bits, ("linear", "linear")),
    ]
    draw_curves([panel for panel in panels if any(curve.points for curve in panel.curves)], RESULTS / "levels.png")


def report(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The page's parts."""
    arms = [[name, arm.about, reach_of(arm)] for name, arm in ARMS.items()]
    costs = {row["arm"]: (f"{row['weights']:,}", row["scores_per_token"]) for row in rows if row["task"] == "recall"}
    lines = [[*line, *costs.get(line[0], ("–", "–"))] for line in arms]
    bands = [f"{low + 1}–{high}" for low, high in zip((0, *BANDS[:-1]), BANDS, strict=True)]
    novels = [
        "## Novels\n\nBits per byte of held-out text, behind half a row at least; lower is better.",
        table(["arm", "reach", "seeds", "bits per byte ↓", "against 1 level", "CPU s"], novel_lines(rows)),
    ]
    novels = novels if any(row["task"] == "novels" for row in rows) else []
    training = "; ".join(
        f"{task}: {UPDATES[task]:,} updates of {BATCH[task]} rows, AdamW at {RATE[task]}" for task in UPDATES
    )
    return [
        f"{machine()}, which did other work as well; processor time.",
        f"Causal, {TOKENS} tokens, {LAYERS} layers, {WIDTH} wide, {HEADS} heads. {training}; the rate rises over a "
        "sixth of the updates and falls over the last third. *Reach* is what two layers bring to a token at most. "
        "Scores per token are a layer's, edges of the row counted. Feed-forward layers are narrowed until weights are "
        "equal. Intervals are 95 % bootstrap intervals over seeds; an arm with fewer than three has its scores.",
        table(["arm", "windows to the left", "reach", "weights, recall", "scores per token"], lines),
        f"## Recall\n\nRight answers in percent by the distance of the fact, of {TESTED['recall']} rows; chance is "
        f"{100 / FarRecall.values:.0f}. In brackets: beyond the reach, where chance is all that can be.",
        table(["arm", "reach", "seeds", *bands, "CPU s"], recall_lines(rows)),
        *novels,
        "![Recall by distance and by update, and bits per byte](levels.png)",
    ]


def main() -> None:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--tasks", nargs="+", choices=list(UPDATES), default=list(UPDATES))
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--page", action="store_true", help="write the page of what there is, and run nothing")
    options = parser.parse_args()
    done = {(row["task"], row["arm"], row["seed"]) for row in finished(FILE)}
    asked = [(task, arm, seed) for seed in options.seeds for task in options.tasks for arm in options.arms]
    for task, arm, seed in [] if options.page else asked:
        if seed <= ARMS[arm].seeds and (task, arm, seed) not in done:
            row = run(task, arm, seed)
            print(json.dumps(row), flush=True)
            add_run(FILE, row)
    write_page("levels", "What more levels of pooled attention bring", report(finished(FILE)))
    draw(finished(FILE))


if __name__ == "__main__":
    main()
