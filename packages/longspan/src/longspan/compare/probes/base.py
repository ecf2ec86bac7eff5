"""What every probe is: rows made from a number, the same on every machine and for every mechanism."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from longspan.errors import InputError
from longspan.models.losses import IGNORED

Form = Literal["both ways", "causal"]
"""Whether a token sees what comes after it."""

HELD_OUT = 2**32
"""Numbers from here on are those of held-out rows; seeds of training stay below."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One sequence of T tokens and what is asked of it; `(T,)` each.

    Attributes:
        ids: int64 tokens.
        labels: int64, the token to be named at this place; −100 where nothing is asked.
        is_global: bool, the places that ask, which attention may treat as global.
        distances: int64, how far back the answer lies, where that has a meaning; else 0.
    """

    ids: np.ndarray
    labels: np.ndarray
    is_global: np.ndarray
    distances: np.ndarray


class Probe:
    """Base of the probes.

    Args:
        tokens: length of a row, at most.
        folder: where `prepare` wrote the documents of this comparison; probes that need none leave it alone.
    """

    name: ClassVar[str]
    """Its key in `PROBES`."""
    forms: ClassVar[tuple[Form, ...]] = ("both ways", "causal")
    """The forms in which it can be asked, the better one first."""
    score: ClassVar[str] = "accuracy"
    """What is reported: "accuracy", the share of answers that are right, or "bits per byte"."""
    least: ClassVar[int] = 64
    """The shortest row that asks anything."""

    def __init__(self, tokens: int, folder: Path | None = None) -> None:
        if tokens < self.least:
            raise InputError(f"tokens={tokens} is too short for {self.name!r}; give at least {self.least}")
        self.tokens = tokens
        self.folder = folder

    @classmethod
    def about(cls) -> str:
        """What it asks for: its docstring, on one line."""
        return " ".join((inspect.getdoc(cls) or "").split())

    @classmethod
    def prepare(cls, folder: Path) -> dict[str, str]:
        """Write what its rows are made from into `folder`, unless it is there; in words, what that is.

        Raises:
            InputError: it cannot be had.
        """
        return {}

    @property
    def vocabulary(self) -> int:
        """How many tokens there are; the last of them is padding."""
        raise NotImplementedError

    @property
    def padding(self) -> int:
        """The token that fills up shorter rows."""
        return self.vocabulary - 1

    @property
    def chance(self) -> float | None:
        """The score of guessing without reading the input; `None` where that is not known."""
        raise NotImplementedError

    def row(self, seed: int, number: int, form: Form) -> Row:
        """Row `number` of those of a seed, the same for every mechanism."""
        return self.make(np.random.Generator(np.random.Philox(key=[seed, number])), form)

    def make(self, random: np.random.Generator, form: Form) -> Row:
        """One row in a form; all that is drawn comes from `random`."""
        raise NotImplementedError


def asked(ids: np.ndarray, positions: np.ndarray, answers: np.ndarray, distances: np.ndarray | int = 0) -> Row:
    """The row `(T,)` of `ids` whose labels are `answers` `(P,)` at `positions` `(P,)`, each a global token, and
    `IGNORED` elsewhere; `distances` `(P,)` or one number, how many tokens before a question its answer stands."""
    labels, far = np.full(len(ids), IGNORED, np.int64), np.zeros(len(ids), np.int64)
    labels[positions], far[positions] = answers, distances
    return Row(ids=ids.astype(np.int64), labels=labels, is_global=labels != IGNORED, distances=far)


def asked_at_end(ids: np.ndarray, answer: int) -> Row:
    """A row that asks once, at its last token, by which everything before it is to be judged."""
    return asked(ids, np.array([len(ids) - 1]), np.array([answer]))
