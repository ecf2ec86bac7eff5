"""The row of an exercise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """A text and the one right answer.

    Attributes:
        id: name of the row.
        text: what is read.
        answer: what is to be written.
        group: what kind of exercise it is, where a data set has several that are scored apart.
    """

    id: str
    text: str
    answer: str
    group: str = ""
