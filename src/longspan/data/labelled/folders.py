"""Folders in which a folder's name is the label of the texts in it, as IMDB's reviews come: aclImdb/train/pos/*.txt."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from longspan.data.jsonl import LONGEST, UNREADABLE, read_bytes, unreadable
from longspan.data.labelled.rows import PARTS, LabelledRow, is_in, percent_of
from longspan.data.skipping import Skipped
from longspan.data.sources import ALIASES
from longspan.errors import InputError

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
        yield from (row for row in _rows(folder, skipped) if is_in(row.text, part))
        return
    names = ALIASES.get(split, (split,))
    found = next((there[name] for name in names if name in there), None)
    held_out = "train" in there and not any(name in there for name in ALIASES["validation"])
    if found is None and not (held_out and "validation" in names):
        _check_split(folder, split, [*there, *(["validation"] if held_out else [])])
    if held_out and found in (None, there["train"]):
        _note(
            folder, "has no validation split, so a tenth of the training texts, by a hash of each, is held out for it"
        )
        for row in _rows(there["train"], skipped):
            if (percent_of(row.text) < 10) == (found is None):
                yield row
    elif found is not None:
        yield from _rows(found, skipped)


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


def _rows(folder: Path, skipped: Skipped) -> Iterator[LabelledRow]:
    for label, place in _labels_of(folder).items():
        for number, file in enumerate(sorted(place.glob("*.txt")), 1):
            try:
                text = _text_of(file)
            except InputError as error:
                skipped.add(number, InputError(skipped.with_remedy(str(error))))
                continue
            yield LabelledRow(id=f"{folder.name}/{label}/{file.stem}", text=text, label=label)
    skipped.report()


def _text_of(file: Path) -> str:
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
