"""Fields of a record read with their types checked: what is missing or wrong is said in one sentence. And what to do
with a corrupt record in a big file: stop there, or count it and go on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from longspan.characters import check_characters, counted
from longspan.errors import InputError
from longspan.settings import show

Record = dict[str, Any]

ID_FIELDS = ("id", "article_id", "paper_id", "doc_id", "meeting_id", "episode", "book_id", "uid")
"""What data sets call the name of a record."""


def kind_of(value: Any) -> str:
    """What a JSON value is, for a sentence: "null", "a str", "an int"."""
    name = type(value).__name__
    return "null" if value is None else f"an {name}" if name[0] in "aeiou" else f"a {name}"


def value_of(record: Any, field: str, where: str = "the record") -> Any:
    """The value of a field; `InputError` where the record lacks it."""
    if not isinstance(record, dict):
        raise InputError(f"{where} is {kind_of(record)} instead of an object")
    if field not in record:
        raise InputError(f"{where} has no field {field!r}; it has {', '.join(sorted(map(str, record))) or 'none'}")
    return record[field]


def list_of(record: Any, field: str, where: str = "the record") -> list[Any]:
    """The list in a field; `InputError` where it is missing or holds something else."""
    value = value_of(record, field, where)
    if not isinstance(value, list):
        raise InputError(f"field {field!r} of {where} holds {kind_of(value)} instead of a list")
    return value


def number_of(record: Any, field: str, where: str) -> int:
    """A field that holds a whole number; `InputError` where it is missing or holds anything else."""
    value = value_of(record, field, where)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"field {field!r} of {where} holds {kind_of(value)} instead of a whole number")
    return value


def name_of(record: Record, field: str, default: str) -> str:
    """A text or a number that names the record; `default` where it has none."""
    value = record.get(field)
    return default if value in (None, "") else str(value)


def id_of(record: Record, default: str) -> str:
    """The name of a record, under whichever of `ID_FIELDS` it has one."""
    return next((str(record[field]) for field in ID_FIELDS if record.get(field) not in (None, "")), default)


def texts_in(record: Record, field: str) -> tuple[str, ...]:
    """A field that holds a text, or a list of texts; the texts of a list lose white space that is not needed."""
    value = record.get(field)
    if isinstance(value, str):
        return (check_characters(value, f"field {field!r}"),)
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return tuple(" ".join(check_characters(text, f"field {field!r}").split()) for text in value if text.strip())
    if field not in record:
        raise InputError(f"field {field!r} is missing; the record has {', '.join(sorted(map(str, record)))}")
    raise InputError(f"field {field!r} holds {kind_of(value)} instead of a text or a list of texts")


def objects_in(record: Record, field: str) -> list[Any]:
    """A field that holds a list of objects or lists; absent or null means an empty one."""
    value = record.get(field) or []
    if not isinstance(value, list):
        raise InputError(f"field {field!r} holds {kind_of(value)} instead of a list of objects")
    if others := [item for item in value if not isinstance(item, dict | list)]:
        raise InputError(f"field {field!r} holds a list with {kind_of(others[0])} in it instead of a list of objects")
    return value


logger = logging.getLogger(__name__)

REMEDY = " (on_error: skip passes over such records)"

Given = TypeVar("Given")
Row = TypeVar("Row")


def check_on_error(on_error: str) -> None:
    """Raise `InputError` unless it is "raise" or "skip"."""
    if not isinstance(on_error, str) or on_error not in ("raise", "skip"):
        raise InputError(f"on_error={show(on_error)} is unknown; choose 'raise' or 'skip'")


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


def check_text(text: Any, what: str) -> str:
    """The text itself; `InputError` where it is no text, blank, or not encodable as UTF-8."""
    if not isinstance(text, str):
        raise InputError(f"{what} is {kind_of(text)} instead of a text; give a text")
    if not text.strip():
        raise InputError(f"{what} is empty; give one with words in it")
    return check_characters(text, what)
