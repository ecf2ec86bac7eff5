"""What training and evaluation need to know of a task: rows in, features, a model class, predictions out, scores.

A task is a frozen keyword-only dataclass whose fields are the options under `task:` in a recipe (limits on tokens, the
flavour of the metric, …). `TASKS` names each one; it is imported when it is asked for, so that a recipe that
summarises never needs what another task needs. Training goes through these methods and nothing else::

    features = [task.features(row, tokenizer) for row in rows]      # lazily, one row at a time
    batch = task.collator(tokenizer)(features)                      # tensors, global_attention_mask included
    model = task.model_class()(config);  model(**batch).loss        # `labels` are in the batch
    texts = task.texts(predictions, rows, tokenizer)                # numpy predictions of Trainer, −100 where padded
    scores = task.scores(texts, rows)                               # {"rouge1": 43.2, …}, percentages
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, ClassVar, Protocol

from longspan.errors import InputError

TASKS = {
    "summarization": "longspan.tasks.summarization:Summarization",
    "extraction": "longspan.tasks.extraction:Extraction",
}
"""Name → where the task's dataclass lies."""


class Task(Protocol):
    """The interface of a task; implement it as a frozen keyword-only dataclass, every field with a default."""

    name: ClassVar[str]
    """Its key in `TASKS`."""
    generates: ClassVar[bool]
    """True: predictions are token ids from `model.generate`; False: they are the first output of `model.forward`."""

    def model_class(self) -> Any:
        """The `PreTrainedModel` class this task trains; it is built from a `LongspanConfig`."""
        ...

    def features(self, row: Any, tokenizer: Any) -> dict[str, Any]:
        """One row (a `SummaryRow`) as plain lists of numbers: `input_ids`, `labels`, what the collator needs."""
        ...

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """A function that pads features to a batch of tensors, with bool masks and the task's global tokens."""
        ...

    def texts(self, predictions: Any, rows: Sequence[Any], tokenizer: Any) -> list[str]:
        """The answers, one per row, from Trainer's stacked predictions (numpy, −100 where rows were padded)."""
        ...

    def scores(self, texts: Sequence[str], rows: Sequence[Any]) -> dict[str, float]:
        """The task's metric, by name; for summaries `rouge1 rouge2 rougeL rougeLsum` in percent."""
        ...


def task_class(name: str) -> Any:
    """The dataclass of the task called `name`; an unknown name raises `InputError` with the near match."""
    if name not in TASKS:
        near = get_close_matches(str(name), TASKS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(f"there is no task {name!r}; {hint}known tasks: {', '.join(TASKS)}")
    module, _, attribute = TASKS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
