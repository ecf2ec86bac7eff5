"""What the tasks on summaries share: their rows, features made on access, and the lines that evaluation writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from longspan.data.sources import SYNTHETIC
from longspan.data.summaries.readers import read_rows
from longspan.data.summaries.rows import SummaryRow
from longspan.tasks.base import Task
from longspan.tasks.predicting import FeatureRows


@dataclass(frozen=True, kw_only=True)
class SummaryTask(Task):
    """A task whose rows are documents with reference summaries."""

    def features(self, row: SummaryRow, tokenizer: Any) -> dict[str, Any]:
        """What the collator needs of one row."""
        raise NotImplementedError

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> Sequence[SummaryRow]:
        """Rows that have a reference summary."""
        return read_summaries(source, split, limit, on_error=on_error)

    def corpus(self, rows: Sequence[SummaryRow]) -> Iterator[str]:
        """Every document and reference summary."""
        return texts_of(rows)

    def dataset(
        self, rows: Sequence[SummaryRow], tokenizer: Any, *, training: bool, seed: int, folder: Path
    ) -> FeatureRows:
        """`features` of each row."""
        return FeatureRows(rows, partial(self.features, tokenizer=tokenizer))


def read_summaries(source: str, split: str, limit: int | None = None, *, on_error: str = "raise") -> list[SummaryRow]:
    """Rows of one data set or file that have a reference summary, at most `limit`; see `Task.read`."""
    if limit is not None and limit <= 0:
        return []
    # Made-up rows all have one, and are as many as are asked for.
    rows = read_rows(source, split, on_error=on_error, limit=limit if source == SYNTHETIC else None)
    return list(islice((row for row in rows if row.references), limit))


def texts_of(rows: Sequence[SummaryRow]) -> Iterator[str]:
    """Every document and reference summary, for training a tokenizer."""
    for row in rows:
        yield row.source
        yield from row.references


def prediction_lines(texts: Sequence[str], rows: Sequence[SummaryRow]) -> list[dict[str, Any]]:
    """One JSON object per row: its id, what was predicted, the references."""
    return [
        {"id": row.id, "prediction": text, "references": list(row.references)}
        for row, text in zip(rows, texts, strict=True)
    ]
