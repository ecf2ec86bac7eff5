"""Several processes train as one: where batches run out, a process computes on a stand-in that counts for nothing.

accelerate would fill the last batches of an epoch with rows from its beginning, which then count twice. Here every
process gets equally many batches, as the exchange of gradients needs, and those that are too few are marked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from accelerate.data_loader import BatchSamplerShard
from torch import Tensor

from longspan.models.losses import IGNORED

STAND_IN = "stand_in"
"""The key that marks a batch that counts for nothing."""


class WholeRounds:
    """The batches of an epoch, and after them empty ones until each of `processes` has equally many."""

    def __init__(self, batches: Any, processes: int) -> None:
        self.batches = batches
        self.processes = processes
        self.drop_last = batches.drop_last

    @property
    def sampler(self) -> Any:
        """Where accelerate sets the epoch."""
        return self.batches.sampler

    def __len__(self) -> int:
        """Batches, empty ones included."""
        return -(-len(self.batches) // self.processes) * self.processes

    def __iter__(self) -> Iterator[list[int]]:
        """Lists of indices."""
        yield from self.batches
        for _ in range(len(self) - len(self.batches)):
            yield []


class StandIns:
    """A collator that makes a stand-in of an empty batch: the first row, without labels and marked."""

    def __init__(self, collator: Callable[[list[Any]], dict[str, Any]], dataset: Any) -> None:
        self.collator = collator
        self.dataset = dataset

    def __call__(self, examples: list[Any]) -> dict[str, Any]:
        """The batch."""
        if examples:
            return self.collator(examples)
        batch = dict(self.collator([self.dataset[0]]))
        if isinstance(batch.get("labels"), Tensor):
            batch["labels"].fill_(IGNORED)
        return {**batch, STAND_IN: True}


def in_whole_rounds(loader: Any, processes: int) -> Any:
    """A loader that accelerate has split between processes, changed to give them `WholeRounds`."""
    if processes > 1:
        shard: Any = loader.batch_sampler
        assert isinstance(shard, BatchSamplerShard)
        shard.batch_sampler = WholeRounds(shard.batch_sampler, processes)  # pyright: ignore[reportAttributeAccessIssue]
        shard.batch_size, shard.even_batches = None, False
    return loader
