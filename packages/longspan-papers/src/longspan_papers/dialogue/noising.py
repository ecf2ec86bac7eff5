"""Window-based denoising: choose a window of turns, disturb it, and ask for it as it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import NamedTuple

from longspan.data.turns import Turn, text_of
from longspan.errors import InputError
from longspan_papers.dialogue.noises import (
    NoiseConfig,
    Spot,
    below,
    infill,
    mask_speakers,
    merge_turns,
    permute_turns,
    split_turn,
)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What was done, in this order.

    Attributes:
        window: the first turn of the window, and the one behind its last.
        masked: the window's turns, from 0, whose speakers are masked.
        split: which turn of the window was split, and into how many.
        merged: with which turn merging began, and how many were merged.
        hidden: the spans of words, by the window's turns after splitting or merging.
        order: which of these turns stands where.
        turns: the window as it is then.
        origins: for each of them, the turns of the dialogue that it is made of, first to behind the last.
    """

    window: tuple[int, int]
    masked: tuple[int, ...] = ()
    split: tuple[int, int] | None = None
    merged: tuple[int, int] | None = None
    hidden: tuple[Spot, ...] = ()
    order: tuple[int, ...] = ()
    turns: tuple[Turn, ...] = ()
    origins: tuple[tuple[int, int], ...] = ()

    def lines(self, config: NoiseConfig) -> list[str]:
        """The window as it is then, a line for each turn, between its marks."""
        lines = [turn.line for turn in self.turns]
        if config.markers:
            lines[0] = f"{config.start} {lines[0]}"
            lines[-1] = f"{lines[-1]} {config.end}"
        return lines


class Noised(NamedTuple):
    """A dialogue before and after noise, as a model of pre-training reads and writes it."""

    source: str
    """The whole dialogue with its window disturbed, a line for each turn."""
    target: str
    """The window as it was."""
    trace: Trace


def words_of_line(line: str) -> int:
    """The length of a turn in words, its speaker included."""
    return len(line.split())


def noise(
    turns: Sequence[Turn],
    rng: Random,
    config: NoiseConfig | None = None,
    *,
    count: Callable[[str], int] = words_of_line,
) -> Noised:
    """Disturb a window of a dialogue; the same generator in the same state gives the same noise.

    Args:
        turns: the dialogue; those without words are left as they are.
        rng: where chance comes from.
        config: how much noise of which kind; None is the paper's.
        count: the length of a line, such as its tokens.

    Raises:
        InputError: there are no turns.
    """
    config = config or NoiseConfig()
    first, end = choose_window(turns, rng, config, count)
    trace = disturb(turns[first:end], rng, config, first)
    lines = [turn.line for turn in turns]
    source = [*lines[:first], *trace.lines(config), *lines[end:]]
    return Noised("\n".join(source), text_of(turns[first:end]), trace)


def choose_window(
    turns: Sequence[Turn], rng: Random, config: NoiseConfig, count: Callable[[str], int] = words_of_line
) -> tuple[int, int]:
    """The first turn of a window, and the one behind its last: as many as fit, and at least one.

    It begins with any turn that fits and from which on enough follow to fill it; where there is none, with any that
    fits; and where every turn is longer than a window may be, it is any one of them.
    """
    if not turns:
        raise InputError("turns is empty, so there is no window to choose; give a dialogue with words")
    sizes = [count(turn.line) for turn in turns]
    rest = list(accumulate(reversed(sizes)))[::-1]
    limit = min(config.window_most, max(1, int(config.window_share * rest[0])))
    fitting = [index for index, size in enumerate(sizes) if size <= limit]
    full = [index for index in fitting if rest[index] >= limit]
    starts = full or fitting or range(len(turns))
    first = starts[below(rng, len(starts))]
    end, length = first + 1, sizes[first]
    while end < len(turns) and length + sizes[end] <= limit:
        length += sizes[end]
        end += 1
    return first, end


def disturb(window: Sequence[Turn], rng: Random, config: NoiseConfig, first: int = 0) -> Trace:
    """The noises, one after the other, on all turns of a window that begins with turn `first` of its dialogue."""
    origins = [(first + index, first + index + 1) for index in range(len(window))]
    turns, masked = mask_speakers(window, rng, config)
    chance, split, merged = rng.random(), None, None
    # A window of one turn cannot be merged, so it is split whichever of the two it would have been.
    splits = chance < (config.split if len(turns) > 1 or not config.split else config.split + config.merge)
    if splits:
        turns, split = split_turn(turns, rng, config)
    elif chance < config.split + config.merge:
        turns, merged = merge_turns(turns, rng, config)
    if split is not None:
        origins[split[0] : split[0] + 1] = origins[split[0] : split[0] + 1] * split[1]
    if merged is not None:
        start, number = merged
        origins[start : start + number] = [(origins[start][0], origins[start + number - 1][1])]
    turns, hidden = infill(turns, rng, config)
    order = tuple(range(len(turns)))
    if rng.random() < config.permute:
        turns, order = permute_turns(turns, rng, config)
    return Trace(
        window=(first, first + len(window)),
        masked=masked,
        split=split,
        merged=merged,
        hidden=hidden,
        order=order,
        turns=tuple(turns),
        origins=tuple(origins[index] for index in order),
    )
