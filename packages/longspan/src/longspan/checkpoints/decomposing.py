"""The same weights in another stack: `decompose` makes the lower layers of an encoder process question and passage
separately."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from transformers import PreTrainedModel

from longspan.checkpoints.conversion import carry_over, from_transformers
from longspan.checkpoints.sources import load_any
from longspan.errors import InputError
from longspan.models import LongspanPreTrainedModel
from longspan.stacks import stack_config


def decompose(
    model_or_path: PreTrainedModel | str | Path,
    lower_layers: int = 9,
    *,
    positions: Literal["restart", "joint"] = "restart",
) -> LongspanPreTrainedModel:
    """Makes the lower layers of an encoder process question and passage separately (DeFormer: Cao et al. 2020,
    2005.00697).

    Weights are unchanged and none are added; only the configuration's `stack` changes. The lower states of a passage
    then depend on the passage alone, and can be cached: see `longspan.index`. The outputs differ from the source's
    until the model has been fine-tuned (`longspan train deformer-squad`).

    Args:
        model_or_path: a transformers or Longspan encoder, with any head and any mechanism, a directory or a Hub name.
        lower_layers: k of the n layers; 9 of 12 and 20 of 24 as published. 0 with "joint" is the source.
        positions: "restart" counts the passage's positions from 0, "joint" continues after the question's.

    Returns:
        A new model in evaluation mode with the source's class, type and device.

    Raises:
        InputError: the source cannot be loaded, has a decoder, whose blocks are not simply stacked, or has fewer
            layers.
    """
    return restacked(
        model_or_path, {"stack": "decomposed", "lower_layers": lower_layers, "positions": positions}, "lower_layers"
    )


def restacked(
    model_or_path: PreTrainedModel | str | Path, stack: Any, argument: str = "model.stack"
) -> LongspanPreTrainedModel:
    """Returns a copy of a model with its blocks in another stack; errors as in `decompose`.

    Additional weights of that stack are newly initialised. The copy's `stack_report` lists what was copied and what is
    new, and its `new_weights` names the new tensors.
    """
    source = load_any(model_or_path)
    base: Any = source if isinstance(source, LongspanPreTrainedModel) else from_transformers(source)
    wanted, held = stack_config(stack), stack_config(base.config.stack)
    writes = base.config.is_encoder_decoder and "decoder_layers" in wanted.unused
    if writes or (not hasattr(base, "model") and not hasattr(base, "encoder")):
        raise InputError(f"{argument} is for encoders, and the source is a {type(base).__name__}; give an encoder")
    for config in (held, wanted):
        if not config.plain_blocks:
            raise InputError(
                f"{argument} needs blocks that are simply stacked, and the stack {config.stack!r} has weights or a "
                "reading of its own; train a new model with it"
            )
    model = type(base)(type(base.config).from_dict(base.config.to_dict() | {"stack": wanted.to_dict()}))
    model.to(device=base.device, dtype=base.dtype)
    old, state = base.state_dict(), model.state_dict()
    if lost := sorted(name for name in old if name not in state or state[name].shape != old[name].shape):
        raise InputError(
            f"{argument} has no place for {lost[0]!r} of the source, whose stack is {held.stack!r}; train a new model "
            f"with the stack {wanted.stack!r}"
        )
    model.load_state_dict(old, strict=False)
    carry_over(base, model)
    new = [name for name in state if name not in old]
    if new or hasattr(base, "new_weights"):
        model.new_weights = (*getattr(base, "new_weights", ()), *new)
    if hasattr(base, "report"):
        model.report = base.report
    model.stack_report = StackReport.of(model, wanted.stack, new)
    return model.eval()


@dataclass(frozen=True, kw_only=True)
class StackReport:
    """The origin of every parameter after a change of the stack.

    Attributes:
        stack: name of the new stack.
        copied: number of parameters copied from the source.
        new: part → number of its newly initialised parameters.
    """

    stack: str
    copied: int
    new: dict[str, int]

    @classmethod
    def of(cls, model: Any, stack: str, new: Collection[str]) -> StackReport:
        """Returns the report of a model whose tensors `new` are newly initialised."""
        parts, copied = Counter[str](), 0
        for name, parameter in model.named_parameters():
            if name in new:
                match = re.search(r"layers\.(?:\d+\.)?([a-z_]+)", name)
                parts[name if match is None else match[1]] += parameter.numel()
            else:
                copied += parameter.numel()
        return cls(stack=stack, copied=copied, new=dict(parts))

    def __str__(self) -> str:
        new = " · ".join(f"{count:,} new in {part}" for part, count in self.new.items()) or "none is new"
        return f"{'stack':<14} {self.stack}: {self.copied:,} parameters copied · {new}"
