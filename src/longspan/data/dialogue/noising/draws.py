"""Draws from a random generator by nothing but `random()`, whose numbers Python promises never to change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random


def below(rng: Random, count: int) -> int:
    """One of 0 … count − 1."""
    return min(int(rng.random() * count), count - 1)


def shuffled(rng: Random, count: int) -> tuple[int, ...]:
    """0 … count − 1 in any order."""
    keys = [rng.random() for _ in range(count)]
    return tuple(sorted(range(count), key=lambda index: keys[index]))


def some(rng: Random, things: Sequence[int], share: float) -> tuple[int, ...]:
    """A share of some numbers, in their order; where it is no whole number of them, rounded up or down by chance."""
    count = int(share * len(things) + rng.random())
    return tuple(sorted(things[index] for index in shuffled(rng, len(things))[:count]))


def poisson(rng: Random, mean: float) -> int:
    """A number of the Poisson distribution, by Knuth's product of uniform numbers; means up to a hundred."""
    least, product, count = math.exp(-mean), rng.random(), 0
    while product > least:
        product *= rng.random()
        count += 1
    return count
