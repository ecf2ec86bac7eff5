"""Reformer's duplication table: accuracy by rounds of hashing in training and in evaluation.

    python benchmarks/duplication.py --seeds 3      # about five minutes of one core for each seed
    python benchmarks/duplication.py --quick        # a few steps of everything, and no page

A row is `0w0w` (Kitaev et al. 2020, arXiv 2001.04451, section 5 and table 2), a random word that is written once more,
and accuracy is that of the second word's symbols. A decoder of one layer is trained with full attention of shared
queries and keys (one bucket that holds everything) and with 4, 2 and 1 rounds of hashing, rotations drawn anew in every
pass; each is then read with full attention and with 8, 4, 2 and 1 rounds, rotations drawn anew for every batch.
Training is Hugging Face's Trainer, saves itself under `runs/duplication/`, and goes on where it was stopped; what is
finished stands in `results/duplication.jsonl` and is not done again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from longspan.compare.probes.base import HELD_OUT
from longspan.compare.probes.made_up import Duplication
from longspan.compare.process import ProbeRows, loss_of
from longspan.models import LongspanConfig, LongspanForCausalLM
from longspan.models.losses import IGNORED
from longspan.tasks.predicting import batches, pad
from measure import RESULTS, machine, table, write_page

FULL = 0
"""Rounds of who sees everything."""
TRAINED, EVALUATED = (FULL, 4, 2, 1), (FULL, 8, 4, 2, 1)
PUBLISHED = {
    FULL: (100, 94.8, 92.5, 76.9, 52.5),
    4: (0.8, 100, 99.9, 99.4, 91.9),
    2: (0.8, 100, 99.9, 98.1, 86.8),
    1: (0.8, 99.9, 99.6, 94.8, 77.9),
}
"""Table 2 of the paper: trained with → percent when read with each of `EVALUATED`."""
WORD, CHUNK = 31, 8
WIDTH, HEADS = 64, 4
BATCH, STEPS, RATE = 32, 1500, 3e-3
HELD_OUT_ROWS = 512
FOLDER = Path(__file__).parents[1] / "runs" / "duplication"


READING = """\
**What it shows.** As published, more rounds in reading help every model, and models trained with hashing read better
with few rounds than those trained with full attention; with eight all are as good as they get. Two things differ.
Models trained with hashing read full attention as well as before, where the published ones fall to guessing; here that
is one bucket for everything, with the same shared queries and keys of length 1, and we do not know why theirs fall.
And with one round in reading those trained with one or two are ahead of those trained with four, where the published
order is the other way round. Rows of 64 tokens are easier than those of 1,024, so numbers for few rounds are higher."""


class Published(Duplication):
    """The probe of `longspan compare` with as many symbols as in the paper."""

    symbols = 127


PROBE = Published(2 * (WORD + 1))


def attention(rounds: int, seed: int = 0) -> dict[str, Any]:
    """The mechanism: buckets of four tokens on average in chunks of eight, as the paper's chunks hold two buckets; or
    one bucket, in one chunk, for everything."""
    tokens = PROBE.tokens
    sees = {"chunk_tokens": CHUNK, "buckets": 2 * tokens // CHUNK, "rounds": rounds}
    if rounds == FULL:
        sees = {"chunk_tokens": tokens, "buckets": 1, "rounds": 1}
    return {"mechanism": "reformer", "resample": True, "seed": seed, **sees}


def model(rounds: int, seed: int = 0) -> LongspanForCausalLM:
    """One layer over learned positions."""
    config = LongspanConfig(
        vocab_size=PROBE.vocabulary, pad_token_id=PROBE.padding, bos_token_id=None, eos_token_id=None,
        hidden_size=WIDTH, num_attention_heads=HEADS, num_hidden_layers=1, intermediate_size=4 * WIDTH,
        max_position_embeddings=PROBE.tokens, normalization="pre", dropout=0.0, init_std=0.1,
        attention=attention(rounds, seed),
    )  # fmt: skip
    return LongspanForCausalLM(config)


def collate(features: list[dict[str, Any]]) -> dict[str, Tensor]:
    """A batch with a label at every place that asks."""
    return pad(features, {"input_ids": PROBE.padding, "labels": IGNORED})


def train(rounds: int, seed: int, steps: int, folder: Path) -> LongspanForCausalLM:
    """The model after its training, which goes on from the last checkpoint in the folder."""
    torch.manual_seed(seed)
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=BATCH, max_steps=steps, learning_rate=RATE,
        lr_scheduler_type="linear", warmup_steps=steps // 10, adam_beta2=0.98, max_grad_norm=1.0, use_cpu=True,
        save_steps=250, save_total_limit=1, logging_steps=250, report_to="none", seed=seed, data_seed=seed,
        remove_unused_columns=False, disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Trainer(
        model=model(rounds),
        args=arguments,
        train_dataset=ProbeRows(PROBE, "causal", seed, steps * BATCH),
        data_collator=collate,
        compute_loss_func=loss_of,
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(folder)) if folder.is_dir() else None)
    return trainer.model  # type: ignore[return-value]


def with_rounds(trained: LongspanForCausalLM, rounds: int, seed: int) -> LongspanForCausalLM:
    """The same weights with other rounds, and rotations drawn from another seed."""
    other, weights = model(rounds, seed), trained.state_dict()
    for name, value in other.state_dict().items():
        if not name.endswith("rotations"):
            value.copy_(weights[name])
    return other.eval()


def accuracy(trained: LongspanForCausalLM, rounds: int, count: int = HELD_OUT_ROWS) -> float:
    """Percent of the second words' symbols that are named rightly, of rows that no training saw."""
    rows = ProbeRows(PROBE, "causal", HELD_OUT, count)
    right = asked = 0
    with torch.no_grad():
        for number, batch in enumerate(batches(trained, rows, collate, BATCH)):
            labels = batch.pop("labels")
            hits = with_rounds(trained, rounds, 1000 + number)(**batch).logits.argmax(-1) == labels
            right, asked = right + int(hits.sum()), asked + int((labels != IGNORED).sum())
    return 100 * right / asked


