"""What a stage takes over from the one before it: the weights of its best checkpoint, and AdamW's moments."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from longspan.errors import InputError
from longspan.training.runs import read_metrics

logger = logging.getLogger(__name__)


def go_on(model: Any, before: Path) -> None:
    """Give a model the weights that the stage in the folder `before` has left.

    Raises:
        InputError: it has others.
    """
    from longspan.checkpoints.loading import load_model

    try:
        model.load_state_dict(load_model(before).state_dict())
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(
            f"the weights of the stage in {str(before)!r} do not fit the next one ({reason}); a stage may change "
            "windows, lengths and dropout, but nothing that is trained"
        ) from None


def moments_of(before: Path) -> Path:
    """The file of the optimizer beside the weights that `go_on` takes."""
    return before / "checkpoints" / f"checkpoint-{read_metrics(before)['best_step']}" / "optimizer.pt"


def take_moments(optimizer: Any, file: Path) -> None:
    """Begin with the moments in a checkpoint, under the learning rates and decays that the optimizer has now."""
    if not file.is_file():  # sharded over processes, it has another form
        logger.warning("%s is not there, so the stage begins with moments of zero", file)
        return
    saved = torch.load(file, map_location="cpu", weights_only=True)
    optimizer.load_state_dict({"state": saved["state"], "param_groups": optimizer.state_dict()["param_groups"]})
