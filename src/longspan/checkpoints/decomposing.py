"""The same weights in another stack: `decompose` has the lower layers of an encoder read question and passage apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from transformers import PreTrainedModel

from longspan.checkpoints.incoming import carry_over, from_transformers
from longspan.checkpoints.sources import load_any
from longspan.errors import InputError
from longspan.models import LongspanPreTrainedModel
from longspan.stacks import stack_config

SHARE_WEIGHTS = frozenset({"sequential", "decomposed"})
"""Stacks that are lists of the same blocks and nothing else."""


def decompose(
    model_or_path: PreTrainedModel | str | Path,
    lower_layers: int = 9,
    *,
    positions: Literal["restart", "joint"] = "restart",
) -> LongspanPreTrainedModel:
    """Make the lower layers of an encoder read question and passage apart (DeFormer: Cao et al. 2020, 2005.00697).

    The weights stay as they are and none is added; only the configuration's `stack` changes. What a passage is below
    the upper layers then depends on the passage alone, and can be kept: see `longspan.index`. The outputs differ from
    the source's until the model has been trained on (`longspan train deformer-squad`).

    Args:
        model_or_path: a transformers or Longspan encoder, with any head and any mechanism, a directory or a Hub name.
        lower_layers: k, so many of the n layers; 9 of 12 and 20 of 24 as published. 0 with "joint" is the source.
        positions: "restart" counts the passage's positions from 0, "joint" on from the question's.

    Returns:
        A new model in evaluation mode with the source's class, type and device.

    Raises:
        InputError: a source that cannot be loaded or that has a decoder, whose blocks are not simply stacked, or that
            has fewer layers.
    """
    return restacked(
        model_or_path, {"stack": "decomposed", "lower_layers": lower_layers, "positions": positions}, "lower_layers"
    )


def restacked(
    model_or_path: PreTrainedModel | str | Path, stack: Any, argument: str = "model.stack"
) -> LongspanPreTrainedModel:
    """A copy of a model whose blocks another stack of the same weights puts together; errors as in `decompose`."""
    source = load_any(model_or_path)
    base: Any = source if isinstance(source, LongspanPreTrainedModel) else from_transformers(source)
    wanted, held = stack_config(stack), stack_config(base.config.stack)
    if base.config.is_encoder_decoder or (not hasattr(base, "model") and not hasattr(base, "encoder")):
        raise InputError(f"{argument} is for encoders, and the source is a {type(base).__name__}; give an encoder")
    for one in (held, wanted):
        if one.stack not in SHARE_WEIGHTS:
            raise InputError(
                f"{argument} needs blocks that are simply stacked, and the stack {one.stack!r} has weights or a "
                "reading of its own; train a new model with it"
            )
    model = type(base)(type(base.config).from_dict(base.config.to_dict() | {"stack": wanted.to_dict()}))
    model.to(device=base.device, dtype=base.dtype)
    model.load_state_dict(base.state_dict())
    carry_over(base, model)
    if hasattr(base, "new_weights"):
        model.new_weights = base.new_weights
    return model.eval()
