"""Callbacks of a run: the progress bar, additional data in checkpoints and reports, and stopping.

A signal ends training after the step and saves it; non-finite numbers end it at once, and so do evaluations without
improvement if the recipe has a patience.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors.torch import save_file
from transformers import ProgressCallback, TrainerCallback

from longspan.attention import Attention
from longspan.errors import InputError
from longspan.imports import require
from longspan.training.checkpoints import PROCESSES, UNLOGGED, complete_checkpoints, evaluations, memory_file
from longspan.training.mixing import Mixed
from longspan.training.processes import largest

SIGNALS = (signal.SIGINT, signal.SIGTERM)
EVERY = 60.0
"""Seconds between lines of progress without a terminal."""


SHOWN = {
    "loss": ("loss", "{:.4g}"),
    "eval_loss": ("validation loss", "{:.4g}"),
    "eval_best": ("", "{:.4g}"),
    "grad_norm": ("gradient norm", "{:.3g}"),
    "tokens_per_second": ("tokens/s", "{:,.0f}"),
    "mfu": ("MFU", "{:.1%}"),
    "memory_gib": ("memory", "{:.3g} GiB"),
    "data_wait": ("waiting for data", "{:.0%}"),
    "documents_per_row": ("documents per row", "{:.3g}"),
}
"""Key of a log → its label and format, in order; `eval_best` is the score that selects the best checkpoint."""


class Latest:
    """The latest of the logged numbers that a person watches."""

    def __init__(self) -> None:
        self.logged: dict[str, float] = {}

    def update(self, args: Any, logs: dict[str, float] | None) -> dict[str, str]:
        """Adds logged numbers; returns all as label → text."""
        best = args.metric_for_best_model
        names = {f"eval_{best}": "eval_best", **{name: name for name in SHOWN}}
        self.logged |= {names[key]: value for key, value in (logs or {}).items() if key in names}
        labels = {name: (label or best, form) for name, (label, form) in SHOWN.items()}
        return {label: form.format(self.logged[name]) for name, (label, form) in labels.items() if name in self.logged}


class Progress(ProgressCallback):
    """Trainer's progress bar, with the latest numbers in it instead of a line for each."""

    def __init__(self) -> None:
        super().__init__()
        self.latest = Latest()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Called by Trainer with every set of logged numbers."""
        shown = self.latest.update(args, logs)
        if self.training_bar is not None:
            self.training_bar.set_postfix(shown)


class ProgressLines(TrainerCallback):
    """Without a terminal, as in a log: a line with the latest numbers after each evaluation, and every minute.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.latest = Latest()
        self.written = clock()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Called by Trainer with every set of logged numbers."""
        self.latest.update(args, logs)
        if "eval_loss" in (logs or {}):
            self._write(args, state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer after every update of the weights."""
        if self.clock() - self.written >= EVERY:
            self._write(args, state)

    def _write(self, args: Any, state: Any) -> None:
        self.written = self.clock()
        if state.is_world_process_zero:
            numbers = ", ".join(f"{label} {text}" for label, text in self.latest.update(args, None).items())
            sys.stderr.write(f"step {state.global_step:,} of {state.max_steps:,}: {numbers or 'no loss logged yet'}\n")
            sys.stderr.flush()


class Composition(TrainerCallback):
    """Logs how the training rows are composed: packing statistics, and the rows of weighted sources.

    Args:
        trainer: its training data may have `packing()`, see `longspan.tasks.packing`.
        sources: names of the training sources.
    """

    def __init__(self, trainer: Any, sources: Sequence[str]) -> None:
        self.trainer = trainer
        self.sources = sources

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer; a resumed run has the numbers in its history already."""
        if state.global_step:
            return
        dataset, lines = self.trainer.train_dataset, []
        if isinstance(dataset, Mixed):
            drawn = zip(self.sources, dataset.counts(), dataset.lengths.tolist(), strict=True)
            each = "; ".join(f"{source}: {count:,} of {length:,}" for source, count, length in drawn)
            lines.append(f"rows drawn in an epoch: {each}")
        packing = dataset.packing() if hasattr(dataset, "packing") else None
        if packing is not None:
            numbers = packing.numbers()
            self.trainer.log(numbers)
            lines.append(PACKED.format(**numbers))
        if state.is_world_process_zero:
            sys.stderr.write("".join(f"{line}\n" for line in lines))


PACKED = (
    "packed rows: {packed_rows:,}, {packed_filled:.1%} filled, {packed_documents_per_row:.3g} documents per row, "
    "{packed_cut:.1%} of the documents cut"
)


class Borders(TrainerCallback):
    """Actions of every run between its epochs and steps."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.stepped: list[Any] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Collects every attention module with a method `after_step`."""
        modules = self.trainer.accelerator.unwrap_model(self.trainer.model).modules()
        self.stepped = [module for module in modules if isinstance(module, Attention) and hasattr(module, "after_step")]

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Sets the epoch of the training data: accelerate does so in some cases only, never after resuming."""
        dataset: Any = self.trainer.train_dataset
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(int((state.epoch or 0.0) + 1e-9))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Calls `after_step` of attention with the number of steps. Also evaluates the last step, for any interval, so
        that it can be the best one.
        """
        for attention in self.stepped:
            attention.after_step(state.global_step)
        if state.global_step >= state.max_steps:
            control.should_log = control.should_evaluate = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Adds to a checkpoint, before it is sealed, the memory of streams, the losses since the last log, and the
        number of processes.
        """
        trainer = self.trainer
        if memory := trainer.carried.tensors():
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            save_file(memory, folder / memory_file(args.process_index))
        loss = 0.0 if state.global_step == trainer.logged_step else trainer.mean_unlogged()
        unlogged = {"loss": loss, "logged_step": trainer.logged_step, PROCESSES: args.world_size}
        if state.is_world_process_zero:
            file = Path(args.output_dir) / f"checkpoint-{state.global_step}" / UNLOGGED
            file.write_text(json.dumps(unlogged), encoding="utf-8")


def reports(names: tuple[str, ...], folder: Path) -> list[Any]:
    """Returns the callbacks of `optimisation.report_to`; TensorBoard's writes into the folder of the run."""
    from transformers.integrations import TensorBoardCallback, get_reporting_integration_callbacks

    callbacks: list[Any] = []
    for name in names:
        if name == "tensorboard":
            require("tensorboard", extra="train", purpose="training")
            from torch.utils.tensorboard import SummaryWriter

            callbacks.append(TensorBoardCallback(SummaryWriter(str(folder / "tensorboard"))))
        elif name != "none":
            (callback,) = get_reporting_integration_callbacks([name])
            try:
                callbacks.append(callback())
            except (RuntimeError, ImportError, ValueError) as error:
                reason = " ".join(str(error).split())
                raise InputError(f"optimisation.report_to is {name!r}, which cannot be used here: {reason}") from error
    return callbacks


