"""Rows for training: real ones by name or path, synthetic ones for smoke runs, and features made on access."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from longspan.data.readers import DATA_SETS, read_rows
from longspan.data.rows import SummaryRow
from longspan.errors import InputError
from longspan.training.recipe import Data

SYNTHETIC = "synthetic"
"""The name of the data set that is written in code, so that a smoke run needs no files."""


def load_rows(data: Data, part: str) -> list[SummaryRow]:
    """The rows of `part` ("train" or "validation"), all sources in order, cut to the recipe's limit.

    Raises `InputError` where a source is unknown or holds no rows with a reference summary.
    """
    sources: Sequence[str] = getattr(data, part)
    split: str = getattr(data, f"{part}_split")
    limit: int | None = getattr(data, f"{part}_rows")
    rows: list[SummaryRow] = []
    for source in sources:
        rows += read_source(source, split, None if limit is None else limit - len(rows))
    if not rows:
        raise InputError(f"data.{part} is {list(sources)!r} and gives no rows; name a data set or a file that has some")
    return rows


def read_source(source: str, split: str, limit: int | None = None) -> list[SummaryRow]:
    """Rows of one data set or file that have a reference summary, at most `limit`."""
    if limit is not None and limit <= 0:
        return []
    if source == SYNTHETIC:
        return synthetic_rows(limit or 8, seed=0 if split == "train" else 1)
    scored = (row for row in read_rows(_find(source), split) if row.references)
    return list(islice(scored, limit))


def _find(source: str) -> str:
    """A path that only exists inside the folder of data sets means that one."""
    inside = Path(os.environ.get("LONGSPAN_DATA", "")) / source
    named = source in DATA_SETS or Path(source).exists()
    return str(inside) if not named and os.environ.get("LONGSPAN_DATA") and inside.exists() else source


def synthetic_rows(count: int, *, seed: int, sentences: int = 40) -> list[SummaryRow]:
    """Documents of made-up words whose summary is the sentences that begin with "notably", for smoke runs and tests.

    The same `count` and `seed` give the same rows on every machine.
    """
    draw = random.Random(seed)
    words = ["".join(draw.choice("bdfgklmnprst") + draw.choice("aeiou") for _ in range(2)) for _ in range(80)]
    rows = []
    for index in range(count):
        pieces = [" ".join(draw.choices(words, k=draw.randint(6, 12))) + "." for _ in range(sentences + index % 7)]
        for place in sorted(draw.sample(range(len(pieces)), k=3)):
            pieces[place] = f"notably {pieces[place]}"
        summary = "\n".join(piece for piece in pieces if piece.startswith("notably"))
        rows.append(SummaryRow(id=f"synthetic-{seed}-{index}", pieces=tuple(pieces), references=(summary,)))
    return rows


def texts_of(rows: Sequence[SummaryRow]) -> Iterator[str]:
    """Every document and reference summary, for training a tokenizer."""
    for row in rows:
        yield row.source
        yield from row.references


class FeatureRows(Dataset[dict[str, Any]]):
    """Features of rows, made when they are asked for: a large corpus never lies tokenised in memory.

    Access by index is what makes resuming exact: a sampler can skip what was seen without computing it.
    """

    def __init__(self, rows: Sequence[SummaryRow], features: Callable[[SummaryRow], dict[str, Any]]) -> None:
        self.rows = rows
        self.features = features

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The features of one row."""
        return self.features(self.rows[index])
