"""The plan itself: every choice with its memory and time, and what to change where it does not fit.

What a multiply-add costs depends on the machine, the precision and the mechanism, and nothing in a configuration tells
it. So one block of each mechanism is run on at most `SAMPLE` tokens, and its time grows with the multiply-adds that
`costs` counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from longspan.attention import MECHANISMS, Tokens
from longspan.characters import counted
from longspan.planning.devices import Device
from longspan.planning.memory import (
    Choice,
    Memory,
    Weights,
    choice_of_process,
    largest_batch,
    layers_of_model,
    longest_row,
    memory_of,
    other_choices,
    outputs_of,
    stack_cost,
    weights_of,
)
from longspan.planning.prediction import BANDWIDTH_SHARE, FLOPS_SHARE
from longspan.planning.processes import check_processes, said_of
from longspan.planning.source import Planned, open_planned
from longspan.planning.tracing import UnknownNumbers, module_launches
from longspan.settings import entry
from longspan.stacks.block import Block
from longspan.training.optimisation import STATES

SAMPLE = 2048
"""Tokens of the measured text; where attention takes tiles, as on longer ones."""
UPDATE_SAMPLE = 1 << 20
"""Weights whose update is measured."""


class Stopwatch:
    """What was measured on this machine: seconds per multiply-add of a block, and per weight of an update.

    Args:
        clock: tells seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.rates: dict[tuple[Any, ...], float] = {}
        self.updates: dict[str, float] = {}

    def seconds(self, planned: Planned, choice: Choice, weights: Weights) -> float:
        """Seconds of a step, or of a forward pass, on this machine.

        Raises:
            InputError: as `longspan.planning.memory.besides_of`.
        """
        config, total, work = planned.config, 0.0, 0.0
        choice = choice_of_process(config, choice)
        cost = stack_cost(config, choice.tokens)
        for spec, length in [*layers_of_model(config, choice.tokens), *cost.layers]:
            each = choice.batch * block_work(config, spec, length, min(config.num_memory_tokens, length))
            one = replace(choice, tokens=max(length, 1))
            total += each * self.rate(config, spec, one, train=choice.train)
            if choice.train and choice.checkpointing:
                total += each * self.rate(config, spec, one, train=False)
            work += each
        rate = total / max(work, 1.0)
        total += rate * (work_beside_blocks(config, choice) + choice.batch * cost.readers * cost.multiply_adds)
        return total + (choice.held(weights.total) * self.per_weight(planned.optimizer) if choice.train else 0.0)

    def rate(self, config: Any, spec: Any, choice: Choice, *, train: bool) -> float:
        """Seconds per multiply-add of a block, measured once for each kind of block."""
        key = (spec, config.hidden_size, config.intermediate_size, choice.precision, train)
        if key not in self.rates:
            length = min(choice.tokens, SAMPLE, spec.reach().longest or SAMPLE)
            self.rates[key] = self._block(config, spec, choice, length, train) / block_work(config, spec, length)
        return self.rates[key]

    def _block(self, config: Any, spec: Any, choice: Choice, length: int, train: bool) -> float:
        """Seconds of one block on a text; the better of two, after one to warm up."""
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
        """Seconds of an update per weight, the best of three, measured once for each optimizer."""
        if name in self.updates:
            return self.updates[name]
        weight = torch.nn.Parameter(torch.randn(UPDATE_SAMPLE))
        weight.grad = torch.randn(UPDATE_SAMPLE)
        optimizer = {"adamw": torch.optim.AdamW, "adagrad": torch.optim.Adagrad}[name]([weight])
        times: list[float] = []
        for _ in range(3):
            begin = self.clock()
            optimizer.step()
            times.append(self.clock() - begin)
        self.updates[name] = min(times) / UPDATE_SAMPLE
        return self.updates[name]


