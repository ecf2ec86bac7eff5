"""What the tasks on summaries share: their rows, features made on access, and ROUGE of what the model predicts."""

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
from longspan.tasks.base import Metrics, Outcome, Task
from longspan.tasks.metrics.rouge import MEASURES, Rouge
from longspan.tasks.predicting import FeatureRows, predict


@dataclass(frozen=True, kw_only=True)
class SummaryTask(Task):
    """A task whose rows are documents with reference summaries."""

    metrics: ClassVar[Metrics] = Metrics(names=MEASURES)

    @property
    def rouge(self) -> Rouge:
        """The flavour of ROUGE that `scores` gives: stemming, several references, what counts as a word."""
        raise NotImplementedError

    def features(self, row: SummaryRow, tokenizer: Any) -> dict[str, Any]:
        """What the collator needs of one row, such as `input_ids` and `labels`."""
        raise NotImplementedError

    def training_features(self, row: SummaryRow, tokenizer: Any) -> dict[str, Any]:
        """What the collator needs of a row in training, where more may be known of it than later."""
        return self.features(row, tokenizer)

    def texts(self, predictions: Any, rows: Sequence[SummaryRow], tokenizer: Any) -> list[str]:
        """Summaries from what `predict` returned, one sentence per line."""
        raise NotImplementedError

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> Sequence[SummaryRow]:
        """The rows of a source that have a reference summary, at most `limit` of them; errors as in `read_rows`."""
        limit = None if limit is None else max(limit, 0)
        # Made-up rows all have one, and are as many as are asked for.
        rows = read_rows(source, split, on_error=on_error, limit=limit if source == SYNTHETIC else None)
        return list(islice((row for row in rows if row.references), limit))

    def corpus(self, rows: Sequence[SummaryRow]) -> Iterator[str]:
        """Every document and reference summary, for training a tokenizer."""
        return texts_of(rows)

    def dataset(
        self, rows: Sequence[SummaryRow], tokenizer: Any, *, training: bool, seed: int, folder: Path
    ) -> FeatureRows:
        """The rows with their features, which are made on access."""
        return FeatureRows(rows, partial(self.training_features if training else self.features, tokenizer=tokenizer))

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[SummaryRow], *, batch_size: int) -> Outcome:
        """Summarise every row, and compare the summaries with the references by ROUGE."""
        dataset = FeatureRows(rows, partial(self.features, tokenizer=tokenizer))
        predictions = predict(model, dataset, self.collator(tokenizer), batch_size=batch_size, generate=self.generates)
        texts = self.texts(predictions, rows, tokenizer)
        lines = [
            {"id": row.id, "prediction": text, "references": list(row.references)}
            for row, text in zip(rows, texts, strict=True)
        ]
        return Outcome(scores=self.scores(texts, rows), lines=lines, flavour=self.rouge.flavour)

    def scores(self, texts: Sequence[str], rows: Sequence[SummaryRow]) -> dict[str, float]:
        """Mean F of ROUGE-1, -2, -L and -Lsum in percent, against whole references, by the flavour `rouge`."""
        for row in rows:
            _ = row.reference  # a row without one raises, by its name
        return self.rouge.mean(texts, [row.references for row in rows])


def texts_of(rows: Sequence[SummaryRow]) -> Iterator[str]:
    """Every document and reference summary, for training a tokenizer."""
    for row in rows:
        yield row.source
        yield from row.references
