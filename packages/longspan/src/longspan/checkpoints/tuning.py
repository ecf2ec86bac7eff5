"""Training a part of a model's weights: its new positions alone, or what PEFT adapts."""

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
    """Freeze everything but the position rows that `lengthen` added to the encoder, so that inputs as short as before
    come out bit for bit as before, however long one trains.

    Rows that were there already stay in the same tensor and get a gradient of zero. Weight decay would still shrink
    them: give the optimiser to `hold_old_rows`, or `weight_decay=0`.

    Args:
        model: a lengthened model; changed in place.
        trained_tokens: longest input before; `None` takes it from the model's `report`, which only the object that
            `lengthen` returned has.

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
    """Put the old position rows back after every step of an optimiser, so that weight decay moves new ones alone.

    Args:
        optimizer: of a model that `train_new_positions_only` froze; any kind.
        model: as there.
        trained_tokens: as there.
    """
    table, old = _table_and_old_rows(model, trained_tokens)
    old_rows = table.detach()[:old].clone()

    def put_back(*_: Any) -> None:
        with torch.no_grad():
            table[:old] = old_rows

    optimizer.register_step_post_hook(put_back)


def _table_and_old_rows(model: LongspanPreTrainedModel, trained_tokens: int | None) -> tuple[nn.Parameter, int]:
    """The encoder's position table, and how many of its rows are not new."""
    encoder: Any = next(module for name, module in model.named_modules() if name.split(".")[-1] == "encoder")
    table = getattr(encoder.embeddings.position, "weight", None)
    if table is None:
        raise InputError("this model computes its positions and has no table to train")
    if trained_tokens is None:
        report: Any = getattr(model, "report", None)
        if report is None:
            raise InputError("trained_tokens=None needs the report of lengthen(); say how long inputs were before")
        trained_tokens = int(report.tokens_before)
    old = trained_tokens + model.config.position_offset
    if not 0 < old < table.shape[0]:
        raise InputError(
            f"trained_tokens={trained_tokens} leaves no new rows in a table of {model.config.max_position_embeddings} "
            "tokens; lengthen the model first"
        )
    return table, old


TARGETS = ["query", "value"]
"""The projections that Hu et al. 2021 (LoRA, arXiv 2106.09685, section 4.2) adapt; BERT's have the same names."""


def _tell_peft() -> None:
    """Put our models into every table of PEFT, one for each of its methods, in which BERT stands with these modules."""
    for name, table in vars(import_module("peft.utils")).items():
        if name.endswith("_TARGET_MODULES_MAPPING") and table.get("bert") == TARGETS:
            table[LongspanConfig.model_type] = TARGETS


after_import(("peft.utils",), _tell_peft)
