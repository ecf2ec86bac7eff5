"""The five noises of DialogLM (Zhong et al. 2022, arXiv 2109.02492, §3.1), and their amounts.

`NoiseConfig` has the settings of the paper, or those of the script that its authors published. Each noise is a pure
function of turns, `(turns, rng, config) → (turns, record of changes)`, which draws only from `random()`, whose sequence
Python keeps stable across versions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Annotated, Any, Literal, Self

from longspan.data.text.sentences import split_sentences
from longspan.data.turns import Turn
from longspan.errors import InputError
from longspan.settings import Count, Form, Range, Share, check, show

Mark = Annotated[str, Form(r"\S+", "a token without white space", 100)]
Mean = Annotated[float, Range(0, 100)]
LEAST_MEAN = 0.1
"""Smallest mean length of spans drawn until a share of the words is hidden."""


@dataclass(frozen=True, kw_only=True)
class NoiseConfig:
    """Noise options of the window; the defaults are the paper's (Zhong et al. 2022, arXiv 2109.02492, §3.1).

    Lengths are counted in words, or in the unit of the `count` argument of `noise`.
    """

    window_share: Annotated[float, Range(above=0, maximum=1)] = 0.1
    """Length of the window, as a share of the dialogue's length."""
    window_most: Count = 512
    """Longest window; a single turn may be longer."""
    speaker_share: Share = 0.5
    """Share of the window's turns whose speaker is masked."""
    split: Share = 0.5
    """Probability that a turn is split into its sentences, all but the first under a masked speaker."""
    merge: Share = 0.5
    """Probability that turns are merged instead; a window of one turn is always split."""
    split_by: Literal["sentences", "words"] = "sentences"
    """Whether the turn with most sentences or most words is split."""
    merge_mean: Mean = 3.0
    """Mean of the Poisson distribution of the number of merged turns; at least 2."""
    infill_share: Share = 0.15
    """For "budget", the share of the window's words that is hidden; for "starts", the probability that a span
    begins."""
    infill_by: Literal["budget", "starts"] = "budget"
    """Whether spans are drawn until a budget is spent, or begin at any word with a fixed probability."""
    span_mean: Mean = 3.0
    """Mean of the Poisson distribution of a span's length; a span of no words only inserts a mask."""
    permute: Share = 1.0
    """Probability that the turns of the window are shuffled."""
    markers: bool = True
    """Whether the window is enclosed in markers."""
    mask: Mark = "[MASK]"
    """Replaces a span of words."""
    speaker_mask: Mark = "[MASK_SPEAKER]"
    """Replaces a speaker."""
    start: Mark = "[start]"
    """Inserted before the window."""
    end: Mark = "[end]"
    """Inserted after the window."""

    def __post_init__(self) -> None:
        """Raises `InputError` for values out of range."""
        check(self)
        if self.split + self.merge > 1 + 1e-9:
            raise InputError(
                f"split={self.split} and merge={self.merge} are more than 1 together, though only one of them happens; "
                "lower one"
            )
        if self.infill_by == "budget" and self.infill_share and self.span_mean < LEAST_MEAN:
            raise InputError(
                f"span_mean={self.span_mean} is below {LEAST_MEAN}: nearly all spans would hide no word, and infill_by="
                "'budget' would hardly ever reach its share; raise it, or choose infill_by='starts'"
            )

    @classmethod
    def published(cls, name: str = "paper", **changes: Any) -> Self:
        """Returns the settings called "paper" or "script", with changes.

        The script counts length in words, uses the ordinary mask for speakers, and hides a quarter of the words in
        spans.
        """
        if name not in SETTINGS:
            raise InputError(f"setting={show(name)} is unknown; choose one of {', '.join(SETTINGS)}")
        return cls(**{**SETTINGS[name], **changes})

    def without(self, *noises: str) -> dict[str, float]:
        """Returns the field values that switch off noises, for `dataclasses.replace`.

        Raises:
            InputError: a name is not in `NOISES`.
        """
        for name in noises:
            if name not in NOISES:
                raise InputError(f"noise {show(name)} is unknown; choose of {', '.join(NOISES)}")
        changes = {NOISES[name]: 0.0 for name in noises}
        # Exactly one of these two is applied; without one it is always the other.
        if len({"split", "merge"} & changes.keys()) == 1:
            changes["merge" if "split" in changes else "split"] = self.split + self.merge
        return changes


