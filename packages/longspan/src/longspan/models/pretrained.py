"""Base class of all models: transformers' loading, saving, initialisation, gradient checkpointing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import PreTrainedModel, initialization
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import ModelOutput

from longspan.errors import InputError
from longspan.models.adaptive import AdaptiveEmbedding, Projections
from longspan.models.card import auto_and_pipeline, write_card
from longspan.models.configuration import LongspanConfig
from longspan.models.embeddings import AxialPositions, Embeddings
from longspan.models.fsdp import units
from longspan.ops.runtime import is_distributed
from longspan.stacks.block import Block


class CheckpointedBlock(GradientCheckpointingLayer, Block):
    """A block that transformers can checkpoint, and that its device maps do not split."""


class LongspanPreTrainedModel(PreTrainedModel):
    """Base class: `from_pretrained`, `save_pretrained` (safetensors), `gradient_checkpointing_enable()`."""

    config: LongspanConfig
    config_class = LongspanConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _skip_keys_device_placement = ["cache", "past_key_values"]  # noqa: RUF012
    # Attention is not one of transformers' kernels; these flags only allow any `attn_implementation`.
    _supports_sdpa = True

    reads_first_token: ClassVar[bool] = False
    """Whether it has an output for a row, computed from its first token or the stack's summary vector."""
    reads_each_token: ClassVar[bool] = False
    """Whether outputs and loss are those of single tokens, so that it supports packed sequences."""

    max_shard_size: int | str | None = None
    """The default size limit of files that `save_pretrained` writes weights into, such as "5GB"; None
    means transformers' own.
    """

    # Whether the Trainer passes `num_items_in_batch`; `forward` accepting further arguments does not imply that.
    accepts_loss_kwargs = False

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *arguments: Any, output_loading_info: bool = False, **options: Any
    ) -> Any:
        """As transformers; its report lists new weights of the model, and unused ones of the folder.

        Raises:
            InputError: the folder has a model of another class without any weight of this one, so that all
                would be random.
        """
        parent: Any = super()
        model, report = parent.from_pretrained(
            pretrained_model_name_or_path, *arguments, output_loading_info=True, **options
        )
        names = {name for name, _ in model.named_parameters()}
        holds = next(iter(model.config.architectures or ()), None)
        if holds not in (None, cls.__name__) and names and names <= set(report["missing_keys"]):
            raise InputError(
                f"{str(pretrained_model_name_or_path)!r} holds {holds}, and none of the weights of "
                f"{cls.__name__}; load it with {auto_and_pipeline(holds)[0] or holds}, whose "
                "base_model is the model without its head"
            )
        return (model, report) if output_loading_info else model

    def save_pretrained(
        self, save_directory: Any, is_main_process: bool = True, *positional: Any, **options: Any
    ) -> None:
        """As transformers, with a model card in the folder; a card that somebody else wrote is not changed.

        If weights are sharded (`longspan.models.fsdp`), every process must call this: they are gathered, and the
        first process writes.
        """
        if self.max_shard_size is not None and len(positional) < 3:
            options.setdefault("max_shard_size", self.max_shard_size)
        if is_distributed() and not positional and "state_dict" not in options:
            from longspan.models.fsdp import is_sharded, whole_weights

            if is_sharded(self):
                is_main_process = torch.distributed.get_rank() == 0
                options["state_dict"] = whole_weights(self, keep=is_main_process)
                if not is_main_process:
                    return
        super().save_pretrained(save_directory, is_main_process, *positional, **options)
        if is_main_process:
            write_card(self, Path(save_directory))

    def post_init(self) -> None:
        """As transformers. Its device maps do not split, and FSDP of accelerate gathers, the units of each stack."""
        self._no_split_modules = {type(unit).__name__ for unit in units(self)}
        super().post_init()

    def get_input_embeddings(self) -> nn.Module:
        return next(module for module in self.modules() if isinstance(module, Embeddings)).token

    def set_input_embeddings(self, value: nn.Module) -> None:
        assert isinstance(value, nn.Embedding | AdaptiveEmbedding)
        for module in self.modules():
            if isinstance(module, Embeddings):
                module.token = value

    def finish(self, output: ModelOutput, return_dict: bool | None) -> Any:
        """Returns the output, or a tuple if the call or the configuration requests it."""
        named = self.config.return_dict if return_dict is None else return_dict
        return output if named else output.to_tuple()

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Initialises matrices with N(0, init_std), as BART and RoBERTa; then applies each mechanism's own
        rules (copies, zeros).

        transformers skips a module that has no direct parameters, so its `_init_weights` is not called for attention.
        Loaded parameters are marked by transformers, and its guard makes `torch.nn.init` skip them.
        """
        super().initialize_weights()
        with initialization.guard_torch_init_functions():
            for module in self.modules():
                own: Any = getattr(module, "init_extra_weights", None)  # of mechanisms and the tables of all layers
                if own is not None:
                    own(self.config.init_std)
                elif isinstance(module, AxialPositions):
                    module.init_tables()
                elif isinstance(module, Projections):
                    module.init_matrices()
