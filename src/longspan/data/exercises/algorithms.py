"""Algorithms over digits: copy, reverse and add, at any length, from a number and a seed.

Kaiser and Sutskever 2016, "Neural GPUs learn algorithms", arXiv 1511.08228, which Dehghani et al. 2019, arXiv
1807.03819, section 3.3, train at length 40 and test at length 400.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, overload

import numpy as np

from longspan.data.exercises.rows import Exercise

Algorithm = Literal["copy", "reverse", "addition"]
SHORTEST = 3
"""What an addition needs: two digits and the sign between them."""


def copied(digits: str) -> str:
    """The digits themselves."""
    return digits


def mirrored(digits: str) -> str:
    """The last digit first."""
    return digits[::-1]


def added(terms: str) -> str:
    """The sum of two numbers, all of them with the lowest digit first, as published."""
    first, second = (int(term[::-1]) for term in terms.split("+"))
    return str(first + second)[::-1]


ANSWERS: dict[Algorithm, Callable[[str], str]] = {"copy": copied, "reverse": mirrored, "addition": added}


class Exercises(Sequence[Exercise]):
    """Rows of one algorithm, made when they are asked for; the same on every machine.

    Args:
        algorithm: which one.
        count: how many rows.
        length: characters of a text, at most.
        exact: whether every text has that length; otherwise all lengths come up equally often.
        seed: of what is drawn.
    """

    def __init__(self, algorithm: Algorithm, count: int, *, length: int, exact: bool, seed: int) -> None:
        self.algorithm: Algorithm = algorithm
        self.rows, self.length, self.exact, self.seed = count, length, exact, seed

    def __len__(self) -> int:
        return self.rows

    @overload
    def __getitem__(self, index: int) -> Exercise: ...

    @overload
    def __getitem__(self, index: slice) -> list[Exercise]: ...

    def __getitem__(self, index: int | slice) -> Exercise | list[Exercise]:
        if isinstance(index, slice):
            return [self._row(number) for number in range(*index.indices(self.rows))]
        if not -self.rows <= index < self.rows:
            raise IndexError(index)
        return self._row(index % self.rows)

    def _row(self, number: int) -> Exercise:
        random = np.random.Generator(np.random.Philox(key=[self.seed, number]))
        shortest = SHORTEST if self.algorithm == "addition" else 1
        length = self.length if self.exact else int(random.integers(shortest, self.length + 1))
        digits = "".join(map(str, random.integers(10, size=length)))
        if self.algorithm == "addition":
            middle = length // 2
            digits = f"{digits[:middle]}+{digits[middle + 1 :]}"
        return Exercise(id=f"{self.algorithm}-{number}", text=digits, answer=ANSWERS[self.algorithm](digits))
