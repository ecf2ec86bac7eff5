"""The callbacks of every run: a progress bar, and what happens between epochs, steps and checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from transformers import ProgressCallback, TrainerCallback
from transformers.integrations import TensorBoardCallback, get_reporting_integration_callbacks

from longspan.attention import Attention
from longspan.errors import InputError
from longspan.imports import require
from longspan.training.checkpoints import PROCESSES, UNLOGGED, memory_file


class Progress(ProgressCallback):
    """Trainer's progress bar, with the latest losses beside it instead of a line for each."""

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


class Borders(TrainerCallback):
    """What every run does between its epochs and steps."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.attentions: list[Attention] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Find every attention of the model."""
        modules = self.trainer.accelerator.unwrap_model(self.trainer.model).modules()
        self.attentions = [module for module in modules if isinstance(module, Attention)]

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tell the training data which epoch begins: accelerate does so in some cases only, never after resuming."""
        dataset: Any = self.trainer.train_dataset
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(int((state.epoch or 0.0) + 1e-9))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tell every attention how many steps are done. Evaluate the last step too, whatever the interval, so that it
        can be the best one."""
        for attention in self.attentions:
            attention.after_step(state.global_step)
        if state.global_step >= state.max_steps:
            control.should_log = control.should_evaluate = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep in a checkpoint, before it is sealed, the memory of streams, the losses since the last line of the log,
        and how many processes train."""
        trainer = self.trainer
        if memory := trainer.carried.tensors():
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            save_file(memory, folder / memory_file(args.process_index))
        loss = 0.0 if state.global_step == trainer.logged_step else trainer.mean_unlogged()
        kept = {"loss": loss, "logged_step": trainer.logged_step, PROCESSES: args.world_size}
        if state.is_world_process_zero:
            file = Path(args.output_dir) / f"checkpoint-{state.global_step}" / UNLOGGED
            file.write_text(json.dumps(kept), encoding="utf-8")


def reports(names: tuple[str, ...], folder: Path) -> list[Any]:
    """The callbacks of `optimisation.report_to`; TensorBoard's writes into the folder of the run."""
    found: list[Any] = []
    for name in names:
        if name == "tensorboard":
            require("tensorboard", extra="train", purpose="training")
            from torch.utils.tensorboard import SummaryWriter

            found.append(TensorBoardCallback(SummaryWriter(str(folder / "tensorboard"))))
        elif name != "none":
            (callback,) = get_reporting_integration_callbacks([name])
            try:
                found.append(callback())
            except (RuntimeError, ImportError, ValueError) as error:
                reason = " ".join(str(error).split())
                raise InputError(f"optimisation.report_to is {name!r}, which cannot be used here: {reason}") from error
    return found
