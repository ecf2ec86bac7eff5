"""The planner against what is measured: predicted and measured peak memory and time of a step.

    OMP_NUM_THREADS=1 python benchmarks/plan.py

Each configuration runs in a fresh process, which makes the model and takes two steps (or passes); its peak is what the
process holds above what it held before. Seconds are those of the processor, the better of the steps; the prediction is
calibrated in this process, by a block on a short text. Writes `results/plan.md`; configurations that were measured are
kept in `results/plan.jsonl`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from longspan.models.transformers_names import enable_checkpointing
from measure import RESULTS, machine, peak_bytes, table, write_page

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "1048576"}
"""glibc: freed memory goes back to the system, so that the peak of a process is that of its tensors."""
MEASURED = RESULTS / "plan.jsonl"
SIZES = {
    "vocab_size": 2000,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "position_embedding": "sinusoidal",
    "normalization": "pre",
    "dropout": 0.0,
    "max_position_embeddings": 16384,
    "head": "sequence_classification",
}
ROWS: list[tuple[str, dict[str, Any]]] = [
    ("longformer", {"tokens": 4096, "batch": 2, "train": True}),
    ("longformer", {"tokens": 16384, "train": False}),
    ("longformer", {"tokens": 8192, "train": True, "checkpointing": True}),
    ("poolingformer", {"tokens": 8192, "train": True}),
    ("full", {"tokens": 4096, "batch": 2, "train": True}),
    ("bigbird", {"tokens": 8192, "train": True}),
    ("linear", {"tokens": 16384, "train": True}),
    ("reformer", {"tokens": 8192, "train": True}),
    ("longformer", {"tokens": 8192, "train": True, "precision": "bfloat16"}),
    ("poolingformer", {"tokens": 16384, "batch": 2, "train": False}),
    ("longformer in top_down", {"tokens": 4096, "batch": 2, "train": True}),
    ("longformer in top_down", {"tokens": 12288, "train": True}),
    ("longformer in top_down", {"tokens": 8192, "batch": 2, "train": False}),
    ("longformer in top_down", {"tokens": 16384, "train": False}),
    ("longformer in top_down", {"tokens": 8192, "train": True, "checkpointing": True}),
    ("longformer in top_down", {"tokens": 8192, "train": True, "precision": "bfloat16"}),
]
"""Mechanism, in a stack where it is named, and how the model is run."""


def main() -> None:
    """Measure what is missing, and write the page."""
    if not ALLOCATOR.items() <= os.environ.items():  # read when a process starts
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ALLOCATOR})
    for mechanism, options in ROWS:
        if not any((row["mechanism"], row["options"]) == (mechanism, options) for row in finished()):
            note = {"mechanism": mechanism, "options": options, **predicted(mechanism, options)}
            seconds = RESULTS / "plan-seconds.txt"
            note["peak"] = peak_bytes(measured, mechanism, options, str(seconds))
            note["seconds"] = float(seconds.read_text())
            seconds.unlink()
            with MEASURED.open("a", encoding="utf-8") as file:
                file.write(json.dumps(note) + "\n")
    write(finished())


def finished() -> list[dict[str, Any]]:
    """What was measured."""
    return [json.loads(line) for line in MEASURED.read_text().splitlines()] if MEASURED.is_file() else []


def planned_of(mechanism: str) -> Any:
    """The model of a row."""
    from longspan.models import LongspanConfig, LongspanForSequenceClassification
    from longspan.planning.source import Planned

    attention, _, stack = mechanism.partition(" in ")
    config = LongspanConfig(**SIZES, attention=attention, stack=stack or "sequential")
    return Planned(name=mechanism, config=config, model_class=LongspanForSequenceClassification)


def predicted(mechanism: str, options: dict[str, Any]) -> dict[str, float]:
    """The planner's seconds."""
    from longspan.models.work import Choice
    from longspan.planning.memory import weights_of
    from longspan.planning.plan import Stopwatch

    planned, choice = planned_of(mechanism), Choice(**options)
    weights = weights_of(planned)
    seconds = Stopwatch(time.process_time).seconds(planned, choice, weights)
    return {"predicted_seconds": seconds}


def counted(mechanism: str, options: dict[str, Any]) -> int:
    """The planner's peak, in bytes."""
    from longspan.models.work import Choice
    from longspan.planning.memory import memory_of

    return memory_of(planned_of(mechanism), Choice(**options)).peak


def measured(mechanism: str, options: dict[str, Any], seconds: str) -> Iterator[None]:
    """Prepare with a short text, then make the model and run it twice."""
    from longspan.models.work import Choice

    torch.set_num_threads(1)
    choice, planned = Choice(**options), planned_of(mechanism)
    run(planned, Choice(**{**options, "tokens": 64}))
    yield
    Path(seconds).write_text(str(run(planned, choice)))


def run(planned: Any, choice: Any) -> float:
    """Two steps of a new model; seconds of the processor of the quicker one."""
    model = planned.model_class(planned.config).train(choice.train)
    half = choice.precision == "bfloat16"
    if half and not choice.train:
        model = model.bfloat16()
    if choice.checkpointing:
        enable_checkpointing(model)
    optimizer = torch.optim.AdamW(model.parameters()) if choice.train else None
    ids = torch.randint(5, 2000, (choice.batch, choice.tokens))
    best = float("inf")
    for _ in range(2):
        begin = time.process_time()
        with torch.set_grad_enabled(choice.train), torch.autocast("cpu", torch.bfloat16, enabled=half and choice.train):
            output = model(input_ids=ids, labels=torch.zeros(choice.batch, dtype=torch.int64))
        if optimizer is not None:
            output.loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        del output
        best = min(best, time.process_time() - begin)
    return best


def write(rows: list[dict[str, Any]]) -> None:
    """The page."""
    lines = []
    for row in rows:
        options = row["options"]
        words = [f"{options['tokens']:,} × {options.get('batch', 1)}", "training" if options["train"] else "inference"]
        words += ["checkpointing"] if options.get("checkpointing") else []
        words += [options["precision"]] if "precision" in options else []
        memory = counted(row["mechanism"], options), row["peak"]
        seconds = row["predicted_seconds"], row["seconds"]
        cells = [f"{one / 2**20:,.0f}" for one in memory], [f"{one:.2f}" for one in seconds]
        ratios = [f"{100 * (one[0] / one[1] - 1):+.0f} %" for one in (memory, seconds)]
        lines.append([row["mechanism"], ", ".join(words), *cells[0], ratios[0], *cells[1], ratios[1]])
    header = ["mechanism", "tokens × rows", "MiB predicted", "measured", "", "seconds predicted", "measured", ""]
    text = (
        f"`python benchmarks/plan.py` on {machine()}, one thread. Four layers of width 128, feed-forward layers of "
        "512, pre-normalised, without dropout. Memory is counted from the configuration alone; seconds are calibrated "
        "by one block on at most 2,048 tokens on this machine, and are seconds of the processor, which others shared."
    )
    write_page("plan", "The planner against measurements", [text, table(header, lines)])


if __name__ == "__main__":
    main()
