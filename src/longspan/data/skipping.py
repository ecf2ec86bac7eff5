"""What to do with a corrupt record in a big file: stop there, or count it and go on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from longspan.characters import counted
from longspan.errors import InputError

logger = logging.getLogger(__name__)

REMEDY = " (on_error: skip passes over such records)"

Given = TypeVar("Given")
Row = TypeVar("Row")


def check_on_error(on_error: str) -> None:
    """Raise `InputError` unless it is "raise" or "skip"."""
    if on_error not in ("raise", "skip"):
        raise InputError(f"on_error={on_error!r} is unknown; choose 'raise' or 'skip'")


@contextmanager
def without_remedy() -> Iterator[None]:
    """For who reads a file whole and has no option to skip: errors do not advise it."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error).removesuffix(REMEDY)) from None


@dataclass
class Skipped:
    """The corrupt records of one file: raised at once, or counted when `on_error` is "skip"."""

    place: str
    on_error: str = "raise"
    count: int = 0
    first: str = ""

    def add(self, line: int, error: InputError) -> None:
        """Raise the error, which names the line itself; or count it and remember the first."""
        if self.on_error == "raise":
            raise error
        self.count += 1
        self.first = self.first or str(error)

    def with_remedy(self, sentence: str) -> str:
        """A sentence that says what is wrong with a record, with what else could be done where it stops the reading."""
        return sentence if self.on_error == "skip" else sentence + REMEDY

    def report(self) -> None:
        """Say in the log how many records were passed over, if any were."""
        if self.count:
            records = counted(self.count, "corrupt record was", "corrupt records were")
            logger.warning("%s: %s skipped; the first: %s", self.place, records, self.first)


def parsed(
    records: Iterable[tuple[int, Given]], parse: Callable[[Given, int], Row], skipped: Skipped, unit: str = "line"
) -> Iterator[Row]:
    """The rows of one file's numbered records; those that `parse` refuses go to `skipped`, with their place."""
    try:
        for number, record in records:
            try:
                row = parse(record, number)
            except InputError as error:
                skipped.add(number, InputError(skipped.with_remedy(f"{skipped.place}, {unit} {number}: {error}")))
            else:
                yield row
    finally:  # also where the reading stops at a limit
        skipped.report()
