"""The interface of a task for training and evaluation: rows, features, a model class, predictions, scores.

A task is a frozen keyword-only dataclass whose fields are the options under `task:` in a recipe (limits on tokens, the
flavour of the metric, …). Training uses only these methods::

    rows = task.read("pubmed", "train", None)                      # whatever a row of this task is; "synthetic" too
    texts = task.corpus(rows)                                      # for a tokenizer trained on the spot
    data = task.dataset(rows, tokenizer, training=True, seed=1, folder=run)   # map-style: features by index
    batch = task.collator(tokenizer)([data[0], data[1]])           # tensors, global_attention_mask included
    model = task.model_class()(config);  model(**batch).loss       # what the loss needs is in the batch
    outcome = task.evaluate(model, tokenizer, rows, batch_size=1)  # scores, and every prediction
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from longspan.errors import InputError
from longspan.settings import check


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of `Task.evaluate`: scores, and the predictions that they refer to."""

    scores: dict[str, float]
    """The task's metric, by name."""
    lines: list[dict[str, Any]] = field(default_factory=list)
    """Predictions as JSON objects, one per row; written as JSON Lines."""
    files: dict[str, Any] = field(default_factory=dict)
    """Further files by name, such as an official prediction format: a string, or one JSON value; a list of values for a
    name that ends in .jsonl.
    """
    flavour: str = ""
    """Describes the variant of the metric."""
    mode: str = ""
    """Briefly describes how the text was split for scoring, if scores depend on it."""


@dataclass(frozen=True, kw_only=True)
class RowStream:
    """Training rows that are read while the model trains."""

    rows: Callable[[], Iterator[Any]]
    """Starts a pass over the rows, in their order, before features that cost time are computed."""
    features: Callable[[Any, int], dict[str, Any]]
    """Returns what the collator needs of a row, and of its number in the training."""
    identity: Any = None
    """Plain data that change with the contents; a resumed run must have the same."""


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The available scores, for selecting the best checkpoint (`optimisation.best_by`) besides the loss."""

    names: tuple[str, ...] = ()
    """The scores of `Task.evaluate`; `*` is a part that depends on the data."""
    lower_is_better: tuple[str, ...] = ()
    """Scores of which the lowest is the best."""


def rows_of_batch(batch: dict[str, Any]) -> float:
    """Returns the number of rows of a batch, or of documents in packed rows."""
    if "seq_idx" in batch:
        return float(batch["seq_idx"].max()) + 1 if batch["seq_idx"].numel() else 0.0
    return float(len(next(iter(batch.values()))))


def labels_right(outputs: Any, batch: dict[str, Any]) -> float:
    """Returns the number of rows with their largest logit at their label."""
    return float((outputs.logits.argmax(-1).cpu() == batch["labels"].cpu()).sum())


@dataclass(frozen=True, kw_only=True)
class Losses:
    """How the losses of batches are combined, and derived scores."""

    labels: tuple[str, ...] = ("labels",)
    """The collator's names of the labels; a batch that has all of them has a loss."""
    weight: Callable[[dict[str, Any]], float] = rows_of_batch
    """Returns the number of terms of a batch's mean loss, so that validation losses are means over all terms."""
    scores: Callable[[float], dict[str, float]] = lambda loss: {}
    """Scores that follow from the validation loss alone; they are logged with it."""
    right: Callable[[Any, dict[str, Any]], float] | None = None
    """Returns how many of the terms that `weight` counts are answered right, from the outputs of a model and a batch;
    their share is logged with the validation loss as `accuracy`, in percent.
    """
    validation: Callable[[Any, Any], float] | None = None
    """Returns the validation loss of a model and a data set, if batches depend on one another; None for the
    mean over them.
    """


