"""What all Longspan models share with transformers: loading, saving, initialisation, gradient checkpointing."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from longspan.attention.base import Attention
from longspan.models.configuration import LongspanConfig


class LongspanPreTrainedModel(PreTrainedModel):
    """Base class: `from_pretrained`, `save_pretrained` (safetensors), `gradient_checkpointing_enable()`."""

    config: LongspanConfig
    config_class = LongspanConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["EncoderLayer", "DecoderLayer"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    # Attention is ours, not one of transformers' kernels; these only say that no `attn_implementation` is refused.
    _supports_sdpa = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """N(0, init_std) for matrices, as BART and RoBERTa; a mechanism's own rules where it has them.

        Children come first, so a mechanism finds its projections initialised and sets only what differs (copies,
        zeros). Parameters that were just loaded carry a mark of transformers and stay as they are.
        """
        super()._init_weights(module)
        if isinstance(module, Attention):
            module.init_extra_weights(self.config.init_std)
