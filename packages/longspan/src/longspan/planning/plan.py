"""The plan: every choice with its memory and time, and advice if it does not fit.

The time of a multiply-add depends on the machine, the precision and the mechanism, not on the configuration alone. So
one block of each mechanism is run on at most `SAMPLE` tokens, and its time is scaled by the multiply-adds of `costs`.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from longspan.attention import MECHANISMS, Tokens
from longspan.characters import counted
from longspan.hardware import Device
from longspan.models.work import (
    Choice,
    block_work,
    layers_of_model,
    stack_cost,
    states_of,
    work_beside_blocks,
    works_of_blocks,
)
from longspan.planning.launches import Run, attention_seconds, rest_of_block_seconds
from longspan.planning.memory import (
    Memory,
    Weights,
    choice_of_process,
    largest_batch,
    longest_row,
    memory_of,
    other_choices,
    weights_of,
)
from longspan.planning.prediction import BANDWIDTH_SHARE, FLOPS_SHARE
from longspan.planning.processes import check_processes, said_of
from longspan.planning.source import Planned, open_planned
from longspan.settings import entry
from longspan.stacks.block import Block

SAMPLE = 2048
"""Tokens of the measured text; long enough for attention to use tiles."""
UPDATE_SAMPLE = 1 << 20
"""Number of weights in the measured update."""


class Stopwatch:
    """Measurements on this machine: seconds per multiply-add of a block, and per weight of an update.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.rates: dict[tuple[Any, ...], float] = {}
        self.updates: dict[str, float] = {}

    def seconds(self, planned: Planned, choice: Choice, weights: Weights) -> float:
        """Returns the seconds of a step, or of a forward pass, on this machine.

        Raises:
            InputError: as `longspan.models.work.stack_cost`.
        """
        config, total, work = planned.config, 0.0, 0.0
        choice = choice_of_process(config, choice)
        for spec, length, block_total in works_of_blocks(config, choice):
            block_choice = replace(choice, tokens=max(length, 1))
            total += block_total * self.rate(config, spec, block_choice, train=choice.train)
            if choice.train and choice.checkpointing:
                total += block_total * self.rate(config, spec, block_choice, train=False)
            work += block_total
        total += total / max(work, 1.0) * work_beside_blocks(config, choice)
        return total + (choice.held(weights.total) * self.per_weight(planned.optimizer) if choice.train else 0.0)

    def rate(self, config: Any, spec: Any, choice: Choice, *, train: bool) -> float:
        """Returns the seconds per multiply-add of a block, measured once for each kind of block."""
        key = (spec, config.hidden_size, config.intermediate_size, choice.precision, train)
        if key not in self.rates:
            length = min(choice.tokens, SAMPLE, spec.reach().longest or SAMPLE)
            self.rates[key] = self._block(config, spec, choice, length, train) / block_work(config, spec, length)
        return self.rates[key]

    def _block(self, config: Any, spec: Any, choice: Choice, length: int, train: bool) -> float:
        """Returns the seconds of one block on a text; the minimum of two, after one to warm up."""
        block = block_of(config, spec, train)
        half = choice.precision == "bfloat16"
        if half and not train:
            block = block.bfloat16()
        hidden = torch.randn(1, length, config.hidden_size, dtype=torch.bfloat16 if half and not train else None)
        narrow = torch.autocast("cpu", dtype=torch.bfloat16) if half and train else nullcontext()
        best = float("inf")
        for _ in range(3):
            begin = self.clock()
            with torch.set_grad_enabled(train), narrow:
                out = block(hidden.requires_grad_(train), Tokens())
            if train:
                out.float().sum().backward()
            best = min(best, self.clock() - begin)
        return best

    def per_weight(self, name: str = "adamw") -> float:
        """Returns the seconds of an update per weight, the minimum of three, measured once for each optimizer; one that
        PyTorch lacks is timed as AdamW.
        """
        if name in self.updates:
            return self.updates[name]
        weight = torch.nn.Parameter(torch.randn(UPDATE_SAMPLE))
        weight.grad = torch.randn(UPDATE_SAMPLE)
        kinds = {"adagrad": torch.optim.Adagrad, "rmsprop": torch.optim.RMSprop, "sgd": torch.optim.SGD}
        optimizer = kinds.get(name, torch.optim.AdamW)([weight])
        times: list[float] = []
        for _ in range(3):
            begin = self.clock()
            optimizer.step()
            times.append(self.clock() - begin)
        self.updates[name] = min(times) / UPDATE_SAMPLE
        return self.updates[name]


