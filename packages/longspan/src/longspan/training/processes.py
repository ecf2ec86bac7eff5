"""Several processes, started by torchrun, train together.

The first of them writes files that all read, while the others wait. At the end of an epoch, accelerate would complete
the batches with rows from its beginning, which would count twice. Here every process gets equally many batches, as the
gradient exchange requires; missing ones are stand-ins, which are marked and count for nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.imports import require
from longspan.models.losses import IGNORED

WAIT = timedelta(hours=12)
"""How long processes wait for the first one, which may have a large corpus to tokenise; not for one that has died."""
SHARDING = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "another parallelism",
}
"""Environment variables of `accelerate launch` that request sharded weights."""
BOTH = "cuda:nccl,cpu:gloo"
"""Backends of tensor exchange if some tensors are on GPUs and others in CPU memory."""
STAND_IN = "stand_in"
"""The key of a batch that counts for nothing."""


def check_sharding() -> None:
    """Raises `InputError` if `accelerate launch` requests sharded weights, which recipes configure: so it is the same
    with and without a GPU.
    """
    for name, what in SHARDING.items():
        if os.environ.get(name, "").lower() in {"1", "true", "yes", "on"}:
            raise InputError(
                f"{name}={os.environ[name]} asks for {what}, and recipes divide weights between processes "
                "themselves; leave it out of accelerate's configuration, and set optimisation.parallel.shard=true"
            )


def is_main_process() -> bool:
    """Whether this is the only process, or the first of several started by torchrun."""
    return int(os.environ.get("RANK", "0")) == 0


def process_count() -> int:
    """Returns how many processes torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_process_count() -> int:
    """Returns how many of them run on this machine; all if the launcher does not set it."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", process_count()))


@contextmanager
def on_main_process_first() -> Iterator[None]:
    """Runs the block in the first process, then in the others, which use its files.

    If the first one fails, the others do not wait for it: its end closes their connection (`RuntimeError`), and
    `longspan.training.lifelines` ends them.
    """
    state = processes()
    if not state.is_main_process:
        state.wait_for_everyone()
    yield
    if state.is_main_process:
        state.wait_for_everyone()


def processes(*, offloads: bool = False) -> Any:
    """Returns accelerate's state of the processes that torchrun started, initialised on the first call; `offloads`
    allows processes with GPUs to exchange tensors in CPU memory too.

    Without an accelerator the process group uses CPUs, which accelerate must be configured for: otherwise each process
    would train alone.
    """
    accelerate = require("accelerate", extra="train", purpose="training")
    if process_count() == 1:
        return accelerate.PartialState()
    on_cpu = not torch.accelerator.is_available() or os.environ.get("ACCELERATE_USE_CPU", "").lower() in {"true", "1"}
    backend = {"backend": BOTH} if offloads and torch.cuda.is_available() and not on_cpu else {}
    return accelerate.PartialState(cpu=on_cpu, timeout=WAIT, **backend)


def mean_over(value: float, group: Any, device: torch.device) -> float:
    """Returns the mean of a number over a group of processes; `None` is this process alone."""
    if group is None:
        return value
    total = torch.tensor(value, dtype=torch.float32, device=device)
    torch.distributed.all_reduce(total, group=group)
    return float(total) / torch.distributed.get_world_size(group)


def largest(values: Sequence[float], args: Any) -> list[float]:
    """Returns the maximum of each number over all processes; `args` are Trainer's."""
    if args.world_size == 1:
        return list(values)
    everywhere = torch.tensor(values, dtype=torch.float32, device=args.device)
    torch.distributed.all_reduce(everywhere, torch.distributed.ReduceOp.MAX)
    return everywhere.tolist()


class EvenBatches:
    """The batches of an epoch, followed by empty ones until each of `processes` has equally many."""

    def __init__(self, batches: Any, processes: int) -> None:
        self.batches = batches
        self.processes = processes
        self.drop_last = batches.drop_last

    @property
    def sampler(self) -> Any:
        """The sampler on which accelerate sets the epoch."""
        return self.batches.sampler

    def __len__(self) -> int:
        """Returns the number of batches, including empty ones."""
        return -(-len(self.batches) // self.processes) * self.processes

    def __iter__(self) -> Iterator[list[int]]:
        """Yields lists of indices."""
        yield from self.batches
        for _ in range(len(self) - len(self.batches)):
            yield []


class StandIns:
    """A collator that replaces an empty batch by a stand-in: the first row, without labels and marked."""

    def __init__(self, collator: Callable[[list[Any]], dict[str, Any]], dataset: Any) -> None:
        self.collator = collator
        self.dataset = dataset

    def __call__(self, examples: list[Any]) -> dict[str, Any]:
        if examples:
            return self.collator(examples)
        batch = dict(self.collator([self.dataset[0]]))
        if isinstance(batch.get("labels"), Tensor):
            batch["labels"].fill_(IGNORED)
        return {**batch, STAND_IN: True}


def even_batches(loader: Any, processes: int, group: Any = None) -> Any:
    """Changes a loader that accelerate has split between processes to use `EvenBatches` for them, or for each group of
    processes with the same rows, of which this process's is passed.
    """
    if processes > 1:
        from accelerate.data_loader import BatchSamplerShard

        shard: Any = loader.batch_sampler
        assert isinstance(shard, BatchSamplerShard)
        together = 1 if group is None else torch.distributed.get_world_size(group)
        groups = processes // together
        shard.num_processes, shard.process_index = groups, shard.process_index // together
        shard.batch_sampler = EvenBatches(shard.batch_sampler, groups)  # pyright: ignore[reportAttributeAccessIssue]
        shard.batch_size, shard.even_batches = None, False
    return loader
