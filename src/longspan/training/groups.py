"""Learning rates of parts of a model: its encoder's, and that of the layers above it."""

from __future__ import annotations

from typing import Any

from longspan.errors import InputError


def with_head_rate(optimizer: Any, model: Any, rate: float) -> None:
    """Give the weights above the encoder groups of their own, with `rate`, and all else of the group that they were in.

    Schedules multiply each group's own rate, so all of them rise and fall together.

    Raises:
        InputError: the model has no encoder below a head, or none of the head's weights is trained.
    """
    from longspan.models import LongspanModel

    encoders = [module for module in model.modules() if isinstance(module, LongspanModel)]
    below = {id(weight) for encoder in encoders for weight in encoder.parameters()}
    found = False
    for group in list(optimizer.param_groups):
        above = [weight for weight in group["params"] if id(weight) not in below]
        if not above or not below:
            continue
        found = True
        group["params"] = [weight for weight in group["params"] if id(weight) in below]
        options = {name: value for name, value in group.items() if name not in ("params", "lr", "initial_lr")}
        optimizer.add_param_group({**options, "params": above, "lr": rate})
    if not found:
        kind = type(model).__name__
        raise InputError(
            f"optimisation.head_learning_rate is {rate}, but in a {kind} no layers above an encoder train; leave it out"
        )