class Stopped(KeyboardInterrupt):
    """Training was stopped by a signal, and has saved its progress."""

    def __init__(self, step: int, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} after step {step}")
        self.step = step
        self.number = number


class StopOnSignal(TrainerCallback):
    """After Ctrl-C or SIGTERM, finishes the step, saves a checkpoint and ends. A second signal has its
    default effect.
    """

    def __init__(self) -> None:
        self.asked = 0
        """The number of the received signal, or 0."""
        self._process = os.getpid()
        self._before: dict[int, Any] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handles the signals within the context; Python cannot in a thread that is not the main one."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in SIGNALS}
        try:
            yield
        finally:
            self._restore()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer after every update of the weights; all processes stop at the same step."""
        self.asked = int(largest([self.asked], args)[0])
        if self.asked and state.global_step < state.max_steps:
            control.should_save = control.should_training_stop = True

    def _ask(self, number: int, frame: Any) -> None:
        self._restore()
        self.asked = number
        if os.getpid() == self._process and int(os.environ.get("RANK", "0")) == 0:
            # Not through sys.stderr, which may be in the middle of a write of its own; on a terminal it overwrites the
            # bar.
            clear = "\r\x1b[K" if sys.stderr.isatty() else ""
            os.write(2, f"{clear}stopping after this step, to save it; once more stops at once\n".encode())

    def _restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


class StopNotFinite(TrainerCallback):
    """Ends training before weights are updated from a non-finite loss or gradient.

    Args:
        learning_rate: that of the recipe, for the message.
        scaled: whether a scaler of gradients (float16) skips the updates whose gradients overflow.
    """

    def __init__(self, learning_rate: float, *, scaled: bool = False) -> None:
        self.learning_rate = learning_rate
        self.scaled = scaled
        self.loss: torch.Tensor | None = None
        """The sum of the losses of this step."""

    def add(self, loss: torch.Tensor) -> None:
        """Adds the loss of a micro-batch, without synchronising a GPU."""
        self.loss = loss if self.loss is None else self.loss + loss

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Called by Trainer between the gradients and the update."""
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        norm: Any = torch.nn.utils.get_total_norm(gradients)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of sharded weights
        loss, self.loss = self.loss, None
        assert loss is not None
        lost, wild = torch.stack([loss.float(), norm.float().to(loss.device)]).isfinite().logical_not().tolist()
        kind = int(largest([2.0 * lost or float(wild and not self.scaled)], args)[0])
        if kind:
            what, value = ("loss", float(loss)) if kind == 2 else ("gradient", float(norm))
            self.refuse(f"the {what} is {value}", Path(args.output_dir), state.global_step + 1)

    def refuse(self, what: str, folder: Path, step: int) -> NoReturn:
        """Raises the `InputError` that ends training, with the step and the last good checkpoint."""
        last = next((path.name for path in reversed(complete_checkpoints(folder))), "none yet")
        raise InputError(
            f"{what} at step {step}, so training stopped (last good checkpoint: {last}); "
            f"train anew with a lower optimisation.learning_rate (now {self.learning_rate:g}) or a longer warm-up"
        )


class CutEachGradient(TrainerCallback):
    """Clips the gradient of every weight tensor separately to a norm, before the update; 0 disables it."""

    def __init__(self, longest: float) -> None:
        self.longest = longest

    @torch.no_grad()
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Called by Trainer between the gradients and the update; does not synchronise a GPU."""
        for weight in model.parameters() if self.longest else ():
            if weight.grad is not None:
                weight.grad.mul_((self.longest / (weight.grad.norm() + 1e-10)).clamp(max=1.0))


class StopStalled(TrainerCallback):
    """Ends training after a number of consecutive evaluations without improvement over the best one."""

    def __init__(self, patience: int | None) -> None:
        self.patience = patience

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer after every evaluation, before its checkpoint is saved."""
        if has_stalled(state.log_history, args, self.patience):
            control.should_training_stop = True


def has_stalled(history: list[dict[str, Any]], args: Any, patience: int | None) -> bool:
    """Whether none of the last `patience` evaluations of a log is better than the best before them.

    Computed from the log alone, so that an interrupted run ends where an uninterrupted one does.
    """
    scores = list(evaluations(history, args.metric_for_best_model).values())
    if patience is None or len(scores) <= patience:
        return False
    sign = 1 if args.greater_is_better else -1
    earlier, latest = (max(sign * score for score in part) for part in (scores[:-patience], scores[-patience:]))
    return latest <= earlier
