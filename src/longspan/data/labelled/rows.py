"""A labelled document, its part of a data set that has no parts, made-up ones for smoke runs, and those of folders.

In such folders a folder's name is the label of the texts in it, as IMDB's reviews come: aclImdb/train/pos/*.txt. Out of
news articles `clean` takes addresses, and what is repeated for effect.
"""

from __future__ import annotations

import hashlib
import logging
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from longspan.data.fields import Skipped
from longspan.data.jsonl import LONGEST, UNREADABLE, read_bytes, unreadable
from longspan.data.sources import ALIASES
from longspan.errors import InputError

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


_ADDRESS = re.compile(r"(?:\b[a-z][a-z0-9+.-]{1,20}://|\bwww\.)[^\s<>\"”’)\]]+", re.IGNORECASE)
_SAME_MARK = re.compile(r"([^\w\s])(?:\s*\1)+")
_SAME_LETTER = re.compile(r"([^\W\d_])\1{3,}")


def clean(text: str) -> str:
    """The text as Longformer's experiment on Hyperpartisan has it: no addresses, nothing repeated, single spaces.

    Web addresses go. The same punctuation mark several times, with or without spaces between, becomes one; a letter
    that stands four times or more becomes one ("soooo" → "so"); digits stay, since 10000 is a number. Every run of
    white space is one space.
    """
    text = _ADDRESS.sub(" ", text)
    text = _SAME_LETTER.sub(r"\1", _SAME_MARK.sub(r"\1", text))
    return " ".join(text.split())


logger = logging.getLogger(__name__)

UNLABELLED = frozenset({"unsup"})
"""Folders of texts without a label: those of IMDB for pre-training."""


def is_labelled_folder(folder: Path) -> bool:
    """Whether a folder holds folders of texts, at once or for each split."""
    return bool(_splits_of(folder) or _labels_of(folder))


def folder_rows(folder: Path, split: str, skipped: Skipped) -> Iterator[LabelledRow]:
    """The rows of one split, label after label, in the order of their names.

    A folder without a validation split gives the tenth of its training texts that `percent_of` picks, and trains on the
    rest; one without any splits is divided by `PARTS`. The log says so.
    """
    there = _splits_of(folder)
    if not there:
        _check_split(folder, split, list(PARTS))
        _note(folder, "has no splits, so a hash of each text puts it into train, validation or test (80/10/10)")
        part = next(name for name in PARTS if name in ALIASES.get(split, (split,)))
        yield from (row for row in _folder_rows(folder, skipped) if is_in(row.text, part))
        return
    names = ALIASES.get(split, (split,))
    folder_of_split = next((there[name] for name in names if name in there), None)
    held_out = "train" in there and not any(name in there for name in ALIASES["validation"])
    if folder_of_split is None and not (held_out and "validation" in names):
        _check_split(folder, split, [*there, *(["validation"] if held_out else [])])
    if held_out and folder_of_split in (None, there["train"]):
        _note(
            folder, "has no validation split, so a tenth of the training texts, by a hash of each, is held out for it"
        )
        for row in _folder_rows(there["train"], skipped):
            if (percent_of(row.text) < 10) == (folder_of_split is None):
                yield row
    elif folder_of_split is not None:
        yield from _folder_rows(folder_of_split, skipped)


def _check_split(folder: Path, split: str, known: list[str]) -> None:
    if not set(ALIASES.get(split, (split,))) & set(known):
        raise InputError(f"{folder} has no split={split!r}; it has {', '.join(known)}")


def _splits_of(folder: Path) -> dict[str, Path]:
    names = ("train", "validation", "valid", "val", "dev", "test")
    return {name: folder / name for name in names if (folder / name).is_dir() and _labels_of(folder / name)}


def _labels_of(folder: Path) -> dict[str, Path]:
    """Label → folder."""
    inside = (one for one in sorted(folder.iterdir()) if one.is_dir() and one.name not in UNLABELLED)
    return {one.name: one for one in inside if any(one.glob("*.txt"))}


def _folder_rows(folder: Path, skipped: Skipped) -> Iterator[LabelledRow]:
    for label, place in _labels_of(folder).items():
        for number, file in enumerate(sorted(place.glob("*.txt")), 1):
            try:
                text = _file_text(file)
            except InputError as error:
                skipped.add(number, InputError(skipped.with_remedy(str(error))))
                continue
            yield LabelledRow(id=f"{folder.name}/{label}/{file.stem}", text=text, label=label)
    skipped.report()


def _file_text(file: Path) -> str:
    try:
        text = read_bytes(file, LONGEST).decode("utf-8-sig")
    except UNREADABLE as error:
        raise unreadable(file, error) from None
    if not text.strip():
        raise InputError(f"{file} is empty; remove it, or put its text back")
    return text


@cache
def _note(folder: Path, what: str) -> None:
    """Say it once for each folder."""
    logger.warning("%s %s", folder, what)