def block_of(config: Any, spec: Any, train: bool) -> Block:
    """A block of a model, with weights that it would start from."""
    return Block(
        spec.build(width=config.hidden_size, heads=config.num_attention_heads, causal=not spec.bidirectional),
        inner=config.intermediate_size,
        activation_function=config.activation_function,
        eps=config.layer_norm_eps,
        dropout=config.dropout if train else 0.0,
        activation_dropout=0.0,
        pre=config.normalization == "pre",
    ).train(train)


def block_work(config: Any, spec: Any, length: int, memory: int = 0) -> float:
    """Multiply-adds of a block on one row, forward, of whose tokens so many are a memory that sees and is seen."""
    cost = spec.costs(length=length, width=config.hidden_size, heads=config.num_attention_heads)
    work = float(cost.multiply_adds + 2 * config.hidden_size * config.intermediate_size * length)
    if memory:
        scores = spec.scores_per_token(length, global_tokens=memory) - spec.scores_per_token(length)
        work += 2 * config.hidden_size * scores * length
    return work


def work_beside_blocks(config: Any, choice: Choice) -> float:
    """Multiply-adds beside the encoder's blocks: a decoder, and the logits."""
    width, written = config.hidden_size, choice.batch * choice.output_tokens
    if not config.decoder_layers:
        return float(outputs_of(config, choice) * width * config.vocab_size)
    inner = config.decoder_intermediate_size or config.intermediate_size
    block = written * (6 * width**2 + 2 * width * inner) + choice.batch * choice.tokens * 2 * width**2
    block += 2 * width * choice.batch * choice.output_tokens * (choice.tokens + choice.output_tokens)
    return float(config.decoder_layers * block + written * width * config.vocab_size)


