"""Base class of the tasks that generate a target from a source."""

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
    """A sequence-to-sequence task.

    Attributes:
        model: "encoder_decoder", or "prefix": one stack that encodes the source bidirectionally and
            generates the target.
        pseudo_masks: for "prefix": predict each token from a mask in its place, as UniLMv2 does, or from the token
            before it; `None` keeps the model's.
        max_source_tokens: a document is truncated to this number of tokens, including special tokens.
        max_target_tokens: a training target is truncated to this number of tokens; scores always use
            the whole reference.
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
        """Returns `pseudo_masks`, if set."""
        return super().model_fields() | ({} if self.pseudo_masks is None else {"pseudo_masks": self.pseudo_masks})

    def model_class(self) -> Any:
        """Returns `LongspanForConditionalGeneration`, or `LongspanForPrefixLM`."""
        from longspan.models import LongspanForConditionalGeneration, LongspanForPrefixLM

        return LongspanForPrefixLM if self.model == "prefix" else LongspanForConditionalGeneration

    def check_model(self, config: Any) -> None:
        """Raises `InputError` for more tokens than the model has positions for."""
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
        """Raises `InputError` for lengths that do not fit with a start token, and with pseudo masks."""
        targets = self.max_target_tokens * (2 if config.pseudo_masks else 1)
        if self.max_source_tokens + targets + 1 > room_for(LARGEST, config):
            raise InputError(
                f"task.max_source_tokens={self.max_source_tokens} with {targets} tokens of the target and a start "
                f"token are more than the {config.max_position_embeddings} positions of the model; raise "
                "model.max_tokens, or lower it"
            )

    def fitted(self, config: Any) -> Self:
        """Returns the task with at most as many tokens as the model has positions for."""
        return replace(self, max_source_tokens=min(self.max_source_tokens, config.max_position_embeddings))


def collate(features: Sequence[dict[str, Any]], *, padding: int, multiple: int = 1) -> dict[str, Tensor]:
    """Collates B rows as `input_ids` (B, S) with both masks, and `labels` (B, T), left out if no row has any; the
    features' `global_tokens` are the numbers of global first tokens.
    """
    labelled = sum("labels" in feature for feature in features)
    if 0 < labelled < len(features):
        raise InputError(f"only {labelled} of {len(features)} rows in a batch have a summary; leave out the others")
    leading = [feature.get("global_tokens", 0) for feature in features]
    fillers = {"input_ids": padding, "labels": IGNORED, "importance": 0.0}
    return pad(features, fillers, leading=leading, multiple=multiple)
