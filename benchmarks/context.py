"""How much context does a model use? The relative effective context length (RECL) of Transformer-XL and two others.

    LONGSPAN_DATA=… OMP_NUM_THREADS=1 python benchmarks/context.py [--seeds 1 2 3 4 5]

Dai et al. (2019, arXiv 1901.02860, section 4.3 and appendix C): three language models over bytes of novels, with equal
numbers of weights within 1 %, read the same rows in segments of 64 bytes for as many updates. Transformer-XL keeps the
last 128 states of each layer, the plain Transformer keeps nothing, the LSTM keeps its state. Then each predicts the
same held-out bytes from the c bytes before them, for growing c.

The relative gain of a model from c to c + 32 bytes, over the share r of the bytes that are hardest for the best of the
three models: with b the loss of the best of the three at c and l the model's own loss at c + 32, per byte,
(mean b − mean min(b, l)) / mean b. The RECL is the longest c up to which every step gained at least 1 %.

Finished runs are lines of `results/context.jsonl`. About six minutes of one core for a seed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from longspan.compare.probes import PROBES, Probe
from longspan.compare.probes.base import HELD_OUT
from longspan.models import LongspanForCausalLM
from longspan.tasks.metrics.bootstrap import bootstrap
from measure import RESULTS, add_run, finished, machine, rows_of, shown, table, write_page
from small_models import LAYERS, WIDTH, prepared, small_config, train, weights

FILE = RESULTS / "context.jsonl"
FEED_FORWARD = 256
TOKENS, SEGMENT, MEMORY = 512, 64, 128
UPDATES, BATCH, RATE = 600, 8, 2e-3
STEP, TARGETS, ROWS = 32, 8, 512
CONTEXTS = list(range(STEP, TOKENS - TARGETS, STEP))
SHARES, GAIN = (0.1, 0.5, 1.0), 0.01
PUBLISHED = {"Transformer-XL": "900", "LSTM": "400 (QRNN 500)", "plain": "128"}
"""Words of WikiText-103, models of 151 million weights, r = 0.1."""


class Recurrent(nn.Module):
    """An LSTM language model whose output table is that of the input."""

    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, WIDTH)
        nn.init.normal_(self.table.weight, std=0.1)
        self.cells = nn.LSTM(WIDTH, hidden, LAYERS, batch_first=True)
        self.output = nn.Linear(hidden, WIDTH)

    def forward(self, ids: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        states, state = self.cells(self.table(ids), state)
        return self.output(states) @ self.table.weight.T, tuple(part.detach() for part in state)


class Transformer(nn.Module):
    """A decoder of this package; with a memory, its state is the cache of the segments before."""

    def __init__(self, vocabulary: int, padding: int, *, memory: bool) -> None:
        super().__init__()
        options: dict[str, Any] = {"attention": {"mechanism": "full"}, "position_embedding": "sinusoidal"}
        if memory:
            options = {
                "stack": {"stack": "recurrent", "memory_tokens": MEMORY},
                "attention": {"mechanism": "full", "positions": "relative", "bias": False},
                "position_embedding": "none",
            }
        self.memory = memory
        options["intermediate_size"] = FEED_FORWARD - WIDTH // 2 * memory  # tables of relative positions are weights
        self.model = LongspanForCausalLM(small_config(vocabulary, padding, TOKENS, normalization="pre", **options))

    def forward(self, ids: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        decoded = self.model.decoder(ids, cache=state if self.memory else None, use_cache=self.memory)
        return self.model.lm_head(decoded.last_hidden_state), decoded.cache


ARMS = ("Transformer-XL", "LSTM", "plain")


def novels() -> Probe:
    return prepared(PROBES["novels"], TOKENS)


def build(arm: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    vocabulary, padding = novels().vocabulary, novels().padding
    if arm == "LSTM":
        return Recurrent(vocabulary, hidden=78)
    return Transformer(vocabulary, padding, memory=arm == "Transformer-XL")


def trained(arm: str, seed: int) -> nn.Module:
    model = build(arm, seed).train()

    def backward(update: int) -> None:
        ids, labels, _ = rows_of(novels(), seed, (update - 1) * BATCH, BATCH)
        state = None
        for part, answers in zip(ids.split(SEGMENT, 1), labels.split(SEGMENT, 1), strict=True):
            logits, state = model(part, state)
            (cross_entropy(logits.flatten(0, 1), answers.flatten()) * SEGMENT / TOKENS).backward()

    train(model, RATE, UPDATES, backward)
    return model.eval()


@torch.no_grad()
def losses(arm: str, model: nn.Module) -> list[list[float]]:
    """For each context, the nats of every held-out byte: the last `TARGETS` of each row."""
    found: list[list[float]] = [[] for _ in CONTEXTS]
    for first in range(0, ROWS, 32):
        ids, labels, _ = rows_of(novels(), HELD_OUT, first, 32)
        for place, context in enumerate(CONTEXTS):
            # The first target is predicted from `context` bytes, the last one from `TARGETS` - 1 more.
            rows, state = ids[:, -(context + TARGETS - 1) :], None
            if arm == "plain":  # a segment is all that it was trained to read
                rows = rows[:, -SEGMENT:]
            head = rows.shape[1] % SEGMENT
            parts = [part for part in (rows[:, :head], *rows[:, head:].split(SEGMENT, 1)) if part.shape[1]]
            outputs = []
            for part in parts:
                logits, state = model(part, state)
                outputs.append(logits)
            logits = torch.cat(outputs, 1)[:, -TARGETS:]
            nats = cross_entropy(logits.flatten(0, 1), labels[:, -TARGETS:].flatten(), reduction="none")
            found[place].extend(nats.tolist())
    return found


def effective(of: dict[str, Tensor], arm: str, share: float) -> int:
    """The RECL of an arm; `of` holds the nats of each arm, contexts by bytes."""
    for place, context in enumerate(CONTEXTS[:-1]):
        best = torch.stack([nats[place] for nats in of.values()]).amin(0)
        hard = best.argsort(descending=True)[: int(share * len(best))]
        base, later = best[hard], of[arm][place + 1][hard]
        if 1 - float(torch.minimum(base, later).mean() / base.mean()) < GAIN:
            return context
    return CONTEXTS[-1]


def run(seed: int) -> dict[str, Any]:
    start, of, sizes = time.process_time(), {}, {}
    for arm in ARMS:
        model = trained(arm, seed)
        of[arm], sizes[arm] = torch.tensor(losses(arm, model)).double(), weights(model)
        print(arm, sizes[arm], [round(float(row.mean()) / math.log(2), 3) for row in of[arm]], flush=True)
    assert max(sizes.values()) <= 1.02 * min(sizes.values()), sizes
    bits = {arm: [round(float(row.mean()) / math.log(2), 4) for row in nats] for arm, nats in of.items()}
    recl = {arm: {str(share): effective(of, arm, share) for share in SHARES} for arm in ARMS}
    seconds = round(time.process_time() - start, 1)
    return {"seed": seed, "recl": recl, "bits": bits, "weights": sizes, "seconds": seconds}


def report(runs: list[dict[str, Any]]) -> list[str]:
    lines, curves = [], []
    for arm in ARMS:
        cells = []
        for share in SHARES:
            values = [run["recl"][arm][str(share)] for run in runs]
            cells.append(f"{statistics.median(values):.0f} ({' '.join(map(str, values))})")
        lines.append([arm, *cells, PUBLISHED[arm], f"{runs[0]['weights'][arm]:,}"])
        places = [CONTEXTS.index(context) for context in (32, 64, 128, 256, 480)]
        values = [[run["bits"][arm][place] for run in runs] for place in places]
        curves.append(
            [arm, *(shown(bootstrap(some), digits=3) if len(some) > 1 else f"{some[0]:.3f}" for some in values)]
        )
    header = ["model", *(f"r = {share:g}" for share in SHARES), "published, words, r = 0.1", "weights"]
    return [
        f"{machine()}, which did other work as well.",
        f"`python benchmarks/context.py`. {LAYERS} layers, {WIDTH} wide, {UPDATES} updates of {BATCH} rows of {TOKENS} "
        f"bytes of novels in segments of {SEGMENT}, AdamW at {RATE}; Transformer-XL keeps {MEMORY} states. "
        f"{ROWS * TARGETS:,} held-out bytes. How the lengths are computed is written in the script.",
        "## Relative effective context length, in bytes\n\nMedian over seeds and each seed.",
        table(header, lines),
        "## Bits per byte by the bytes that are read before",
        table(["model", "32", "64", "128", "256", "480"], curves),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    options = parser.parse_args()
    done = {row["seed"] for row in finished(FILE)}
    for seed in options.seeds:
        if seed not in done:
            row = run(seed)
            print(json.dumps({name: row[name] for name in ("seed", "recl", "seconds")}), flush=True)
            add_run(FILE, row)
    write_page("context", "How much context a language model uses", report(finished(FILE)))


if __name__ == "__main__":
    main()
