"""Training rows that are read while the model trains: no pass over the data before the first step.

`Streamed` is map-style all the same: its n-th row is the n-th of an endless stream, whose order depends on a seed
alone. So Trainer divides rows between processes, skips the trained ones after a resumption and loads ahead by index, as
with any other data set; each process reads the whole stream, and computes the features of its own rows only. For a
corpus, whose chunks depend on the tokens before them, reading includes tokenising.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from torch.utils.data import Dataset, get_worker_info

from longspan.characters import counted
from longspan.errors import InputError
from longspan.tasks.base import RowStream
from longspan.training.mixing import draws, permutation, uniform
from longspan.training.processes import is_main_process

logger = logging.getLogger(__name__)

Row = TypeVar("Row")


def shuffled(rows: Iterator[Row], buffer: int, *key: int) -> Iterator[Row]:
    """Yields rows in a random order, with `buffer` of them in memory: each next one is drawn from these, and the next
    row of the stream takes its place, as in `datasets.IterableDataset.shuffle`. 0 or 1 keeps the order.
    """
    if buffer < 2:
        yield from rows
        return
    held: list[Row] = []
    places = (int(number * buffer) for block in uniform(*key) for number in block)
    for row in rows:
        if len(held) < buffer:
            held.append(row)
            continue
        place = next(places)
        drawn, held[place] = held[place], row
        yield drawn
    yield from (held[place] for place in permutation(len(held), *key[:3], 1))


class Streamed(Dataset[dict[str, Any]]):
    """The first `length` rows of an endless stream.

    A source that ends is read again, in another order, which is logged once.

    Args:
        streams: one stream, or those of weighted sources.
        names: of the sources, for messages, one for each stream.
        weights: of the streams; empty for a single one.
        length: number of rows.
        buffer: rows of each stream among which the next one is drawn, see `shuffled`.
        seed: of the order.

    Raises:
        InputError: when a row is read: a source has no rows; errors of its reader, with file and line.
    """

    is_shuffled = True
    """In a random order already, which a sampler keeps."""

    def __init__(
        self,
        streams: Sequence[RowStream],
        names: Sequence[str],
        weights: Sequence[float],
        *,
        length: int,
        buffer: int,
        seed: int,
    ) -> None:
        self.streams, self.names, self.weights = list(streams), list(names), list(weights)
        self.length, self.buffer, self.seed = length, buffer, seed
        self._open: tuple[int, int, Iterator[tuple[int, Any]]] | None = None
        """The process that reads, the number of the next row, and the rows from there on, each with its stream."""

    @property
    def identity(self) -> list[Any]:
        """Plain data that change with the contents of the sources, as far as these are known without reading them."""
        return [stream.identity for stream in self.streams]

    def __len__(self) -> int:
        """Returns the number of rows of the whole training."""
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns the features of a row; the rows between the last one and this one are read and passed over."""
        if not 0 <= index < self.length:
            raise IndexError(index)
        process, place, rows = self._open or (0, 0, iter(()))
        if process != os.getpid() or place > index:  # a forked process shares the position in open files
            place, rows = 0, self._rows()
        for _ in range(index - place):
            next(rows)
        stream, row = next(rows)
        self._open = os.getpid(), index + 1, rows
        return self.streams[stream].features(row, index)

    def __getstate__(self) -> dict[str, Any]:
        """Excludes open files."""
        return {**self.__dict__, "_open": None}

    def _rows(self) -> Iterator[tuple[int, Any]]:
        """Yields all rows, each with the number of its stream."""
        endless = [self._endless(number) for number in range(len(self.streams))]
        if not self.weights:
            yield from ((0, row) for row in endless[0])
        for block in draws(self.weights, self.seed, 0):
            yield from ((number, next(endless[number])) for number in block.tolist())

    def _endless(self, number: int) -> Iterator[Any]:
        """Yields the rows of one stream again and again, each time in another order."""
        done = 0
        while True:
            count = 0
            for row in shuffled(iter(self.streams[number].rows()), self.buffer, self.seed, done, number + 1):
                count += 1
                yield row
            if not count:
                raise InputError(f"data.train: {self.names[number]} gives no rows; name a source that has some")
            done += 1
            if done == 1 and is_main_process() and getattr(get_worker_info(), "id", 0) == 0:
                logger.warning(
                    "%s ends after %s and is read again, in another order", self.names[number], counted(count, "row")
                )


def streamed(task: Any, data: Any, tokenizer: Any, *, rows: int, seed: int) -> Streamed:
    """Returns the training rows of the section `data`, read while the model trains.

    Args:
        task: with `stream`.
        data: the section.
        tokenizer: of transformers.
        rows: number of rows of the whole training.
        seed: of order and features.
    """
    sources = data.sources("train")
    groups = [(source,) for source in sources] if data.weights else [sources]
    options = {"seed": seed, "on_error": data.on_error}
    streams = [task.stream(group, data.train_split, data.train_rows, tokenizer, **options) for group in groups]
    names = [", ".join(map(repr, group)) for group in groups]
    return Streamed(streams, names, data.weights, length=rows, buffer=data.shuffle_buffer, seed=seed)
