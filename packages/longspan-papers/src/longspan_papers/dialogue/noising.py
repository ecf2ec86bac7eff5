"""Window-based denoising: selects a window of turns, disturbs it, and returns the original as target."""

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
    """The changes that were made, in this order.

    Attributes:
        window: first turn of the window, and the turn after its last.
        masked: the window's turns, from 0, whose speakers are masked.
        split: the turn of the window that was split, and the number of parts.
        merged: the first merged turn, and the number of merged turns.
        hidden: the hidden spans of words, by the window's turns after splitting or merging.
        order: permutation of these turns.
        turns: the disturbed window.
        origins: for each of its turns, the range of turns of the dialogue it comes from, end exclusive.
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
        """Returns the disturbed window between its markers, one line per turn."""
        lines = [turn.line for turn in self.turns]
        if config.markers:
            lines[0] = f"{config.start} {lines[0]}"
            lines[-1] = f"{lines[-1]} {config.end}"
        return lines


class Noised(NamedTuple):
    """A dialogue before and after noise: source and target of pre-training."""

    source: str
    """The whole dialogue with its window disturbed, one line per turn."""
    target: str
    """The original window."""
    trace: Trace


def words_of_line(line: str) -> int:
    """Returns the length of a turn in words, speaker included."""
    return len(line.split())


def noise(
    turns: Sequence[Turn],
    rng: Random,
    config: NoiseConfig | None = None,
    *,
    count: Callable[[str], int] = words_of_line,
) -> Noised:
    """Disturbs a window of a dialogue; the same generator state gives the same noise.

    Args:
        turns: the dialogue; turns without words are kept unchanged.
        rng: the random generator.
        config: amount of each noise; None is the paper's.
        count: the length function of a line, such as its number of tokens.

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
    """Returns the first turn of a window, and the turn after its last: as many as fit, and at least one.

    The first turn is drawn among the turns that fit and are followed by enough turns to fill the window; if there are
    none, among those that fit; if every turn is too long, among all.
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
    """Applies the noises in order to the turns of a window that begins with turn `first` of its dialogue."""
    origins = [(first + index, first + index + 1) for index in range(len(window))]
    turns, masked = mask_speakers(window, rng, config)
    chance, split, merged = rng.random(), None, None
    # A window of one turn cannot be merged, so it is split with the probability of either.
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
