"""Base class of the tasks on summaries: their rows, features on access, and ROUGE of the predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from longspan.data.sources import SYNTHETIC
from longspan.data.summaries.readers import read_rows
from longspan.data.summaries.rows import SummaryRow
from longspan.tasks.base import Metrics, Outcome, RowStream, Task
from longspan.tasks.metrics.rouge import MEASURES, Rouge
from longspan.tasks.predicting import FeatureRows, predict
from longspan.tasks.row_sources import streamed_rows


@dataclass(frozen=True, kw_only=True)
class SummaryTask(Task):
    """A task whose rows are documents with reference summaries."""

    metrics: ClassVar[Metrics] = Metrics(names=MEASURES)
    streams: ClassVar[bool] = True

    @property
    def rouge(self) -> Rouge:
        """Returns the flavour of ROUGE for `scores`: stemming, several references, tokens."""
        raise NotImplementedError

    def features(self, row: SummaryRow, tokenizer: Any) -> dict[str, Any]:
        """Returns the features of one row for the collator, such as `input_ids` and `labels`."""
        raise NotImplementedError

    def training_features(self, row: SummaryRow, tokenizer: Any) -> dict[str, Any]:
        """Returns the features of a row in training, which can include more than in inference."""
        return self.features(row, tokenizer)

    def texts(self, predictions: Any, rows: Sequence[SummaryRow], tokenizer: Any) -> list[str]:
        """Returns summaries from the results of `predict`, one sentence per line."""
        raise NotImplementedError

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> Sequence[SummaryRow]:
        """Returns the rows of a source that have a reference summary, at most `limit`; errors as in `read_rows`."""
        return list(self.iterate(source, split, limit, on_error=on_error))

    def iterate(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> Iterator[SummaryRow]:
        """As `read`, one row after the other."""
        limit = None if limit is None else max(limit, 0)
        # Generated rows all have one, and are exactly `limit`.
        rows = read_rows(source, split, on_error=on_error, limit=limit if source == SYNTHETIC else None)
        return islice((row for row in rows if row.references), limit)

    def stream(
        self, sources: Sequence[str], split: str, limit: int | None, tokenizer: Any, *, seed: int, on_error: str
    ) -> RowStream:
        """Returns the rows of sources, tokenised on access."""
        features = partial(self.training_features, tokenizer=tokenizer)
        return streamed_rows(self.iterate, features, sources, split, limit, on_error)

    def corpus(self, rows: Sequence[SummaryRow]) -> Iterator[str]:
        """Yields every document and reference summary, for training a tokenizer."""
        return texts_of(rows)

    def dataset(
        self, rows: Sequence[SummaryRow], tokenizer: Any, *, training: bool, seed: int, folder: Path
    ) -> FeatureRows:
        """Returns the rows with their features, which are computed on access."""
        return FeatureRows(rows, partial(self.training_features if training else self.features, tokenizer=tokenizer))

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[SummaryRow], *, batch_size: int) -> Outcome:
        """Summarises every row, and scores the summaries against the references with ROUGE."""
        dataset = FeatureRows(rows, partial(self.features, tokenizer=tokenizer))
        predictions = predict(model, dataset, self.collator(tokenizer), batch_size=batch_size, generate=self.generates)
        texts = self.texts(predictions, rows, tokenizer)
        lines = [
            {"id": row.id, "prediction": text, "references": list(row.references)}
            for row, text in zip(rows, texts, strict=True)
        ]
        return Outcome(scores=self.scores(texts, rows), lines=lines, flavour=self.rouge.flavour)

    def scores(self, texts: Sequence[str], rows: Sequence[SummaryRow]) -> dict[str, float]:
        """Returns the mean F of ROUGE-1, -2, -L and -Lsum in percent, against whole references, with
        the flavour `rouge`.
        """
        for row in rows:
            _ = row.reference  # a row without one raises, with its name
        return self.rouge.mean(texts, [row.references for row in rows])


def texts_of(rows: Sequence[SummaryRow]) -> Iterator[str]:
    """Yields every document and reference summary, for training a tokenizer."""
    for row in rows:
        yield row.source
        yield from row.references