NOISES = {
    "speakers": "speaker_share",
    "split": "split",
    "merge": "merge",
    "infill": "infill_share",
    "permute": "permute",
}
"""Noise → the field that switches it off at 0."""

SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {},
    "script": {
        "window_share": 0.2,
        "window_most": 450,
        "split_by": "words",
        "infill_by": "starts",
        "infill_share": 0.1,
        "speaker_mask": "[MASK]",
    },
}
"""Name → differences from the defaults."""


def below(rng: Random, count: int) -> int:
    """Draws a number in 0 … count − 1."""
    return min(int(rng.random() * count), count - 1)


def shuffled(rng: Random, count: int) -> tuple[int, ...]:
    """Draws a permutation of 0 … count − 1."""
    keys = [rng.random() for _ in range(count)]
    return tuple(sorted(range(count), key=lambda index: keys[index]))


def some(rng: Random, things: Sequence[int], share: float) -> tuple[int, ...]:
    """Draws a share of the items, in their order; a fractional number is rounded up or down at random."""
    count = int(share * len(things) + rng.random())
    return tuple(sorted(things[index] for index in shuffled(rng, len(things))[:count]))


def poisson(rng: Random, mean: float) -> int:
    """Draws from the Poisson distribution by Knuth's product of uniform numbers; for means up to a hundred."""
    least, product, count = math.exp(-mean), rng.random(), 0
    while product > least:
        product *= rng.random()
        count += 1
    return count


Turns = list[Turn]
Spot = tuple[int, int, int]
"""A hidden span: its turn, its first word, and its number of words; 0 if only a mask is inserted."""


def mask_speakers(turns: Sequence[Turn], rng: Random, config: NoiseConfig) -> tuple[Turns, tuple[int, ...]]:
    """Replaces speaker names by the speaker mask in a share of the turns with one; also returns these turns."""
    chosen = some(rng, [index for index, turn in enumerate(turns) if turn.speaker], config.speaker_share)
    masked = list(turns)
    for index in chosen:
        masked[index] = replace(turns[index], speaker=config.speaker_mask)
    return masked, chosen


def split_turn(turns: Sequence[Turn], rng: Random, config: NoiseConfig) -> tuple[Turns, tuple[int, int] | None]:
    """Splits the longest turn into one turn per sentence, all but the first with a masked speaker.

    Also returns the turn (the first of equal ones) and the number of parts; None if no turn has two sentences.
    """
    sentences = [_sentences(turn.text) for turn in turns]
    lengths = [len(turn.words) if config.split_by == "words" else len(sentences[i]) for i, turn in enumerate(turns)]
    chosen = max(range(len(turns)), key=lambda index: lengths[index])
    if len(sentences[chosen]) < 2:
        return list(turns), None
    first, *others = sentences[chosen]
    pieces = [replace(turns[chosen], text=first), *(Turn(config.speaker_mask, text) for text in others)]
    return [*turns[:chosen], *pieces, *turns[chosen + 1 :]], (chosen, len(pieces))


def merge_turns(turns: Sequence[Turn], rng: Random, config: NoiseConfig) -> tuple[Turns, tuple[int, int] | None]:
    """Merges consecutive turns into one, under the name of the first.

    Also returns the first turn and the number of turns; None if there is only one turn. Merging stops at the window's
    end.
    """
    if len(turns) < 2:
        return list(turns), None
    start = below(rng, len(turns) - 1)
    count = min(max(2, poisson(rng, config.merge_mean)), len(turns) - start)
    merged = replace(turns[start], text=" ".join(turn.text for turn in turns[start : start + count]))
    return [*turns[:start], merged, *turns[start + count :]], (start, count)


