"""Distillation from a teacher of the same shape: its predictions and its states in the upper layers (DeFormer, §3.2).

Cao et al. 2020, arXiv 2005.00697::

    L     = γ L_task + α L_KD + β L_LRS
    L_KD  = T² · KL( softmax(z_teacher / T) ‖ softmax(z_student / T) ),   start and end averaged
    L_LRS = mean over the upper layers ℓ = k+1 … n of MSE( H_ℓ student, H_ℓ teacher ),   over real tokens

For a classifier with a pooler, L_LRS includes the error of the pooled vector as another layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import functional

from longspan.errors import InputError
from longspan.models.losses import wide
from longspan.settings import Range, check
from longspan.stacks import stack_config

Weight = Annotated[float, Range(0, 1000)]
HIDDEN = -1e9
"""The score of padding, for both models."""


@dataclass(frozen=True, kw_only=True)
class Distilling:
    """Distillation from a teacher in addition to the labels; the weights are DeFormer's for 9 of 12 layers.

    Attributes:
        teacher: folder or Hub name of a model that was trained for the task; None uses the initial weights of training,
            with all layers over question and passage together.
        alpha: weight of the teacher's predictions (0.3 for k = 10, 1.4 for large models).
        beta: weight of its states (0.2, 0.3).
        gamma: weight of the labels (0.8, 0.8).
        temperature: T, by which both models' scores are divided.
    """

    teacher: str | None = None
    alpha: Weight = 0.5
    beta: Weight = 0.2
    gamma: Weight = 0.3
    temperature: Annotated[float, Range(above=0, maximum=1000)] = 2.0

    def __post_init__(self) -> None:
        """Raises `InputError` for weights out of range, and if all are 0."""
        check(self)
        if not self.alpha + self.beta + self.gamma:
            raise InputError("distillation.alpha, beta and gamma are all 0, so that there is no loss; raise one")

    def teacher_of(self, student: Any) -> Teacher:
        """Returns the teacher of an untrained student.

        Raises:
            InputError: it cannot be loaded, or its head, width or depth differs.
        """
        from longspan.checkpoints.decomposing import restacked
        from longspan.checkpoints.loading import load_model

        if self.teacher is None:
            return Teacher(restacked(student, "sequential", "distillation"), self)
        teacher: Any = load_model(self.teacher)
        for name in ("head", "vocab_size", "hidden_size", "num_hidden_layers"):
            ours, theirs = getattr(student.config, name), getattr(teacher.config, name)
            if ours != theirs:
                raise InputError(
                    f"distillation.teacher is {self.teacher!r}, whose {name} is {theirs!r}, and the student's is "
                    f"{ours!r}; give the teacher that the student starts from"
                )
        return Teacher(teacher.to(device=student.device, dtype=student.dtype), self)


class Teacher:
    """A frozen model without dropout, and the distillation loss."""

    def __init__(self, model: Any, options: Distilling) -> None:
        self.model, self.options = model.eval().requires_grad_(False), options

    def loss(self, student: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        """Returns the scalar `γ L_task + α L_KD + β L_LRS` of one batch with its labels (Cao et al. 2020, section 3).

        The teacher processes the same inputs without gradient; terms whose weight is 0 are not computed.
        """
        ours = student(**inputs, output_hidden_states=True)
        self.model.to(ours.loss.device)
        with torch.no_grad():
            theirs = self.model(**inputs, output_hidden_states=True)
        options, real = self.options, inputs["attention_mask"].bool()
        loss = options.gamma * ours.loss
        if options.alpha:
            loss = loss + options.alpha * prediction_loss(ours, theirs, real, options.temperature)
        if options.beta:
            config = getattr(student, "module", student).config
            first = stack_config(config.stack).first_joint(config.num_hidden_layers)
            pooler = getattr(self.model.model, "pooler", None) if "logits" in ours else None
            pooled = None
            if pooler is not None:
                own = getattr(student, "module", student).model.pooler
                pooled = functional.mse_loss(own(ours.hidden_states[-1]), pooler(theirs.hidden_states[-1]))
            loss = loss + options.beta * states_loss(ours.hidden_states, theirs.hidden_states, real, first, pooled)
        return loss


def prediction_loss(ours: Any, theirs: Any, real: Tensor, temperature: float) -> Tensor:
    """Returns L_KD, a mean over rows and over all outputs named logits; `(B, T)` ones exclude padding."""
    losses = []
    for name in (name for name in ours if name.endswith("logits")):
        scores = [wide(side[name]) / temperature for side in (ours, theirs)]
        if scores[0].shape == real.shape:
            scores = [score.masked_fill(~real, HIDDEN) for score in scores]
        student, teacher = (score.log_softmax(-1) for score in scores)
        losses.append(temperature**2 * functional.kl_div(student, teacher, reduction="batchmean", log_target=True))
    return torch.stack(losses).mean()


def states_loss(
    ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...], real: Tensor, first: int, pooled: Tensor | None = None
) -> Tensor:
    """Returns L_LRS.

    Args:
        ours, theirs: states `(B, T, E)` before each layer and after the last.
        real: `(B, T)` bool.
        first: k, the index of the first upper layer, from 0.
        pooled: the error of the pooled vector, if there is one.
    """
    count = real.sum().clamp(min=1) * ours[0].shape[-1]
    errors = [
        (wide(student - teacher).square() * real[..., None]).sum() / count
        for student, teacher in zip(ours[first + 1 :], theirs[first + 1 :], strict=True)
    ]
    errors += [] if pooled is None else [pooled]
    return torch.stack(errors).mean() if errors else ours[0].new_zeros(())