def finished(file: Path) -> dict[tuple[int, int, int], dict[str, Any]]:
    """What has ended: rounds, seed and steps → its line."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return {(row["rounds"], row["seed"], row["steps"]): row for row in map(json.loads, lines)}


def run(rounds: int, seed: int, steps: int, file: Path, count: int = HELD_OUT_ROWS) -> None:
    """Train, read with every number of rounds, and write a line."""
    began, clock = time.process_time(), time.monotonic()
    trained = train(rounds, seed, steps, FOLDER / f"{name_of(rounds)}-{seed}-{steps}")
    percent = {str(each): round(accuracy(trained, each, count), 2) for each in EVALUATED}
    row = {
        "rounds": rounds, "seed": seed, "steps": steps, "percent": percent, "machine": machine(),
        "cpu_seconds": round(time.process_time() - began), "seconds": round(time.monotonic() - clock),
    }  # fmt: skip
    print(row, flush=True)
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(row) + "\n")


def name_of(rounds: int) -> str:
    """As the paper names it."""
    return "full" if rounds == FULL else f"LSH-{rounds}"


def cells(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The table in the paper's shape: below each row of ours the published one."""
    lines = []
    for rounds in TRAINED:
        some = [row for row in rows if row["rounds"] == rounds]
        ours = [[row["percent"][str(each)] for row in some] for each in EVALUATED]
        shown = [spread(values) if values else "–" for values in ours]
        lines.append([f"**{name_of(rounds)}**", *shown])
        lines.append([f"{name_of(rounds)}, published", *(f"{value:g}" for value in PUBLISHED[rounds])])
    return lines


def spread(values: Sequence[float]) -> str:
    """The mean, and from lowest to highest where these differ."""
    mean, low, high = (f"{value:.1f}" for value in (statistics.mean(values), min(values), max(values)))
    return mean if low == high else f"{mean} ({low} to {high})"


def main() -> None:
    """Train what is missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each kind (default: 3)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"updates of the weights (default: {STEPS:,})")
    parser.add_argument("--quick", action="store_true", help="20 steps, and write no page")
    options = parser.parse_args()
    torch.set_num_threads(1)
    steps, file = (20, FOLDER / "quick.jsonl") if options.quick else (options.steps, RESULTS / "duplication.jsonl")
    FOLDER.mkdir(parents=True, exist_ok=True)
    for seed in range(options.seeds):
        for rounds in TRAINED:
            if (rounds, seed, steps) not in finished(file):
                run(rounds, seed, steps, file, 64 if options.quick else HELD_OUT_ROWS)
    rows = [row for (_, seed, taken), row in finished(file).items() if taken == steps and seed < options.seeds]
    lines = table(["trained with", *map(name_of, EVALUATED)], cells(rows))
    print(lines)
    if not options.quick:
        print(write_page("duplication", "Duplication, by rounds of hashing", [*about(rows, steps), lines, READING]))


def about(rows: Sequence[Mapping[str, Any]], steps: int) -> list[str]:
    """What was trained, on what, and how it differs from what was published."""
    seconds = sorted(row["cpu_seconds"] for row in rows)
    seeds = len({row["seed"] for row in rows})
    several = f"Mean of {seeds} trainings, lowest and highest in brackets" if seeds > 1 else "One training each"
    return [
        f"{rows[0]['machine']}, which did other work as well. {seconds[0]} to {seconds[-1]} seconds of processor time "
        "for a training and its readings.",
        f"Percent of the second word's symbols that are named rightly, over {HELD_OUT_ROWS} rows that no training "
        f"saw; guessing is right in {100 / PROBE.symbols:.1f}. {several}. Rows: rounds in training; columns: rounds in "
        "reading.",
        table(
            ["", "here", "published"],
            [
                ["word, symbols", f"{WORD} of {PROBE.symbols}", "511 of 127"],
                ["model", f"one layer, {WIDTH} wide, {HEADS} heads", "one layer, 256 wide, 4 heads"],
                ["training", f"{steps:,} updates by {BATCH} rows, AdamW {RATE:g}", "150,000 updates"],
                ["tokens in a chunk, buckets", f"{CHUNK}, {2 * PROBE.tokens // CHUNK}", "–"],
                ["chunks", "of each bucket by itself, one before", "of all sorted tokens, one before"],
            ],
        ),
    ]


if __name__ == "__main__":
    main()
