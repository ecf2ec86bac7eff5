"""What the tasks share that read a source and write a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from torch import Tensor

from longspan.errors import InputError
from longspan.models.losses import IGNORED
from longspan.settings import LARGEST, Count
from longspan.tasks.base import Task, room_for
from longspan.tasks.predicting import pad


@dataclass(frozen=True, kw_only=True)
class WritingTask(Task):
    """A task of models that read a source and write behind it.

    Attributes:
        model: "encoder_decoder", or "prefix": one stack that reads the source both ways and writes behind it.
        pseudo_masks: of "prefix": guess each token by a mask in its place, as UniLMv2 does, or by the token before it;
            `None` leaves it to the model.
        max_source_tokens: a document is cut to so many tokens, special tokens included.
        max_target_tokens: a training target is cut to so many tokens; scores always use the whole reference.
    """

    model: Literal["encoder_decoder", "prefix"] = "encoder_decoder"
    pseudo_masks: bool | None = None
    max_source_tokens: Count = 16384
    max_target_tokens: Count = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pseudo_masks is not None and self.model != "prefix":
            raise InputError(
                f"pseudo_masks={self.pseudo_masks} is of model='prefix', and model is {self.model!r}; leave it out"
            )

    def model_fields(self) -> dict[str, Any]:
        """How tokens are guessed, where that is said."""
        return super().model_fields() | ({} if self.pseudo_masks is None else {"pseudo_masks": self.pseudo_masks})

    def model_class(self) -> Any:
        """`LongspanForConditionalGeneration`, or `LongspanForPrefixLM`."""
        from longspan.models import LongspanForConditionalGeneration, LongspanForPrefixLM

        return LongspanForPrefixLM if self.model == "prefix" else LongspanForConditionalGeneration

    def check_model(self, config: Any) -> None:
        """Refuse more tokens than the model has positions for."""
        if self.model == "prefix":
            self._check_prefix(config)
            return
        for name, room, remedy in (
            ("max_source_tokens", config.max_position_embeddings, "raise model.max_tokens"),
            ("max_target_tokens", config.max_decoder_position_embeddings, "lower it"),
        ):
            if getattr(self, name) > room:
                raise InputError(
                    f"task.{name} is {getattr(self, name)} but the model has positions for {room} tokens; {remedy}"
                )

    def _check_prefix(self, config: Any) -> None:
        """Refuse what does not fit behind a start token; pseudo masks are read besides."""
        targets = self.max_target_tokens * (2 if config.pseudo_masks else 1)
        if self.max_source_tokens + targets + 1 > room_for(LARGEST, config):
            raise InputError(
                f"task.max_source_tokens={self.max_source_tokens} with {targets} tokens of the target and a start "
                f"token are more than the {config.max_position_embeddings} positions of the model; raise "
                "model.max_tokens, or lower it"
            )

    def fitted(self, config: Any) -> Self:
        """Read as much as the model has positions for, at most."""
        return replace(self, max_source_tokens=min(self.max_source_tokens, config.max_position_embeddings))


def collate(features: Sequence[dict[str, Any]], *, padding: int, multiple: int = 1) -> dict[str, Tensor]:
    """B rows as `input_ids` (B, S) with both masks, and `labels` (B, T), left out where no row has any; the features'
    `global_tokens` say how many first tokens are global."""
    labelled = sum("labels" in feature for feature in features)
    if 0 < labelled < len(features):
        raise InputError(f"only {labelled} of {len(features)} rows in a batch have a summary; leave out the others")
    leading = [feature.get("global_tokens", 0) for feature in features]
    fillers = {"input_ids": padding, "labels": IGNORED, "importance": 0.0}
    return pad(features, fillers, leading=leading, multiple=multiple)
