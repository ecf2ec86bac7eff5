"""The plan itself: every choice with its memory and time, and what to change where it does not fit.

What a multiply-add costs depends on the machine, the precision and the mechanism, and nothing in a configuration tells
it. So one block of each mechanism is run on at most `SAMPLE` tokens, and its time grows with the multiply-adds that
`costs` counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from longspan.attention import MECHANISMS, Tokens
from longspan.characters import counted
from longspan.planning.memory import (
    Choice,
    Memory,
    Weights,
    largest_batch,
    layers_of_model,
    longest_row,
    memory_of,
    other_choices,
    outputs_of,
    stack_cost,
    weights_of,
)
from longspan.planning.source import Planned, open_planned
from longspan.settings import entry
from longspan.stacks.block import Block

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
        return total + (weights.total * self.per_weight(planned.optimizer) if choice.train else 0.0)

    def rate(self, config: Any, spec: Any, choice: Choice, *, train: bool) -> float:
        """Seconds per multiply-add of a block, measured once for each kind of block."""
        key = (spec, config.hidden_size, config.intermediate_size, choice.precision, train)
        if key not in self.rates:
            length = min(choice.tokens, SAMPLE, spec.reach().longest or SAMPLE)
            self.rates[key] = self._block(config, spec, choice, length, train) / block_work(config, spec, length)
        return self.rates[key]

    def _block(self, config: Any, spec: Any, choice: Choice, length: int, train: bool) -> float:
        """Seconds of one block on a text; the better of two, after one to warm up."""
        block = Block(
            spec.build(width=config.hidden_size, heads=config.num_attention_heads, causal=not spec.bidirectional),
            inner=config.intermediate_size,
            activation_function=config.activation_function,
            eps=config.layer_norm_eps,
            dropout=config.dropout if train else 0.0,
            activation_dropout=0.0,
            pre=config.normalization == "pre",
        ).train(train)
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


GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Row:
    """One choice.

    Attributes:
        name: in words.
        choice: of precision and checkpointing.
        memory: of a step, or a forward pass.
        seconds: on this machine; None where nothing was measured.
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
) -> Plan:
    """Count every choice for a model.

    Args:
        source: as in `open_planned`, or what it gave.
        choice: its tokens, batch and whether it trains; precision and checkpointing vary.
        room: bytes of the device.
        mechanisms: names of others to count in place of the model's.
        timed: measure blocks to tell seconds.

    Raises:
        InputError: as `open_planned`; an unknown mechanism, or one that the model cannot have.
    """
    for name in mechanisms:
        entry(MECHANISMS, name, "--mechanism")
    own = source if isinstance(source, Planned) else open_planned(source, choice.tokens)
    watch = Stopwatch() if timed else None
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
    return Plan(rows=tuple(rows), room=room, advice=tuple(_advice(rows, room)))


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
