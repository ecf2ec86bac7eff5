"""The process of one cell.

A separate process always starts from the same state, its peak memory can be measured separately, and a crash does not
affect other cells.
"""

from __future__ import annotations

import math
import os
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from longspan.compare.machine import machine, peak_memory, stay_within_memory
from longspan.compare.probes import PROBES, Probe
from longspan.compare.probes.base import HELD_OUT, Form
from longspan.compare.settings import Cell, Result
from longspan.compare.skeleton import Built, build, form_of, refusal, spec_of, takes_globals
from longspan.errors import InputError, is_out_of_memory, last_line
from longspan.imports import load_plugins
from longspan.models.losses import IGNORED, token_loss
from longspan.settings import from_plain, to_plain
from longspan.tasks.predicting import batches, pad

PRELOADED = (
    *("longspan.models.language_model", "longspan.models.heads.token_classification"),
    *("transformers.trainer", "transformers.training_args", "torch.optim.adamw"),
)
TIMED = 0.4
"""Minimum seconds of each speed measurement, with repetitions if one run takes less."""
MOST_RUNS = 20
WARM_TOKENS = 64
"""Length of the warm-up input on a CPU."""


class ProbeRows(Dataset[dict[str, Any]]):
    """Rows of a probe by number; the rows of a seed are the same for every mechanism."""

    def __init__(self, probe: Probe, form: Form, seed: int, count: int) -> None:
        self.probe, self.seed, self.count = probe, seed, count
        self.form: Form = form

    def __len__(self) -> int:
        """Number of rows."""
        return self.count

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Returns the features of a row."""
        row = self.probe.row(self.seed, number, self.form)
        return {"input_ids": row.ids, "labels": row.labels, "distances": row.distances, "globals": row.is_global}


class Work:
    """The probe, the model and batches of a cell of either kind."""

    def __init__(self, cell: Cell, folder: Path) -> None:
        self.cell = cell
        kind = PROBES[cell.task]
        form = form_of(cell.mechanism, kind)
        if form is None:
            raise InputError(f"attention {cell.mechanism!r} {refusal(cell.mechanism, kind)}")
        self.form: Form = form
        self.probe = kind(cell.tokens, folder)
        asks = bool(self.probe.row(HELD_OUT, 0, form).is_global.any())
        self.globals = asks and takes_globals(cell.mechanism, form)

    def build(self) -> Built:
        """Create the model on its device, from the cell's seed."""
        torch.manual_seed(self.cell.seed)
        cell = self.cell
        spec = spec_of(cell.mechanism, cell.options, cell.tokens)
        built = build(cell.skeleton, spec, self.probe, self.form, cell.tokens)
        built.model.to(cell.device)
        return built

    def rows(self, seed: int, count: int) -> ProbeRows:
        """Returns the first `count` rows of a seed, generated on access."""
        return ProbeRows(self.probe, self.form, seed, count)

    def collate(self, features: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Collate a batch for the model, with unshifted `labels`."""
        fillers = {"input_ids": self.probe.padding, "labels": IGNORED, "globals": 0}
        batch = pad(features, fillers)
        is_global = batch.pop("globals").bool()
        if self.globals:
            batch["global_attention_mask"] = is_global
        return batch

    def words(self, built: Built) -> dict[str, Any]:
        """Returns descriptions of the model for the report."""
        return {
            "form": self.form,
            "global_tokens": "those that ask" if self.globals else "none",
            "mechanism": built.description,
            "machine": machine(self.cell.device),
            "clock": "processor time" if _clock(self.cell.device) is time.process_time else "time on the wall",
        }


def weights(built: Built) -> dict[str, Any]:
    """Returns numbers of the model for the report."""
    return {"parameters": built.parameters, "target_parameters": built.target, "feed_forward": built.feed_forward}


def loss_of(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """Compute the loss of a batch with unshifted labels, in the causal form too."""
    return token_loss(outputs.logits, labels)


# Speed and memory -----------------------------------------------------------------------------------------------------


def measure(cell: Cell, folder: Path) -> Result:
    """Measure tokens per second and peak memory of inference and of a training step."""
    work = Work(cell, folder)
    built = work.build()
    model = built.model
    rows = work.rows(cell.seed, cell.rows)
    batch = {
        name: value.to(cell.device) for name, value in work.collate([rows[row] for row in range(cell.rows)]).items()
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)

    def infer(batch: dict[str, Tensor]) -> None:
        model.eval()
        with torch.no_grad():
            model(**{name: value for name, value in batch.items() if name != "labels"})

    def train(batch: dict[str, Tensor]) -> None:
        model.train()
        labels = batch["labels"]
        loss_of(model(**{name: value for name, value in batch.items() if name != "labels"}), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    numbers = weights(built)
    for run in (infer, train):
        run(warm_up(batch, cell.device))
    tokens = int(batch["attention_mask"].sum())
    for name, run in (("inference", infer), ("train", train)):
        with peak_memory(cell.device) as peak:
            seconds, wall = _seconds(lambda run=run: run(batch), cell.device)
        # Medians; a single run counts if more would take too long.
        if seconds <= 20 * TIMED:
            count = min(int(TIMED / max(seconds, 1e-9)) + 1, MOST_RUNS)
            timed = [_seconds(lambda run=run: run(batch), cell.device) for _ in range(count)]
            seconds, wall = (statistics.median(values) for values in zip(*timed, strict=True))
        numbers |= {f"{name}_seconds": seconds, f"{name}_wall": wall, f"{name}_tokens_per_second": tokens / seconds}
        if peak.bytes is not None:
            numbers[f"{name}_bytes"] = peak.bytes
    return Result(cell=cell, status="done", numbers=numbers, words=work.words(built))


def warm_up(batch: dict[str, Tensor], device: str) -> dict[str, Tensor]:
    """Returns the warm-up input: a few tokens on a CPU, so that the libraries' own memory is not counted; the whole
    batch on CUDA, since kernels are compiled and selected for its shapes."""
    return batch if device == "cuda" else {name: value[:, :WARM_TOKENS] for name, value in batch.items()}


def _seconds(run: Callable[[], None], device: str) -> tuple[float, float]:
    """Returns the seconds of a run by the reported clock, and in wall time, which counts for the budget."""
    clock = _clock(device)
    begin, wall = clock(), time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - begin, time.perf_counter() - wall


def _clock(device: str) -> Callable[[], float]:
    """Returns the CPU time of this process if it runs one thread on a CPU, so that other work does not count; else wall
    time."""
    return time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter


# Quality --------------------------------------------------------------------------------------------------------------


def train(cell: Cell, folder: Path) -> Result:
    """Train with Hugging Face's Trainer, then score the held-out rows, which are the same for every seed."""
    from transformers import Trainer, TrainingArguments

    work = Work(cell, folder)
    built = work.build()
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=cell.rows,
        max_steps=cell.steps,
        learning_rate=cell.learning_rate,
        warmup_steps=max(1, cell.steps // 10),
        adam_beta2=0.98,  # for a short training
        max_grad_norm=1.0,
        use_cpu=cell.device == "cpu",
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        seed=cell.seed,
        data_seed=cell.seed,
        dataloader_pin_memory=cell.device == "cuda",
        remove_unused_columns=False,
        disable_tqdm=True,
        log_level="error",
    )
    trainer = Trainer(
        model=built.model,
        args=arguments,
        train_dataset=work.rows(cell.seed, cell.steps * cell.rows),
        data_collator=work.collate,
        compute_loss_func=loss_of,
    )
    trained = trainer.train()
    numbers = weights(built) | {"train_loss": trained.training_loss}
    if not math.isfinite(trained.training_loss):
        raise ArithmeticError(f"the loss of training is {trained.training_loss}")
    score, by_distance = evaluate(work, built.model)
    return Result(cell=cell, status="done", numbers=numbers | score, words=work.words(built), by_distance=by_distance)


def evaluate(work: Work, model: Any) -> tuple[dict[str, float], dict[str, list[int]]]:
    """Compute scores on the held-out rows, and correct answers and answers by distance, in ranges that end at powers of
    four."""
    cell, rows = work.cell, work.rows(HELD_OUT, work.cell.held_out)
    right = asked = 0
    bits = 0.0
    by_distance: dict[str, list[int]] = {}
    with torch.no_grad():
        for number, batch in enumerate(batches(model, rows, work.collate, cell.rows)):
            labels = batch.pop("labels")
            logits = model(**batch).logits
            wanted = labels != IGNORED
            hits = (logits.argmax(-1) == labels)[wanted]
            bits += float(token_loss(logits, labels)) * int(wanted.sum()) / math.log(2)
            right, asked = right + int(hits.sum()), asked + int(wanted.sum())
            features = [rows[row] for row in range(number * cell.rows, min((number + 1) * cell.rows, len(rows)))]
            far = [
                int(distance)
                for row_features in features
                for distance in row_features["distances"][row_features["labels"] != IGNORED]
            ]
            for distance, hit in zip(far, hits.tolist(), strict=True):
                if distance:
                    counts = by_distance.setdefault(str(4 ** math.ceil(math.log(distance, 4) - 1e-9)), [0, 0])
                    counts[0], counts[1] = counts[0] + hit, counts[1] + 1
    kind = work.probe.score
    score = bits / asked if kind == "bits per byte" else right / asked
    return {"score": score, "accuracy": right / asked, "bits": bits / asked, "answers": asked}, by_distance


# The process ----------------------------------------------------------------------------------------------------------


def run(cell: Cell, folder: Path) -> Result:
    """Run a cell; an exception becomes its result."""
    from longspan.models import LongspanForCausalLM, LongspanForTokenClassification  # noqa: F401 before the clock runs

    begin = time.perf_counter()
    try:
        done = (measure if cell.kind == "speed" else train)(cell, folder)
    except InputError as error:
        done = Result(cell=cell, status="refused", reason=str(error))
    except Exception as error:  # noqa: BLE001 a mechanism that fails is a row of the table, with its reason
        traceback.print_exc()
        reason = "out of memory" if is_out_of_memory(error) else f"{type(error).__name__}: {last_line(error)}"
        done = Result(cell=cell, status="failed", reason=reason)
    return replace(done, seconds=time.perf_counter() - begin)


def ready(_: Callable[..., None]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Import what every cell needs, which takes longer than measuring a short row; returns `work`."""
    for module in PRELOADED:
        import_module(module)
    return work


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Returns the result of a `cell`, as plain data; printed output goes to the file `log`."""
    with Path(task["log"]).open("wb") as printed:
        for stream in (1, 2):
            os.dup2(printed.fileno(), stream)
    load_plugins()
    cell = from_plain(Cell, task["cell"])
    if cell.device == "cpu":
        stay_within_memory()
    return to_plain(run(cell, Path(task["folder"])))
