"""What a run reports of its speed: tokens per second, share of the device's peak (MFU), memory, and the share of time
that it waits for data.

Only steps are measured: from the first batch that an update asks for to the end of the update, without evaluations and
checkpoints.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from longspan.errors import InputError
from longspan.hardware import DEVICES
from longspan.models.losses import IGNORED
from longspan.models.work import Choice, training_flops
from longspan.training.processes import STAND_IN, largest

ROWS = "rows"
"""The key of a batch with the tokens of its rows, see `tokens_of_rows`."""
GIB = 2**30

RowFlops = Callable[[int, int], float]


class Meter(TrainerCallback):
    """Counts and times the steps since the last log.

    Args:
        flops: returns the model FLOPs of a row, forward and backward, from its tokens and target tokens; `None` if they
            are not counted.
        peak: peak FLOP/s of the device of one process; `None` if it is not known.
        clock: returns seconds.
    """

    def __init__(
        self,
        flops: RowFlops | None = None,
        peak: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.flops = flops if peak is not None else None
        self.peak = peak
        self.clock = clock
        self.begun = 0.0
        self._reset()

    def _reset(self) -> None:
        self.seconds = self.waited = self.tokens = self.work = 0.0
        self.in_rows = [0.0] * 4
        """Rows, documents, tokens and places of packed rows."""

    def begin(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Begins a step; returns its batches, and counts the time until each is there as waiting."""
        self.begun = self.clock()
        while True:
            asked = self.clock()
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self.waited += self.clock() - asked
            yield batch

    def counts(self, batches: Sequence[Mapping[str, Any]]) -> tuple[int, float]:
        """Returns the real tokens of batches, and the model FLOPs of a step with them."""
        rows = [row for batch in batches if STAND_IN not in batch for row in batch[ROWS]]
        flops = sum(self.flops(*row) for row in rows) if self.flops is not None else 0.0
        return sum(tokens for tokens, _ in rows), flops

    def packed(self, batches: Sequence[Mapping[str, Any]]) -> list[float]:
        """Returns the numbers of packed rows, of documents and tokens in them, and of their places."""
        packed = [batch for batch in batches if STAND_IN not in batch and "seq_idx" in batch]
        tokens = [tokens for batch in packed for tokens, _ in batch[ROWS]]
        rows = [batch["seq_idx"].shape[0] for batch in packed]
        return [sum(rows), len(tokens), sum(tokens), sum(batch["seq_idx"].numel() for batch in packed)]

    def add(self, tokens: float, flops: float, packed: Sequence[float] = (0, 0, 0, 0)) -> None:
        """Adds the tokens and model FLOPs of a step, and the numbers of its packed rows, of all processes."""
        self.tokens += tokens
        self.work += flops
        self.in_rows = [before + now for before, now in zip(self.in_rows, packed, strict=True)]

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer after every update of the weights."""
        self.seconds += self.clock() - self.begun

    def report(self, args: Any) -> dict[str, float]:
        """Returns the numbers to log, and begins again; every process must call it.

        `tokens_per_second` counts the real tokens of all processes. `mfu` is the model FLOPs utilisation (Chowdhery et
        al. 2022, PaLM, arXiv 2204.02311, appendix B): the FLOPs of the forward and backward passes of these tokens,
        without recomputed activations, divided by the peak of all devices in the same time; it is left out if the peak
        or the FLOPs are not known. `memory_gib` is the peak memory of a process so far in GiB, and `data_wait` the
        share of the time spent waiting for data, both of the process with most. If rows were packed with documents that
        do not attend to each other, `documents_per_row` is their mean number, and `filled` the share of the places of
        these rows that have a token.
        """
        wait = self.waited / self.seconds if self.seconds else 0.0
        memory, wait = largest([peak_memory(args.device) / GIB, wait], args)
        numbers = {"memory_gib": memory, "data_wait": wait}
        if self.seconds:
            numbers["tokens_per_second"] = self.tokens / self.seconds
            if self.flops is not None and self.peak is not None:
                numbers["mfu"] = self.work / (self.seconds * self.peak * args.world_size)
        rows, documents, tokens, places = self.in_rows
        if places:
            numbers |= {"documents_per_row": documents / rows, "filled": tokens / places}
        self._reset()
        return numbers


def with_rows(collator: Callable[[Any], Mapping[str, Any]], features: Any) -> dict[str, Any]:
    """Returns a collator's batch with the tokens of its rows, counted before it is on a device."""
    batch = collator(features)
    return {**batch, ROWS: tokens_of_rows(batch)}


def tokens_of_rows(batch: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """Returns the real tokens of each row of a batch, or of each packed document, and its labels, which are the target
    tokens of an encoder-decoder; padding does not count.
    """
    if "input_ids" not in batch:
        return ()
    ids = batch["input_ids"].flatten(0, -2)
    mask, labels, documents = (batch.get(name) for name in ("attention_mask", "labels", "seq_idx"))
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool().flatten(0, -2)
    if documents is not None:
        packed = [
            row[kept & (row >= 0)].unique(return_counts=True)[1] for row, kept in zip(documents, real, strict=True)
        ]
        return tuple((tokens, 0) for counts in packed for tokens in counts.tolist())
    targets = [0] * len(ids)
    if isinstance(labels, Tensor) and labels.dim() == 2 and len(labels) == len(ids):
        targets = (labels != IGNORED).sum(1).tolist()
    return tuple(zip(real.sum(1).tolist(), targets, strict=True))


def row_flops(model: Any) -> RowFlops | None:
    """Returns a function of the tokens and target tokens of a row to the model FLOPs of training with it, by the cost
    model of `longspan plan`; `None` for a stack that is not counted block by block.
    """
    config = copy(model.config)
    config.architectures = [type(model).__name__]  # set when a model is saved

    @cache
    def flops(tokens: int, targets: int) -> float:
        if not tokens:
            return 0.0
        return training_flops(config, Choice(tokens=tokens, train=True, output_tokens=max(targets, 1)))

    try:
        flops(1, 1)
    except InputError:
        return None
    return flops


def peak_flops(args: Any, name: str | None = None) -> float | None:
    """Returns the peak FLOP/s of the device in the precision of Trainer's arguments; `None` if it is not in the table
    of devices: of a processor, an unknown GPU, or float32 products as TF32.

    `name` is the name of the GPU as PyTorch reports it; by default that of the current one.
    """
    if name is None and args.device.type == "cuda":
        name = torch.cuda.get_device_name(args.device)
    device = next((device for device in DEVICES.values() if name in device.reported), None)
    precision = "bfloat16" if args.bf16 else "float16" if args.fp16 else "float32"
    if device is None or (precision == "float32" and (args.tf32 or args.torch_compile)):
        return None
    return device.flops[precision]


def peak_memory(device: torch.device) -> int:
    """Returns the peak memory of this process so far in bytes: what PyTorch has allocated on a GPU, otherwise the
    resident memory; 0 where the system does not report it.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
