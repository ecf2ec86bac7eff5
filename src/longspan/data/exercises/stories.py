"""Questions about short stories, in the text format of bAbI (Weston et al. 2015, arXiv 1502.05698).

    1 Mary moved to the bathroom.
    2 John went to the hallway.
    3 Where is Mary? 	bathroom	1

Every line has a number, which begins again with each story. A question has its answer behind a tab, and behind another
the numbers of the facts that it needs. A question is asked about all facts before it in its story.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from pathlib import Path

from longspan.data.exercises.rows import Exercise
from longspan.data.fields import Skipped, check_on_error
from longspan.data.jsonl import UNREADABLE, lines_of, open_bytes, unreadable
from longspan.data.sources import ALIASES, Kind, read
from longspan.errors import InputError

_LINE = re.compile(r"(\d+) +(\S.*)")
_TASK = re.compile(r"qa\d+")


def read_stories(data: str, split: str, limit: int | None = None, *, on_error: str = "raise") -> Iterator[Exercise]:
    """The questions of a file, of the files of a split in a folder (`qa1_…_train.txt`), or made-up ones.

    Raises:
        InputError: nothing is found; a line that is not of the format, unless `on_error` is "skip".
    """
    check_on_error(on_error)
    return read(_files(data, split), split, STORIES, lambda path, _: _in_file(path, on_error), limit)


def _files(data: str, split: str) -> str | list[str | Path]:
    """The files of a folder that have the split at the end of their names; anything else as it is."""
    for folder in (Path(data), Path(os.environ.get("LONGSPAN_DATA") or data) / data):
        if not folder.is_dir():
            continue
        files = sorted(folder.glob("*.txt*"))
        for name in ALIASES.get(split, (split,)):
            if found := [file for file in files if re.search(rf"(^|[_-]){name}\.txt(\.gz|\.xz)?$", file.name)]:
                return list(found)
        there = ", ".join(file.name for file in files[:10]) or "no .txt file"
        raise InputError(
            f"{folder} has no file of split={split!r}, which is named …_{split}.txt; it has {there}; set "
            "data.train_split and data.validation_split to what there is"
        )
    return data


def _in_file(path: Path, on_error: str) -> Iterator[Exercise]:
    """The questions of one file; the first line that cannot be read stops it, or is passed over."""
    skipped, facts, expected = Skipped(str(path), on_error), list[str](), 1
    found = _TASK.match(path.name)
    group = found[0] if found else path.name.split(".")[0]
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
    """Number, words and answer of a line; facts have no answer."""
    words, *rest = line.split("\t")
    found = _LINE.fullmatch(words.strip())
    if found is None:
        raise InputError("a number and a sentence are missing; write lines such as '1 Mary moved to the bathroom.'")
    if rest and not rest[0].strip():
        raise InputError("the question has no answer behind its tab; write 'Where is Mary?', a tab and the answer")
    return int(found[1]), found[2], rest[0].strip() if rest else None


PEOPLE, ROOMS = ("Mary", "John", "Sandra", "Daniel"), ("bathroom", "hallway", "garden", "kitchen", "office", "bedroom")
MOVES = ("moved to", "went to", "travelled to", "journeyed to")


def made_up_stories(count: int | None, seed: int) -> Iterator[Exercise]:
    """Who went where, as in the first of bAbI's tasks: where the one asked for went last answers the question."""
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
"""Where stories come from."""
