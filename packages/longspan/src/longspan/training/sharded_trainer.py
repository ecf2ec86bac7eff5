"""The Trainer of a model with sharded weights: each process writes its shards into a checkpoint, and reads its own."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from transformers.trainer import SCHEDULER_NAME

from longspan.checkpoints.folder import WEIGHTS
from longspan.models.fsdp import divide_loaded_states, is_sharded, shard, whole_weights
from longspan.training.checkpoints import PARTS, Saving, is_in_parts
from longspan.training.distributed_checkpoints import read_weights, write_parts
from longspan.training.optimisation import Optimisation
from longspan.training.trainer import RecipeTrainer


def shard_options(settings: Optimisation) -> dict[str, Any]:
    """Returns the arguments of `longspan.models.fsdp.shard` of a recipe."""
    parallel = settings.parallel
    dtype = parallel.gather_dtype or ("bfloat16" if settings.bf16 else None)
    return {
        "offload": parallel.offload,
        "replicas": parallel.replicate,
        "reshard_after_forward": parallel.reshard_after_forward,
        "gather_dtype": torch.bfloat16 if dtype == "bfloat16" else None,
    }


class ShardedTrainer(RecipeTrainer):
    """`RecipeTrainer` with weights that PyTorch shards, in the same way on every device.

    accelerate would shard them on GPUs only. It does not wrap the model here, which exchanges its gradients itself.

    Args:
        settings: the recipe's section `optimisation`.
    """

    merges = False

    def __init__(self, *arguments: Any, settings: Optimisation, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.shard_options = shard_options(settings)
        self.saving = Saving(background=settings.parallel.save_in_background)
        prepare: Any = self.accelerator.prepare_model
        self.accelerator.prepare_model = partial(prepare, evaluation_mode=True)

    def plain_optimizer(self, *arguments: Any, **options: Any) -> Any:
        """Shards the weights, and creates the optimizer of the shards, which can load unsharded states."""
        self._shard()
        optimizer = super().plain_optimizer(*arguments, **options)
        divide_loaded_states(optimizer)
        return optimizer

    def _shard(self) -> None:
        assert self.model is not None
        if not is_sharded(self.model):
            shard(self.model, self.args.device, **self.shard_options)

    def _move_model_to_device(self, model: Any, device: torch.device) -> None:
        """As Trainer's; shards are where they belong."""
        if not is_sharded(model):
            super()._move_model_to_device(model, device)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """As Trainer's; each process reads the slices of its shards. Adapters are loaded before they are sharded."""
        if self.is_adapted:
            return super()._load_from_checkpoint(resume_from_checkpoint, model)
        self._shard()
        checkpoint = Path(resume_from_checkpoint)
        read_weights(cast("Any", self.model), checkpoint / PARTS if is_in_parts(checkpoint) else checkpoint)
        return None

    def evaluation_loop(self, *arguments: Any, **options: Any) -> Any:
        """As Trainer's; with autocast also where a task calls parts of the model, whose weights may be bfloat16."""
        with self.accelerator.autocast():
            return super().evaluation_loop(*arguments, **options)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As Trainer's. The weights of a checkpoint are written with the optimizer's states; others, and adapters, are
        gathered, in every process, and written by the first.
        """
        assert self.model is not None
        if not _internal_call or self.is_adapted:
            weights = whole_weights(self.model, keep=self.args.should_save, only_trained=self.is_adapted)
            if self.args.should_save:
                self._save(output_dir, state_dict=weights)
        elif self.args.should_save:
            self._save(output_dir, state_dict={})
            (Path(str(output_dir)) / WEIGHTS).unlink(missing_ok=True)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """As Trainer's; each process writes its shards, of weights and states."""
        model, optimizer, scheduler = (cast("Any", each) for each in (self.model, self.optimizer, self.lr_scheduler))
        write_parts(model, optimizer.optimizer, Path(output_dir), self.saving, weights=not self.is_adapted)
        if self.args.should_save:
            torch.save(scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)
