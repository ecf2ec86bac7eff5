"""Training of parts of a model: only its new positions, or PEFT adapters."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from longspan.errors import InputError
from longspan.imports import after_import
from longspan.models import LongspanPreTrainedModel
from longspan.models.configuration import LongspanConfig


def train_new_positions_only(model: LongspanPreTrainedModel, trained_tokens: int | None = None) -> nn.Parameter:
    """Freezes all parameters except the position rows that `lengthen` added to the encoder, so that outputs for inputs
    up to the old length stay bit-identical.

    The old rows are part of the same tensor and get a gradient of zero. Weight decay would still shrink them: pass the
    optimiser to `hold_old_rows`, or use `weight_decay=0`.

    Args:
        model: a lengthened model; modified in place.
        trained_tokens: longest input before; `None` takes it from the model's `report`, which exists only on the object
            returned by `lengthen`.

    Returns:
        The position table, the only parameter that is trained.

    Raises:
        InputError: a model without position table or report, or without new rows.
    """
    table, old = _table_and_old_rows(model, trained_tokens)
    for parameter in model.parameters():
        parameter.requires_grad_(parameter is table)

    def keep_old_rows(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        gradient[:old] = 0
        return gradient

    table.register_hook(keep_old_rows)
    return table


def hold_old_rows(
    optimizer: torch.optim.Optimizer, model: LongspanPreTrainedModel, trained_tokens: int | None = None
) -> None:
    """Restores the old position rows after every optimiser step, so that weight decay affects new rows only.

    Args:
        optimizer: any optimiser of a model frozen by `train_new_positions_only`.
        model: as in `train_new_positions_only`.
        trained_tokens: as in `train_new_positions_only`.
    """
    table, old = _table_and_old_rows(model, trained_tokens)
    old_rows = table.detach()[:old].clone()

    def put_back(*_: Any) -> None:
        with torch.no_grad():
            table[:old] = old_rows

    optimizer.register_step_post_hook(put_back)


def _table_and_old_rows(model: LongspanPreTrainedModel, trained_tokens: int | None) -> tuple[nn.Parameter, int]:
    """Returns the encoder's position table, and the number of its old rows."""
    encoder: Any = next(module for name, module in model.named_modules() if name.split(".")[-1] == "encoder")
    table = getattr(encoder.embeddings.position, "weight", None)
    if table is None:
        raise InputError("this model computes its positions and has no table to train")
    if trained_tokens is None:
        report: Any = getattr(model, "report", None)
        if report is None:
            raise InputError(
                "trained_tokens=None needs the report of lengthen(); give the previous maximal length of inputs"
            )
        trained_tokens = int(report.tokens_before)
    old = trained_tokens + model.config.position_offset
    if not 0 < old < table.shape[0]:
        raise InputError(
            f"trained_tokens={trained_tokens} leaves no new rows in a table of {model.config.max_position_embeddings} "
            "tokens; lengthen the model first"
        )
    return table, old


TARGETS = ["query", "value"]
"""The projections that LoRA adapts (Hu et al. 2021, arXiv 2106.09685, section 4.2); BERT's have the same names."""


def _register_with_peft() -> None:
    """Registers our models in every table of PEFT, one per method, in which BERT has these modules."""
    for name, table in vars(import_module("peft.utils")).items():
        if name.endswith("_TARGET_MODULES_MAPPING") and table.get("bert") == TARGETS:
            table[LongspanConfig.model_type] = TARGETS


after_import(("peft.utils",), _register_with_peft)
