"""Weighted sources: each next row of a mixture comes from a source drawn with a probability, as in
`datasets.interleave_datasets(probabilities=…)`.

Random numbers are the raw ones of a counter-based generator, which are the same in all releases of NumPy: so a seed
gives the same rows in the same order, also after an interruption.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from longspan.errors import InputError
from longspan.tasks.packing import Packing

AT_ONCE = 1 << 16
"""Draws computed at once."""
LONGEST = 1 << 28
"""Maximum number of rows of an epoch: each takes nine bytes."""


def uniform(*key: int) -> Iterator[np.ndarray]:
    """Yields arrays of random numbers from 0 to below 1, the same ones for the same key of at most four numbers."""
    generator = np.random.Philox(key=int.from_bytes(np.array([*key, 0, 0, 0, 0][:4], dtype="<u4").tobytes(), "little"))
    while True:
        yield (generator.random_raw(AT_ONCE) >> np.uint64(11)) * 2.0**-53


def permutation(length: int, *key: int) -> np.ndarray:
    """Returns the numbers below `length` in a random order, int64; the same one for the same key."""
    numbers = uniform(*key)
    blocks = [next(numbers) for _ in range(-(-length // AT_ONCE))]
    return np.argsort(np.concatenate([np.empty(0), *blocks])[:length], kind="stable")


def draws(weights: Sequence[float], *key: int) -> Iterator[np.ndarray]:
    """Yields arrays of source numbers, each drawn with a probability proportional to its weight."""
    ends = np.cumsum(np.asarray(weights, dtype=np.float64) / np.sum(weights))
    for numbers in uniform(*key):
        yield np.minimum(np.searchsorted(ends, numbers, side="right"), len(ends) - 1)


def epoch_of(lengths: Sequence[int], drawn: Iterator[np.ndarray], *, stopping_strategy: str) -> np.ndarray:
    """Returns the source of each row of an epoch, `(rows,)` int64.

    Args:
        lengths: the number of rows of each source.
        drawn: arrays of source numbers, as from `draws`.
        stopping_strategy: "first_exhausted" ends after the last row of the source that is exhausted first,
            "all_exhausted" of the one that is exhausted last.

    Raises:
        InputError: the epoch would have more than `LONGEST` rows.
    """
    blocks: list[np.ndarray] = []
    counts, size, ends = np.zeros(len(lengths), dtype=np.int64), 0, np.full(len(lengths), -1)
    combine = min if stopping_strategy == "first_exhausted" else max
    while (ends < 0).all() if combine is min else (ends < 0).any():
        block = next(drawn)
        for source in np.flatnonzero(ends < 0).tolist():
            places = np.flatnonzero(block == source)
            left = lengths[source] - counts[source]
            if len(places) >= left:
                ends[source] = size + places[left - 1] + 1
            counts[source] += len(places)
        blocks.append(block)
        size += len(block)
        if size > LONGEST:
            raise InputError(
                f"data.train: with these weights an epoch has more than {LONGEST:,} rows until every row was drawn; "
                "raise the smallest weight, or set data.stopping_strategy=first_exhausted or data.streaming=true"
            )
    return np.concatenate(blocks)[: combine(end for end in ends.tolist() if end >= 0)]


class Mixed(Dataset[dict[str, Any]]):
    """The rows of several map-style data sets in the random order of an epoch.

    The source of the n-th row is the same in every epoch, so that all epochs are equally long; the order of the rows
    within a source is another one in every epoch, and whenever an exhausted source starts again.

    Args:
        parts: data sets, each with at least one row; those with `set_epoch` get it.
        weights: one positive number for each.
        stopping_strategy: see `epoch_of`.
        seed: of all draws.
    """

    is_shuffled = True
    """In a random order already, which a sampler keeps."""

    def __init__(self, parts: Sequence[Any], weights: Sequence[float], *, stopping_strategy: str, seed: int) -> None:
        self.parts, self.seed = list(parts), seed
        self.lengths = np.array([len(part) for part in self.parts])
        drawn = draws(weights, seed, 0)
        self.source = epoch_of(self.lengths.tolist(), drawn, stopping_strategy=stopping_strategy)
        self.source = self.source.astype(np.min_scalar_type(len(self.parts)))
        self.number = np.empty(len(self.source), dtype=np.int64)
        """The position of each row among the rows that are drawn from its source."""
        for part in range(len(self.parts)):
            chosen = self.source == part
            self.number[chosen] = np.arange(chosen.sum())
        self.epoch = 0
        self._orders: dict[int, tuple[int, np.ndarray]] = {}

    def __len__(self) -> int:
        """Returns the number of rows of an epoch."""
        return len(self.source)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, which determines the order of the rows within each source."""
        self.epoch = epoch
        self._orders.clear()
        for part in self.parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)

    def place(self, index: int) -> tuple[int, int]:
        """Returns the number of the source of a row, and its index there."""
        source, number = int(self.source[index]), int(self.number[index])
        again, index = divmod(number, int(self.lengths[source]))
        if self._orders.get(source, (-1, None))[0] != again:
            order = permutation(int(self.lengths[source]), self.seed, self.epoch, source + 1, again)
            self._orders[source] = again, order
        return source, int(self._orders[source][1][index])

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns the features of a row."""
        source, place = self.place(index)
        return self.parts[source][place]

    def __getstate__(self) -> dict[str, Any]:
        """Excludes the orders, which are computed again."""
        return {**self.__dict__, "_orders": {}}

    def counts(self) -> list[int]:
        """Returns the number of rows of each source in an epoch."""
        return np.bincount(self.source, minlength=len(self.parts)).tolist()

    def packing(self) -> Packing | None:
        """Returns how documents fill the rows of an epoch, on average; None if the sources have no packed rows."""
        parts = [part.packing() if hasattr(part, "packing") else None for part in self.parts]
        drawn = [part.of(count) for part, count in zip(parts, self.counts(), strict=True) if part is not None]
        return reduce(add, drawn) if drawn else None
