"""The rows of a recipe, whatever its task takes for a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from longspan.data.summaries.synthetic import synthetic_rows
from longspan.errors import InputError
from longspan.tasks.predicting import FeatureRows
from longspan.tasks.summaries.base import texts_of
from longspan.training.recipe import Data

__all__ = ["FeatureRows", "load_rows", "synthetic_rows", "texts_of"]


def load_rows(task: Any, data: Data, part: str) -> list[Any]:
    """The rows of `part` ("train" or "validation"), all sources in order, cut to the recipe's limit.

    Raises `InputError` where a source is unknown, or where there are no rows that the task can use.
    """
    sources: Sequence[str] = getattr(data, part)
    split: str = getattr(data, f"{part}_split")
    limit: int | None = getattr(data, f"{part}_rows")
    rows: list[Any] = []
    for source in sources:
        left = limit if limit is None or not task.counts_rows else limit - len(rows)
        if left is None or left > 0:
            rows += task.read(source, split, left, on_error=data.on_error)
    if not rows:
        raise InputError(f"data.{part} is {list(sources)!r} and gives no rows; name a data set or a file that has some")
    return rows
