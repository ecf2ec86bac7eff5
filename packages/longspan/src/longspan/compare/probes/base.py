"""The base class of probes: rows generated from a seed, the same on every machine and for every mechanism."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from longspan.errors import InputError
from longspan.models.losses import IGNORED

Form = Literal["bidirectional", "causal"]
"""Whether attention is bidirectional or causal."""

HELD_OUT = 2**32
"""Row numbers from here on are held-out rows; seeds of training are smaller."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A sequence of T tokens with its questions; all fields are `(T,)`.

    Attributes:
        ids: int64 tokens.
        labels: int64, the token to predict at this position; −100 if there is no question.
        is_global: bool, positions with questions, which attention may treat as global tokens.
        distances: int64, distance back to the answer, if that is defined; else 0.
    """

    ids: np.ndarray
    labels: np.ndarray
    is_global: np.ndarray
    distances: np.ndarray


class Probe:
    """Base of the probes.

    Args:
        tokens: maximum length of a row.
        folder: where `prepare` wrote the documents of this comparison; synthetic probes do not use it.
    """

    name: ClassVar[str]
    """Its key in `PROBES`."""
    forms: ClassVar[tuple[Form, ...]] = ("bidirectional", "causal")
    """The forms of attention that it supports, the better one first."""
    score: ClassVar[str] = "accuracy"
    """The reported score: "accuracy", the share of correct answers, or "bits per byte"."""
    least: ClassVar[int] = 64
    """The minimum length of a row."""

    def __init__(self, tokens: int, folder: Path | None = None) -> None:
        if tokens < self.least:
            raise InputError(f"tokens={tokens} is too short for {self.name!r}; give at least {self.least}")
        self.tokens = tokens
        self.folder = folder

    @classmethod
    def about(cls) -> str:
        """The description of the probe: its docstring, on one line."""
        return " ".join((inspect.getdoc(cls) or "").split())

    @classmethod
    def prepare(cls, folder: Path) -> dict[str, str]:
        """Write the source data of its rows to `folder`, unless they exist; returns a description of them.

        Raises:
            InputError: they are not available.
        """
        return {}

    @property
    def vocabulary(self) -> int:
        """The number of tokens; the last of them is padding."""
        raise NotImplementedError

    @property
    def padding(self) -> int:
        """The padding token."""
        return self.vocabulary - 1

    @property
    def chance(self) -> float | None:
        """The score of guessing without reading the input; `None` if it is not known."""
        raise NotImplementedError

    def row(self, seed: int, number: int, form: Form) -> Row:
        """Returns row `number` of a seed, the same for every mechanism."""
        return self.make(np.random.Generator(np.random.Philox(key=[seed, number])), form)

    def make(self, random: np.random.Generator, form: Form) -> Row:
        """Generate one row; all random numbers come from `random`."""
        raise NotImplementedError


def asked(ids: np.ndarray, positions: np.ndarray, answers: np.ndarray, distances: np.ndarray | int = 0) -> Row:
    """Returns the row with `ids` `(T,)` and labels `answers` `(P,)` at `positions` `(P,)`, which are global tokens.

    Other labels are `IGNORED`. `distances` is `(P,)` or one number: the number of tokens from an answer to its
    question.
    """
    labels, far = np.full(len(ids), IGNORED, np.int64), np.zeros(len(ids), np.int64)
    labels[positions], far[positions] = answers, distances
    return Row(ids=ids.astype(np.int64), labels=labels, is_global=labels != IGNORED, distances=far)


def asked_at_end(ids: np.ndarray, answer: int) -> Row:
    """Returns a row with one question at its last token, about everything before it."""
    return asked(ids, np.array([len(ids) - 1]), np.array([answer]))
