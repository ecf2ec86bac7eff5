"""The plan itself: every choice with its memory and time, and what to change where it does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from longspan.attention import MECHANISMS
from longspan.characters import counted
from longspan.planning.memory import (
    Choice,
    Memory,
    Weights,
    largest_batch,
    longest_row,
    memory_of,
    other_choices,
    weights_of,
)
from longspan.planning.seconds import Stopwatch
from longspan.planning.source import Planned, open_planned
from longspan.settings import entry

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
