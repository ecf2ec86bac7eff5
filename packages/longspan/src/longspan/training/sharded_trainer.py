"""The Trainer of a model with sharded weights; checkpoints are those of one process."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME

from longspan.models.fsdp import divide_loaded_states, gathered, is_sharded, shard, whole_weights
from longspan.training.trainer import RecipeTrainer


class ShardedTrainer(RecipeTrainer):
    """`RecipeTrainer` with weights that PyTorch shards, in the same way on every device.

    accelerate would shard them on GPUs only. It does not wrap the model here, which exchanges its gradients itself.
    """

    merges = False
    offloads = False
    """Whether the shards are in CPU memory."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        prepare: Any = self.accelerator.prepare_model
        self.accelerator.prepare_model = partial(prepare, evaluation_mode=True)

    def plain_optimizer(self, *arguments: Any, **options: Any) -> Any:
        """Shards the weights, and creates the optimizer of the shards, which can load unsharded states.

        At this point Trainer has loaded the unsharded checkpoint to resume from.
        """
        assert self.model is not None
        if not is_sharded(self.model):
            shard(self.model, self.args.device, offload=self.offloads)
        optimizer = super().plain_optimizer(*arguments, **options)
        divide_loaded_states(optimizer)
        return optimizer

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As Trainer's; the weights are gathered first, in every process, and written by the first."""
        assert self.model is not None
        weights = whole_weights(self.model, keep=self.args.should_save)
        if self.args.should_save:
            self._save(output_dir, state_dict=weights)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """As Trainer's; the states are written unsharded."""
        optimizer, scheduler = cast("Any", self.optimizer), cast("Any", self.lr_scheduler)
        states = gathered(optimizer.state_dict(), keep=self.args.should_save)
        if self.args.should_save:
            torch.save(states, Path(output_dir) / OPTIMIZER_NAME)
            torch.save(scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)


class OffloadingTrainer(ShardedTrainer):
    """`ShardedTrainer` whose shards are stored and updated in CPU memory."""

    offloads = True