def block_of(config: Any, spec: Any, train: bool) -> Block:
    """Returns a block of a model with initial weights."""
    return Block(
        spec.build(width=config.hidden_size, heads=config.num_attention_heads, causal=not spec.bidirectional),
        inner=config.intermediate_size,
        activation_function=config.activation_function,
        eps=config.layer_norm_eps,
        dropout=config.dropout if train else 0.0,
        activation_dropout=0.0,
        pre=config.normalization == "pre",
    ).train(train)


class Forecast:
    """Predicted seconds on a device: those of blocks from a table of counts, everything else is counted here.

    Args:
        device: its published specifications.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.uncounted: dict[str, None] = {}
        """Mechanisms without a row in the table."""

    def seconds(self, planned: Planned, choice: Choice, weights: Weights) -> float | None:
        """Returns the seconds of a step, or of a forward pass; None if a mechanism has no row in the table.

        Raises:
            InputError: as `longspan.models.work.stack_cost`.
        """
        config, device = planned.config, self.device
        choice = choice_of_process(config, choice)
        cost, total = stack_cost(config, choice.tokens), 0.0
        passes = [choice.train, *([False] if choice.train and choice.checkpointing else [])]
        for (spec, length), layers in Counter([*layers_of_model(config, choice.tokens), *cost.layers]).items():
            for train in passes:
                block = self.block(config, spec, replace(choice, tokens=max(length, 1)), train)
                if block is None:
                    return None
                total += layers * block
        work = work_beside_blocks(config, choice)
        total += 2 * (3 if choice.train else 1) * work / (FLOPS_SHARE * device.flops[choice.precision])
        # AdamW reads a weight, its gradient and states in float32, and writes all but the gradient.
        moved = 4 * (3 + 2 * states_of(planned.optimizer)) * choice.held(weights.total) if choice.train else 0
        return total + moved / (BANDWIDTH_SHARE * device.bandwidth)

    def block(self, config: Any, spec: Any, choice: Choice, train: bool) -> float | None:
        """Returns the seconds of one block; None if its mechanism has no row in the table."""
        run: Run = "training float32" if train else "forward float32"
        if choice.precision == "bfloat16":
            run = "training autocast" if train else "forward autocast" if choice.train else "forward bfloat16"
        sizes = {"tokens": choice.tokens, "width": config.hidden_size, "batch": choice.batch}
        seconds = attention_seconds(spec, self.device, run, heads=config.num_attention_heads, **sizes)
        if seconds is None:
            self.uncounted[spec.mechanism] = None
            return None
        dropout = train and config.dropout > 0
        return seconds + rest_of_block_seconds(
            self.device, run, inner=config.intermediate_size, dropout=dropout, **sizes
        )

    def notes(self) -> list[str]:
        """Returns notes on the meaning of the seconds."""
        notes = [
            f"Seconds are predicted of one {self.device.name}, from launches, bytes and FLOPs; nothing was run on it."
        ]
        notes += [
            f"None are predicted of attention {name!r}, whose launches nobody has counted: `python "
            f"tools/count_launches.py {name}`, in a checkout of longspan, writes a table beside its module."
            for name in self.uncounted
        ]
        return notes


GIB = 2**30
CONTROL_GROUPS = tuple(Path("/sys/fs/cgroup", name) for name in ("memory.max", "memory/memory.limit_in_bytes"))
"""Files with the memory limit of a Linux control group."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One choice.

    Attributes:
        name: its description.
        choice: precision and checkpointing.
        memory: memory of a step, or a forward pass.
        seconds: measured on this machine, or predicted for a device; None if neither.
        planned: the model with this mechanism.
        weights: its numbers of weights.
    """

    name: str
    choice: Choice
    memory: Memory
    seconds: float | None
    planned: Planned
    weights: Weights


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All choices, the requested one first.

    Attributes:
        rows: the choices.
        room: bytes of the device, or None.
        advice: sentences of advice.
    """

    rows: tuple[Row, ...]
    room: int | None
    advice: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data; sizes are in bytes."""
        rows = [
            {
                "name": row.name,
                **asdict(row.choice),
                **asdict(row.memory),
                "peak": row.memory.peak,
                "seconds": row.seconds,
            }
            for row in self.rows
        ]
        return {"device_memory": self.room, "choices": rows, "advice": list(self.advice)}


def make_plan(
    source: str | Planned,
    choice: Choice,
    *,
    room: int | None = None,
    mechanisms: Sequence[str] = (),
    timed: bool = True,
    device: Device | None = None,
) -> Plan:
    """Computes every choice for a model.

    Args:
        source: as in `open_planned`, or its result.
        choice: tokens, batch and whether to train; precision and checkpointing vary.
        room: bytes of the device.
        mechanisms: names of other mechanisms to compare with the model's.
        timed: include seconds, from blocks measured on this machine.
        device: predict seconds for this device instead; its memory is the default of `room`.

    Raises:
        InputError: as `open_planned`; an unknown mechanism, or one that the model does not support.
    """
    for name in mechanisms:
        entry(MECHANISMS, name, "--mechanism")
    source_model = source if isinstance(source, Planned) else open_planned(source, choice.tokens)
    check_processes(source_model, choice)
    watch = None if not timed else Stopwatch() if device is None else Forecast(device)
    room = device.memory if room is None and device is not None else room
    rows: list[Row] = []
    for label, planned in [("", source_model), *((name, source_model.with_attention(name)) for name in mechanisms)]:
        weights = weights_of(planned)
        for choice_of_row in other_choices(choice):
            rows.append(
                Row(
                    name=f"{label}, {choice_of_row.words}".removeprefix(", "),
                    choice=choice_of_row,
                    memory=memory_of(planned, choice_of_row, weights),
                    seconds=None if watch is None else watch.seconds(planned, choice_of_row, weights),
                    planned=planned,
                    weights=weights,
                )
            )
    advice = _advice(rows, room)
    if choice.processes > 1:
        advice.append(said_of(rows[0].planned, rows[0].choice, rows[0].weights))
    if isinstance(watch, Forecast):
        advice += watch.notes()
    return Plan(rows=tuple(rows), room=room, advice=tuple(advice))


def what_fits(planned: Planned, batch: int, *, train: bool, room: int | None = None) -> str:
    """Returns the advice of a plan after running out of memory, in one line.

    Args:
        planned: the model, with the tokens of a row.
        batch: the batch size that did not fit.
        train: whether it was a training step instead of a forward pass.
        room: bytes; None uses those of the current GPU, or the memory limit of this process.
    """
    if room is None and torch.cuda.is_available():
        room = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    elif room is None:
        room = memory_here()
    plan = make_plan(planned, Choice(tokens=planned.tokens, batch=batch, train=train), room=room, timed=False)
    advice = " ".join(plan.advice).rstrip(".")
    return f"by `longspan plan`, {advice} (rows of {counted(planned.tokens, 'token')})." if advice else ""


def memory_here() -> int | None:
    """Returns the memory limit of this process in bytes: of the machine, of its control group, and of `ulimit`; None if
    unknown.

    Control groups are those of Linux, version 2 or 1, as visible in a container.
    """
    limits: list[int] = []
    with suppress(AttributeError, ValueError, OSError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(ImportError):
        import resource

        for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
            soft, _ = resource.getrlimit(kind)
            limits += [soft] if soft != resource.RLIM_INFINITY else []
    for file in CONTROL_GROUPS:
        with suppress(OSError, ValueError):  # "max" is not a number
            limits.append(int(file.read_text(encoding="utf-8")))
    return min(limits, default=None)


def _advice(rows: Sequence[Row], room: int | None) -> list[str]:
    """Returns what fits, and what to change."""
    if room is None:
        return []
    first, has = rows[0], f"{room / GIB:.3g} GiB"
    if first.memory.peak <= room:
        most = largest_batch(first.planned, first.choice, room, first.weights)
        return [f"{first.name} fits into {has}, up to a batch of {most:,}."]
    problem = f"{first.name} needs {first.memory.peak / GIB:.3g} GiB of {has}."
    fitting = [row for row in rows if row.memory.peak <= room]
    if fitting:
        return [problem, f"What fits: {'; '.join(row.name for row in fitting)}."]
    return [problem, _smaller(rows, room)]


def _smaller(rows: Sequence[Row], room: int) -> str:
    """Returns advice on a smaller batch, or shorter rows, for the choice with the smallest memory."""
    least = min(rows, key=lambda row: row.memory.peak)
    most = largest_batch(least.planned, least.choice, room, least.weights)
    if most:
        rest = ", and accumulate the rest of the batch" if least.choice.train else ""
        return f"With {least.name}, a batch of {most:,} fits{rest}."
    longest = longest_row(least.planned, least.choice, room, least.weights)
    if longest:
        return f"With {least.name} and a batch of 1, rows of at most {counted(longest, 'token')} fit."
    whose, other = ("the weights and their states", ", or LoRA") if least.choice.train else ("the weights", "")
    return f"Not even one token fits: {whose} alone are too much; take a smaller model{other}."