def infill(turns: Sequence[Turn], rng: Random, config: NoiseConfig) -> tuple[Turns, tuple[Spot, ...]]:
    """Replaces spans of words by one mask each, within turns; names and markers are kept.

    Also returns the hidden spans, in order.
    """
    words = [turn.words for turn in turns]
    draw = _by_budget if config.infill_by == "budget" else _by_starts
    spots = tuple(sorted(draw([len(some) for some in words], rng, config)))
    texts: list[list[str]] = [[] for _ in words]
    done = [0] * len(words)
    for turn, first, length in spots:
        texts[turn] += [*words[turn][done[turn] : first], config.mask]
        done[turn] = first + length
    for text, whole, behind in zip(texts, words, done, strict=True):
        text += whole[behind:]
    return [replace(turn, text=" ".join(text)) for turn, text in zip(turns, texts, strict=True)], spots


def permute_turns(turns: Sequence[Turn], rng: Random, config: NoiseConfig) -> tuple[Turns, tuple[int, ...]]:
    """Shuffles the turns; also returns the permutation."""
    order = shuffled(rng, len(turns))
    return [turns[index] for index in order], order


def _sentences(text: str) -> list[str]:
    """Splits a turn into sentences, which together have all of its words."""
    starts = [sentence.start for sentence in split_sentences(text)]
    # Text before the first sentence belongs to it; boundaries inside a word are ignored.
    cuts = [0, *(start for start in starts[1:] if text[start - 1].isspace()), len(text)]
    return [text[start:end].strip() for start, end in pairwise(cuts)]


def _by_budget(lengths: Sequence[int], rng: Random, config: NoiseConfig) -> Iterator[Spot]:
    """Yields spans that begin at any unhidden word, until the share is reached; the last one is cut to it.

    A span ends at the end of its turn, before hidden words, and before an inserted mask.
    """
    places = [(turn, word) for turn, length in enumerate(lengths) for word in range(length)]
    left = math.ceil(config.infill_share * len(places) - 1e-9)
    hidden = [False] * len(places)
    inserted = [False] * len(places)
    shown = _Ranks(len(places))
    while left > 0:
        begin = shown.place(below(rng, shown.count))
        turn, word = places[begin]
        length = min(poisson(rng, config.span_mean), left)
        end = begin
        while end < min(begin + length, len(places)) and places[end][0] == turn and not hidden[end]:
            if end > begin and inserted[end]:
                break
            hidden[end] = True
            shown.remove(end)
            end += 1
        if length or not inserted[begin]:
            yield turn, word, end - begin
        inserted[begin] = inserted[begin] or not length
        left -= end - begin


class _Ranks:
    """Numbers 0 … count − 1 with removals; lookup by rank in log(count) steps (Fenwick tree)."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.sums = [index & -index for index in range(count + 1)]

    def place(self, rank: int) -> int:
        """Returns the number with `rank` remaining numbers below it."""
        place = 0
        for bit in reversed(range(len(self.sums).bit_length())):
            above = place + (1 << bit)
            if above < len(self.sums) and self.sums[above] <= rank:
                place, rank = above, rank - self.sums[above]
        return place

    def remove(self, number: int) -> None:
        """Removes a number."""
        self.count -= 1
        index = number + 1
        while index < len(self.sums):
            self.sums[index] -= 1
            index += index & -index


def _by_starts(lengths: Sequence[int], rng: Random, config: NoiseConfig) -> Iterator[Spot]:
    """Yields spans that begin at any word with a fixed probability, without overlap."""
    for turn, length in enumerate(lengths):
        word = 0
        while word < length:
            hides = 1
            if rng.random() < config.infill_share:
                drawn = min(poisson(rng, config.span_mean), length - word)
                yield turn, word, drawn
                hides = max(1, drawn)  # the word after an inserted mask is not hidden
            word += hides
