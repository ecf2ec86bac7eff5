"""A labelled document, its part of a data set that has no parts, and made-up ones for smoke runs."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

PARTS = {"train": (0, 80), "validation": (80, 90), "test": (90, 100)}
"""Split → percents of the documents, from and to, where a hash of the text decides: 80/10/10."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRow:
    """A document and what it is.

    Attributes:
        id: as in the file, or file and line.
        text: the document, as it is in the file.
        label: in words; numbers and truth values as they are written in JSON.
    """

    id: str
    text: str
    label: str


def percent_of(text: str) -> int:
    """A number from 0 to 99 that the text alone decides, on every machine: equal texts fall into the same part."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % 100


def is_in(text: str, split: str) -> bool:
    """Whether a text belongs to one of `PARTS`."""
    first, end = PARTS[split]
    return first <= percent_of(text) < end


def synthetic_labelled(count: int, *, seed: int, sentences: int = 12) -> list[LabelledRow]:
    """Reviews of made-up things that only their last sentence judges: labels alternate, the texts can be learned.

    The same arguments give the same rows on every machine.
    """
    draw = random.Random(seed)
    words = {
        "good": ("splendid", "delightful", "wonderful", "superb"),
        "bad": ("dreadful", "tiresome", "terrible", "useless"),
    }
    things, parts = ("lamp", "chair", "kettle", "clock"), ("handle", "colour", "box", "lid", "cable")
    rows = []
    for index in range(count):
        label = ("good", "bad")[index % 2]
        body = [f"The {draw.choice(parts)} of the {draw.choice(things)} is there ." for _ in range(sentences)]
        verdict = f"All in all it is {draw.choice(words[label])} and {draw.choice(words[label])} ."
        rows.append(LabelledRow(id=f"synthetic-{seed}-{index}", text=" ".join([*body, verdict]), label=label))
    return rows
