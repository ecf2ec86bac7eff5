"""Exercises, each a text with one right answer: generated algorithms over digits, and questions about stories.

Algorithms, at any length, from a number and a seed: copy, reverse and add (Kaiser and Sutskever 2016, "Neural GPUs
learn algorithms", arXiv 1511.08228), which Dehghani et al. 2019, arXiv 1807.03819, section 3.3, train at length 40 and
test at length 400.

Stories, in the text format of bAbI (Weston et al. 2015, arXiv 1502.05698)::

    1 Mary moved to the bathroom.
    2 John went to the hallway.
    3 Where is Mary? 	bathroom	1

Every line has a number, which restarts with each story. A question is followed by a tab and its answer, and by another
tab and the numbers of the relevant facts. It refers to all facts before it in its story.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, overload

import numpy as np

from longspan.data.fields import Skipped, check_on_error
from longspan.data.jsonl import UNREADABLE, lines_of, open_bytes, unreadable
from longspan.data.sources import ALIASES, Kind, read
from longspan.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """A text and the one right answer.

    Attributes:
        id: name of the row.
        text: the input.
        answer: the target.
        group: the kind of exercise, if a data set has several that are scored separately.
    """

    id: str
    text: str
    answer: str
    group: str = ""


Algorithm = Literal["copy", "reverse", "addition"]
SHORTEST = 3
"""The characters of an addition besides its digits."""


def copied(digits: str) -> str:
    """Returns the digits."""
    return digits


def mirrored(digits: str) -> str:
    """Returns the digits in reverse order."""
    return digits[::-1]


def added(terms: str) -> str:
    """Returns the sum of two numbers, all with the lowest digit first, as published."""
    first, second = (int(term[::-1]) for term in terms.split("+"))
    return str(first + second)[::-1]


ANSWERS: dict[Algorithm, Callable[[str], str]] = {"copy": copied, "reverse": mirrored, "addition": added}


class Exercises(Sequence[Exercise]):
    """Rows of one algorithm, generated on access; the same on every machine.

    Args:
        algorithm: name of the algorithm.
        count: number of rows.
        length: maximal characters of a text.
        exact: whether every text has that length; otherwise all lengths are equally frequent.
        seed: random seed.
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


_LINE = re.compile(r"(\d+) +(\S.*)")
_TASK = re.compile(r"qa\d+")


def read_stories(data: str, split: str, limit: int | None = None, *, on_error: str = "raise") -> Iterator[Exercise]:
    """Yields the questions of a file, of the files of a split in a folder (`qa1_…_train.txt`), or generated ones.

    Raises:
        InputError: nothing is found; a line that is not of the format, unless `on_error` is "skip".
    """
    check_on_error(on_error)
    return read(_files(data, split), split, STORIES, lambda path, _: _in_file(path, on_error), limit)


def _files(data: str, split: str) -> str | list[str | Path]:
    """Returns the files of a folder whose names end in the split; other paths are unchanged."""
    for folder in (Path(data), Path(os.environ.get("LONGSPAN_DATA") or data) / data):
        if not folder.is_dir():
            continue
        files = sorted(folder.glob("*.txt*"))
        for name in ALIASES.get(split, (split,)):
            if matches := [file for file in files if re.search(rf"(^|[_-]){name}\.txt(\.gz|\.xz)?$", file.name)]:
                return list(matches)
        there = ", ".join(file.name for file in files[:10]) or "no .txt file"
        raise InputError(
            f"{folder} has no file of split={split!r}, which is named …_{split}.txt; it has {there}; set "
            "data.train_split and data.validation_split to what there is"
        )
    return data


def _in_file(path: Path, on_error: str) -> Iterator[Exercise]:
    """Yields the questions of one file; invalid lines raise or are skipped."""
    skipped, facts, expected = Skipped(str(path), on_error), list[str](), 1
    match = _TASK.match(path.name)
    group = match[0] if match else path.name.split(".")[0]
    try:
        with open_bytes(path) as file:
            for place, line in enumerate(lines_of(file, path), 1):
                text = line.decode("utf-8-sig" if place == 1 else "utf-8").strip("\r\n ")
                if not text:
                    continue
                try:
                    number, words, answer = _parsed(text)
                    if number not in (1, expected):
                        raise InputError(f"its number is {number} instead of {expected}, or 1 for a new story")
                except InputError as error:
                    told = f"{path}, line {place}: {error}"
                    skipped.add(place, InputError(skipped.with_remedy(told)))
                    continue
                facts, expected = [] if number == 1 else facts, number + 1
                if answer is None:
                    facts.append(words)
                else:
                    yield Exercise(id=f"{group}:{place}", text=" ".join([*facts, words]), answer=answer, group=group)
    except UNREADABLE as error:
        raise unreadable(path, error) from None
    finally:
        skipped.report()


def _parsed(line: str) -> tuple[int, str, str | None]:
    """Returns number, words and answer of a line; facts have no answer."""
    words, *rest = line.split("\t")
    match = _LINE.fullmatch(words.strip())
    if match is None:
        raise InputError("a number and a sentence are missing; write lines such as '1 Mary moved to the bathroom.'")
    if rest and not rest[0].strip():
        raise InputError("the question has no answer after its tab; write 'Where is Mary?', a tab and the answer")
    return int(match[1]), match[2], rest[0].strip() if rest else None


PEOPLE, ROOMS = ("Mary", "John", "Sandra", "Daniel"), ("bathroom", "hallway", "garden", "kitchen", "office", "bedroom")
MOVES = ("moved to", "went to", "travelled to", "journeyed to")


def made_up_stories(count: int | None, seed: int) -> Iterator[Exercise]:
    """Yields stories as in the first of bAbI's tasks: the answer is the last place of the person in the question."""
    draw = random.Random(seed)
    for number in range(64 if count is None else count):
        facts, where = [], dict[str, str]()
        for _ in range(draw.randint(2, 8)):
            who, room = draw.choice(PEOPLE), draw.choice(ROOMS)
            facts.append(f"{who} {draw.choice(MOVES)} the {room}.")
            where[who] = room
        asked = draw.choice(sorted(where))
        text = " ".join([*facts, f"Where is {asked}?"])
        yield Exercise(id=f"synthetic-{seed}-{number}", text=text, answer=where[asked], group="synthetic")


STORIES = Kind(row=Exercise, named={}, made_up=made_up_stories, suffixes=("txt",))
"""The source of stories."""
