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
from collections.abc import Iterator
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

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Progress(ProgressCallback):
    """Trainer's progress bar, with the latest losses in it instead of a line for each."""

    def __init__(self) -> None:
        super().__init__()
        self.latest: dict[str, str] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Called by Trainer with every set of logged numbers."""
        name = args.metric_for_best_model
        shown = {f"eval_{name}": name, "loss": "loss", "eval_loss": "validation"}
        self.latest |= {shown[key]: f"{value:.4g}" for key, value in (logs or {}).items() if key in shown}
        if self.training_bar is not None:
            self.training_bar.set_postfix(self.latest)


class ProgressLines(TrainerCallback):
    """Without a terminal, as in a log: a line for each evaluation, with the latest losses."""

    def __init__(self) -> None:
        self.loss: float | None = None

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Called by Trainer with every set of logged numbers."""
        logs = logs or {}
        self.loss = logs.get("loss", self.loss)
        if "eval_loss" not in logs or not state.is_world_process_zero:
            return
        name = args.metric_for_best_model
        shown = {"loss": self.loss, "validation loss": logs["eval_loss"]}
        shown |= {} if name == "loss" else {name: logs.get(f"eval_{name}")}
        numbers = ", ".join(f"{key} {value:.4g}" for key, value in shown.items() if value is not None)
        sys.stderr.write(f"step {state.global_step:,} of {state.max_steps:,}: {numbers}\n")
        sys.stderr.flush()


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
        self.asked = int(_largest(float(self.asked), args))
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
    """Ends training before weights are updated from a non-finite loss or gradient."""

    def __init__(self, learning_rate: float) -> None:
        self.learning_rate = learning_rate
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
        kind = int(_largest(2.0 * lost or float(wild), args))
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


def _largest(value: float, args: Any) -> float:
    """Returns the maximum of a number over all processes."""
    if args.world_size == 1:
        return value
    everywhere = torch.tensor(value, device=args.device)
    torch.distributed.all_reduce(everywhere, torch.distributed.ReduceOp.MAX)
    return float(everywhere)
