"""What training and evaluation need to know of a task: rows in, features, a model class, predictions out, scores.

A task is a frozen keyword-only dataclass whose fields are the options under `task:` in a recipe (limits on tokens, the
flavour of the metric, …). Training goes through these methods and nothing else::

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
    """What `Task.evaluate` returns: scores, and the predictions that they are of."""

    scores: dict[str, float]
    """The task's metric, by name."""
    lines: list[dict[str, Any]] = field(default_factory=list)
    """Predictions as JSON objects, one per row; written as JSON Lines."""
    files: dict[str, Any] = field(default_factory=dict)
    """Further files by name, such as an official prediction format: a text as it stands, or one JSON value; a list of
    them for a name that ends in .jsonl."""
    flavour: str = ""
    """In words, which variant of the metric the scores are."""
    mode: str = ""
    """In few words, how what was scored was cut up, where scores depend on it."""


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Which scores there are, for what picks the best checkpoint (`optimisation.best_by`) besides the loss."""

    names: tuple[str, ...] = ()
    """The scores of `Task.evaluate`; `*` stands for a part that the data decides."""
    lower_is_better: tuple[str, ...] = ()
    """Those of which the lowest is the best."""


def rows_of_batch(batch: dict[str, Any]) -> float:
    """How many rows a batch has, or how many documents in one row."""
    if "seq_idx" in batch:
        return float(batch["seq_idx"].max()) + 1 if batch["seq_idx"].numel() else 0.0
    return float(len(next(iter(batch.values()))))


def labels_right(outputs: Any, batch: dict[str, Any]) -> float:
    """How many rows have their largest logit at their label."""
    return float((outputs.logits.argmax(-1).cpu() == batch["labels"].cpu()).sum())


@dataclass(frozen=True, kw_only=True)
class Losses:
    """How the losses of batches become one number, and what follows from it."""

    labels: tuple[str, ...] = ("labels",)
    """What the collator calls the labels; a batch that has all of them has a loss."""
    weight: Callable[[dict[str, Any]], float] = rows_of_batch
    """Over how many things the loss of a batch is a mean, so that validation losses are means over all of them."""
    scores: Callable[[float], dict[str, float]] = lambda loss: {}
    """Scores that follow from the validation loss alone; they are logged with it."""
    right: Callable[[Any, dict[str, Any]], float] | None = None
    """Of the outputs of a model and a batch, how many of the things that `weight` counts are answered right; their
    share is logged with the validation loss as `accuracy`, in percent."""
    validation: Callable[[Any, Any], float] | None = None
    """The validation loss of a model and a data set, where batches depend on one another; None for the mean over them.
    """


class Task(Protocol):
    """The interface of a task; inherit from it in a frozen keyword-only dataclass, every field with a default.

    A task has a `name`, a `head` (or a `model_class`), and defines `read`, `corpus`, `dataset`, `collator` and
    `evaluate`. What else it may say has defaults that are right for most.
    """

    name: ClassVar[str]
    """Its key in `longspan.tasks.TASKS`."""
    head: ClassVar[str | None] = None
    """The head that the task trains, by its name in `HEADS`; None where `model_class` says it all."""
    metrics: ClassVar[Metrics] = Metrics()
    """Which scores `evaluate` gives."""
    generates: ClassVar[bool] = False
    """Whether evaluation calls `model.generate`, so that a recipe's `generation` section has a meaning."""
    counts_rows: ClassVar[bool] = True
    """Whether `read` gives one row per document; False where it gives sources that are streamed later."""

    takes_encoders: ClassVar[bool] = False
    """Whether its model may start from the encoder of an encoder–decoder, whose decoder is left out."""

    def __post_init__(self) -> None:
        """Refuse options out of range; subclasses that override this call it first."""
        check(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain data with the task's name first, as in a recipe; `build_task` reverses it."""
        options: Any = self  # a dataclass, in every class that inherits from this one
        return {"name": self.name, **{field.name: getattr(self, field.name) for field in fields(options)}}

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> Sequence[Any]:
        """The rows of one data set or path, at most `limit`; `"synthetic"` gives made-up ones.

        With `on_error="skip"` a corrupt row is passed over, and a warning in the log gives their number at the end;
        otherwise it raises `InputError` naming file and line.
        """
        ...

    def corpus(self, rows: Sequence[Any]) -> Iterator[str]:
        """Texts to train a tokenizer on."""
        ...

    def dataset(self, rows: Sequence[Any], tokenizer: Any, *, training: bool, seed: int, folder: Path) -> Any:
        """A map-style `torch.utils.data.Dataset` of features: plain lists of numbers, what the collator needs.

        Access by index is what makes resuming exact. A data set with `set_epoch(epoch)` is told each epoch.

        Args:
            rows: what `read` gave, perhaps of several sources.
            tokenizer: of transformers.
            training: False asks for features that are the same in every epoch and for every model.
            seed: of the experiment.
            folder: where files may be kept that are costly to make; a resumed run finds them there.
        """
        ...

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """A function that pads features to a batch of tensors, with bool masks and the task's global tokens."""
        ...

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[Any], *, batch_size: int) -> Outcome:
        """Predict every row and score the predictions; `batch_size` changes the time, not the result."""
        ...

    def model_class(self) -> Any:
        """The `PreTrainedModel` class this task trains, by default that of its head; built from a `LongspanConfig`."""
        from longspan.models import model_with

        assert self.head is not None
        return model_with(self.head)

    def model_fields(self) -> dict[str, Any]:
        """Fields of `LongspanConfig` that the task needs, its head among them; those that a recipe gives in `model.new`
        come first."""
        return {} if self.head is None else {"head": {"head": self.head}}

    @property
    def input_tokens(self) -> int | None:
        """The longest input that its options allow, in tokens; None where the model alone bounds it."""
        return getattr(self, "max_source_tokens", getattr(self, "max_tokens", None))

    def new_tokens(self) -> Sequence[str]:
        """Tokens with a meaning of their own in this task; training appends those that the tokenizer lacks."""
        return ()

    def normalizer(self) -> Any | None:
        """What the task does to texts before they become tokens, as a normaliser of the tokenizers library, which
        training puts into the tokenizer; None where that is nothing."""
        return None

    @property
    def preparation(self) -> str:
        """The same in a sentence, for the model card; empty where there is none."""
        return ""

    def of_rows(self, rows: Sequence[Any]) -> Self:
        """This task with what only the training rows tell, such as which labels there are; before a model is made."""
        return self

    def check_model(self, config: Any) -> None:
        """Raise `InputError` where the model of `config` cannot do this task, such as for want of positions."""

    def fitted(self, config: Any) -> Self:
        """This task for a published model that came without a recipe: limits cut to what the model can read."""
        return self

    def teacher(self, student: Any) -> Any:
        """What a model learns from besides its labels, while it is as training begins: something with `loss(model,
        batch)`, which then takes the place of the model's own loss; None where that is all."""
        return None

    def losses(self) -> Losses:
        """What its batches call the labels, and how their losses become one."""
        return Losses()


def room_for(tokens: int, config: Any) -> int:
    """So many tokens, or as many as the model has positions for; sinusoids have no end, nor has a model without."""
    endless = config.position_embedding in ("sinusoidal", "none")
    return tokens if endless else min(tokens, config.max_position_embeddings)


def check_room(tokens: int, config: Any) -> None:
    """Raise `InputError` for chunks, of `task.max_tokens` tokens, that are longer than the model reads."""
    room = room_for(tokens, config)
    if tokens > room:
        raise InputError(
            f"task.max_tokens is {tokens} but the model has positions for {room} tokens; "
            "raise model.max_tokens, or lower it"
        )


def label_numbers(labels: Sequence[str]) -> dict[str, int]:
    """Each label's place among a model's outputs."""
    return {label: number for number, label in enumerate(labels)}


def label_fields(labels: Sequence[str]) -> dict[str, Any]:
    """The fields of a configuration that give a model an output for each label, under its name."""
    return {"id2label": dict(enumerate(labels)), "label2id": label_numbers(labels)}