class Task(Protocol):
    """The interface of a task; inherit from it in a frozen keyword-only dataclass, every field with a default.

    A task has a `name`, a `head` (or a `model_class`), and defines `read`, `corpus`, `dataset`, `collator` and
    `evaluate`. Override the other members only if their defaults are wrong.
    """

    name: ClassVar[str]
    """The key in `longspan.tasks.TASKS`."""
    head: ClassVar[str | None] = None
    """The head that the task trains, by its name in `HEADS`; None if `model_class` is overridden."""
    metrics: ClassVar[Metrics] = Metrics()
    """The scores of `evaluate`."""
    generates: ClassVar[bool] = False
    """Whether evaluation calls `model.generate`, so that a recipe's `generation` section has an effect."""
    counts_rows: ClassVar[bool] = True
    """Whether `read` returns one row per document; False if it returns sources that are streamed later."""
    streams: ClassVar[bool] = False
    """Whether training rows can be read while the model trains (`data.streaming`), with `stream`."""
    takes_encoders: ClassVar[bool] = False
    """Whether its model may start from the encoder of an encoder-decoder, without the decoder."""

    def __post_init__(self) -> None:
        """Raises `InputError` for options out of range; subclasses that override this call it first."""
        check(self)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data with the task's name first, as in a recipe; `build_task` reverses it."""
        options: Any = self  # a dataclass, in every class that inherits from this one
        return {"name": self.name, **{field.name: getattr(self, field.name) for field in fields(options)}}

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> Sequence[Any]:
        """Returns the rows of one data set or path, at most `limit`; `"synthetic"` generates rows.

        With `on_error="skip"` corrupt rows are skipped, and a warning logs their number at the end; otherwise they
        raise `InputError` with file and line.
        """
        ...

    def stream(
        self, sources: Sequence[str], split: str, limit: int | None, tokenizer: Any, *, seed: int, on_error: str
    ) -> RowStream:
        """Returns the training rows of sources, which are located but not read; other arguments as in `read` and
        `dataset`. Tasks with `streams` override it.
        """
        raise InputError(f"task {self.name!r} needs all of its rows before it trains; leave data.streaming out")

    def corpus(self, rows: Sequence[Any]) -> Iterator[str]:
        """Yields texts to train a tokenizer on."""
        ...

    def dataset(self, rows: Sequence[Any], tokenizer: Any, *, training: bool, seed: int, folder: Path) -> Any:
        """Returns a map-style `torch.utils.data.Dataset` of features: plain lists of numbers, as the collator needs.

        Access by index makes resuming exact. A data set with `set_epoch(epoch)` is called with each epoch.

        Args:
            rows: the rows of `read`, possibly of several sources.
            tokenizer: a tokenizer of transformers.
            training: False for features that are the same in every epoch and for every model.
            seed: random seed of the experiment.
            folder: cache of files that are expensive to compute; a resumed run uses them.
        """
        ...

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Returns a function that pads features to a batch of tensors, with bool masks and the task's global tokens."""
        ...

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[Any], *, batch_size: int) -> Outcome:
        """Predicts every row and scores the predictions; `batch_size` changes the time, not the result."""
        ...

    def model_class(self) -> Any:
        """Returns the `PreTrainedModel` class that this task trains, by default that of its head; built
        from a `LongspanConfig`.
        """
        from longspan.models import model_with

        assert self.head is not None
        return model_with(self.head)

    def model_fields(self) -> dict[str, Any]:
        """Returns fields of `LongspanConfig` that the task needs, including its head; `model.new` of a
        recipe overrides them.
        """
        return {} if self.head is None else {"head": {"head": self.head}}

    @property
    def input_tokens(self) -> int | None:
        """Returns the longest input for its options, in tokens; None if only the model limits it."""
        return getattr(self, "max_source_tokens", getattr(self, "max_tokens", None))

    def new_tokens(self) -> Sequence[str]:
        """Returns special tokens of this task; training adds those that the tokenizer lacks."""
        return ()

    def normalizer(self) -> Any | None:
        """Returns the task's preparation of texts as a normaliser of the tokenizers library, which training adds to the
        tokenizer; None if there is none.
        """
        return None

    @property
    def preparation(self) -> str:
        """Describes the preparation in a sentence, for the model card; empty if there is none."""
        return ""

    def of_rows(self, rows: Sequence[Any]) -> Self:
        """Returns this task with options from the training rows, such as the labels, before a model is created."""
        return self

    def check_model(self, config: Any) -> None:
        """Raises `InputError` if the model of `config` does not support this task, such as with too few positions."""

    def fitted(self, config: Any) -> Self:
        """Returns this task for a published model without a recipe, with limits that the model supports."""
        return self

    def teacher(self, student: Any) -> Any:
        """Returns an object with `loss(model, batch)` that replaces the model's own loss, from the initial model; None
        to train on the labels only.
        """
        return None

    def losses(self) -> Losses:
        """Returns the names of the labels in batches, and how losses are combined."""
        return Losses()


def room_for(tokens: int, config: Any) -> int:
    """Returns `tokens`, or the number of the model's positions if smaller; sinusoids, and models without positions,
    have no limit.
    """
    endless = config.position_embedding in ("sinusoidal", "none")
    return tokens if endless else min(tokens, config.max_position_embeddings)


def check_room(tokens: int, config: Any) -> None:
    """Raises `InputError` for chunks, of `task.max_tokens` tokens, that are longer than the model's inputs."""
    room = room_for(tokens, config)
    if tokens > room:
        raise InputError(
            f"task.max_tokens is {tokens} but the model has positions for {room} tokens; "
            "raise model.max_tokens, or lower it"
        )


def label_numbers(labels: Sequence[str]) -> dict[str, int]:
    """Returns each label's index among a model's outputs."""
    return {label: number for number, label in enumerate(labels)}


def label_fields(labels: Sequence[str]) -> dict[str, Any]:
    """Returns configuration fields for an output for each label, under its name."""
    return {"id2label": dict(enumerate(labels)), "label2id": label_numbers(labels)}