class Forecast:
    """Seconds that a device is predicted to take: every block is followed on one that is not there, what stands beside
    the blocks is counted.

    Args:
        device: by its published numbers.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.blocks: dict[tuple[Any, ...], float | None] = {}

    def seconds(self, planned: Planned, choice: Choice, weights: Weights) -> float | None:
        """Seconds of a step, or of a forward pass; None where what a block does depends on the numbers of a text.

        Raises:
            InputError: as `longspan.planning.memory.stack_cost`.
        """
        config, device = planned.config, self.device
        choice = choice_of_process(config, choice)
        cost, total = stack_cost(config, choice.tokens), 0.0
        passes = [choice.train, *([False] if choice.train and choice.checkpointing else [])]
        for spec, length in [*layers_of_model(config, choice.tokens), *cost.layers]:
            for train in passes:
                block = self.block(config, spec, replace(choice, tokens=max(length, 1)), train)
                if block is None:
                    return None
                total += block
        work = work_beside_blocks(config, choice) + choice.batch * cost.readers * cost.multiply_adds
        total += 2 * (3 if choice.train else 1) * work / (FLOPS_SHARE * device.flops[choice.precision])
        # AdamW reads a weight, its gradient and states in float32, and writes all but the gradient.
        moved = 4 * (3 + 2 * STATES[planned.optimizer]) * choice.held(weights.total) if choice.train else 0
        return total + moved / (BANDWIDTH_SHARE * device.bandwidth)

    def block(self, config: Any, spec: Any, choice: Choice, train: bool) -> float | None:
        """Seconds of one block, followed once for each kind."""
        key = (spec, config.hidden_size, config.intermediate_size, choice.precision, choice.tokens, choice.batch, train)
        if key not in self.blocks:
            half = choice.precision == "bfloat16"
            try:
                launches = module_launches(
                    block_of(config, spec, train),
                    tokens=choice.tokens,
                    width=config.hidden_size,
                    batch=choice.batch,
                    training=train,
                    dtype=torch.bfloat16 if half and not choice.train else torch.float32,
                    autocast=half and choice.train,
                )
                self.blocks[key] = launches.seconds(self.device)
            except UnknownNumbers:
                self.blocks[key] = None
        return self.blocks[key]

    def notes(self) -> list[str]:
        """What the seconds are, in sentences."""
        said = [
            f"Seconds are predicted of one {self.device.name}, from launches, bytes and FLOPs; nothing was run on it."
        ]
        if None in self.blocks.values():
            said.append("Where none stand, what a block does depends on the text, and sizes alone do not tell it.")
        return said


GIB = 2**30
CONTROL_GROUPS = tuple(Path("/sys/fs/cgroup", name) for name in ("memory.max", "memory/memory.limit_in_bytes"))
"""Where Linux says how much memory a control group may have."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One choice.

    Attributes:
        name: in words.
        choice: of precision and checkpointing.
        memory: of a step, or a forward pass.
        seconds: measured on this machine, or predicted of a device; None where neither was.
        planned: the model, with the mechanism that is chosen.
        weights: how many it has.
    """

    name: str
    choice: Choice
    memory: Memory
    seconds: float | None
    planned: Planned
    weights: Weights


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All choices, the one that was asked for first.

    Attributes:
        rows: the choices.
        room: bytes of the device, or None.
        advice: in sentences.
    """

    rows: tuple[Row, ...]
    room: int | None
    advice: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data; sizes in bytes."""
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
    """Count every choice for a model.

    Args:
        source: as in `open_planned`, or what it gave.
        choice: its tokens, batch and whether it trains; precision and checkpointing vary.
        room: bytes of the device.
        mechanisms: names of others to count in place of the model's.
        timed: tell seconds, of blocks that are measured here.
        device: predict seconds of this device instead, whose memory is the room where none is given.

    Raises:
        InputError: as `open_planned`; an unknown mechanism, or one that the model cannot have.
    """
    for name in mechanisms:
        entry(MECHANISMS, name, "--mechanism")
    own = source if isinstance(source, Planned) else open_planned(source, choice.tokens)
    check_processes(own, choice)
    watch = None if not timed else Stopwatch() if device is None else Forecast(device)
    room = device.memory if room is None and device is not None else room
    rows: list[Row] = []
    for label, planned in [("", own), *((name, own.with_attention(name)) for name in mechanisms)]:
        weights = weights_of(planned)
        for one in other_choices(choice):
            rows.append(
                Row(
                    name=f"{label}, {one.words}".removeprefix(", "),
                    choice=one,
                    memory=memory_of(planned, one, weights),
                    seconds=None if watch is None else watch.seconds(planned, one, weights),
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
    """What a plan says where memory ran out, in one line.

    Args:
        planned: the model, with the tokens of a row.
        batch: rows that were too many.
        train: a step of training was too much, instead of a forward pass.
        room: bytes; None takes the GPU that is here, or what this process may have of the machine's memory.
    """
    if room is None and torch.cuda.is_available():
        room = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    elif room is None:
        room = memory_here()
    plan = make_plan(planned, Choice(tokens=planned.tokens, batch=batch, train=train), room=room, timed=False)
    advice = " ".join(plan.advice).rstrip(".")
    return f"by `longspan plan`, {advice} (rows of {counted(planned.tokens, 'token')})." if advice else ""


def memory_here() -> int | None:
    """Bytes that this process may have: of the machine, of its control group, and by `ulimit`; None where nothing says.

    Control groups are those of Linux, version 2 or 1, as a container sees its own.
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
        with suppress(OSError, ValueError):  # "max" is no number
            limits.append(int(file.read_text(encoding="utf-8")))
    return min(limits, default=None)


def _advice(rows: Sequence[Row], room: int | None) -> list[str]:
    """What fits, and what to change."""
    if room is None:
        return []
    first, has = rows[0], f"{room / GIB:.3g} GiB"
    if first.memory.peak <= room:
        most = largest_batch(first.planned, first.choice, room, first.weights)
        return [f"{first.name} fits into {has}, up to a batch of {most:,}."]
    said = f"{first.name} needs {first.memory.peak / GIB:.3g} GiB of {has}."
    fitting = [row for row in rows if row.memory.peak <= room]
    if fitting:
        return [said, f"What fits: {'; '.join(row.name for row in fitting)}."]
    return [said, _smaller(rows, room)]


def _smaller(rows: Sequence[Row], room: int) -> str:
    """A smaller batch, or shorter rows, of the choice that needs least."""
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
