"""Type-checked access to fields of a record, and handling of corrupt records in large files: stop, or count and
continue."""

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
"""Names of id fields in data sets."""

TEXT_FIELDS = ("text", "document", "content", "article", "body", "article_text", "raw_content")
"""Names of the field with the text of a record, in order of preference."""
ROW_FIELDS = (*TEXT_FIELDS, "review", "comment", "sentence")
"""As `TEXT_FIELDS`, in tables of labelled rows, `longspan classify` and `longspan map`; beside a document, these are
remarks on it."""
CORPUS_FIELDS = (*TEXT_FIELDS, "source")
"""As `TEXT_FIELDS`, in corpora, which can be rows of document and summary; in other tables, a source is an origin."""


def kind_of(value: Any) -> str:
    """Returns the kind of a JSON value for a message: "null", "a str", "an int"."""
    name = type(value).__name__
    return "null" if value is None else f"an {name}" if name[0] in "aeiou" else f"a {name}"


def value_of(record: Any, field: str, where: str = "the record") -> Any:
    """Returns the value of a field; raises `InputError` if it is missing."""
    if not isinstance(record, dict):
        raise InputError(f"{where} is {kind_of(record)} instead of an object")
    if field not in record:
        raise InputError(f"{where} has no field {field!r}; it has {', '.join(sorted(map(str, record))) or 'none'}")
    return record[field]


def list_of(record: Any, field: str, where: str = "the record") -> list[Any]:
    """Returns the list in a field; raises `InputError` if it is missing or not a list."""
    value = value_of(record, field, where)
    if not isinstance(value, list):
        raise InputError(f"field {field!r} of {where} holds {kind_of(value)} instead of a list")
    return value


def number_of(record: Any, field: str, where: str) -> int:
    """Returns the integer in a field; raises `InputError` if it is missing or not an integer."""
    value = value_of(record, field, where)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"field {field!r} of {where} holds {kind_of(value)} instead of a whole number")
    return value


def name_of(record: Record, field: str, default: str) -> str:
    """Returns the text or number in a field as text, or `default`."""
    value = record.get(field)
    return default if value in (None, "") else str(value)


def id_of(record: Record, default: str) -> str:
    """Returns the id of a record from the first of `ID_FIELDS` that it has."""
    return next((str(record[field]) for field in ID_FIELDS if record.get(field) not in (None, "")), default)


def texts_in(record: Record, field: str) -> tuple[str, ...]:
    """Returns the texts of a field with a text or a list of texts; those of a list are normalised to single spaces."""
    value = record.get(field)
    if isinstance(value, str):
        return (check_characters(value, f"field {field!r}"),)
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return tuple(" ".join(check_characters(text, f"field {field!r}").split()) for text in value if text.strip())
    if field not in record:
        raise InputError(f"field {field!r} is missing; the record has {', '.join(sorted(map(str, record)))}")
    raise InputError(f"field {field!r} holds {kind_of(value)} instead of a text or a list of texts")


def joined_text(value: Any, field: str = "the text field") -> str:
    """Returns a text, or the texts of a list, or of lists in it, as lines; null is empty. Raises `InputError` for any
    other value.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(joined_text(item, field) for item in value)
    raise InputError(f"{field} holds {kind_of(value)}; it must be a text or a list of texts")


def objects_in(record: Record, field: str) -> list[Any]:
    """Returns the list of objects or lists in a field; empty if it is absent or null."""
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
    """Raises `InputError` unless it is "raise" or "skip"."""
    if not isinstance(on_error, str) or on_error not in ("raise", "skip"):
        raise InputError(f"on_error={show(on_error)} is unknown; choose 'raise' or 'skip'")


@contextmanager
def without_remedy() -> Iterator[None]:
    """Removes the advice to skip records from errors, for readers without that option."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error).removesuffix(REMEDY)) from None


@dataclass
class Skipped:
    """The corrupt records of one file: raised immediately, or counted if `on_error` is "skip"."""

    place: str
    on_error: str = "raise"
    count: int = 0
    first: str = ""

    def add(self, line: int, error: InputError) -> None:
        """Raises the error, which contains the line; or counts it and keeps the first."""
        if self.on_error == "raise":
            raise error
        self.count += 1
        self.first = self.first or str(error)

    def with_remedy(self, sentence: str) -> str:
        """Adds the advice to skip records to an error message, if errors stop the reading."""
        return sentence if self.on_error == "skip" else sentence + REMEDY

    def report(self) -> None:
        """Logs the number of skipped records, if any."""
        if self.count:
            records = counted(self.count, "corrupt record was", "corrupt records were")
            logger.warning("%s: %s skipped; the first: %s", self.place, records, self.first)


def parsed(
    records: Iterable[tuple[int, Given]], parse: Callable[[Given, int], Row], skipped: Skipped, unit: str = "line"
) -> Iterator[Row]:
    """Yields the rows of one file's numbered records; errors of `parse` go to `skipped`, with their place."""
    try:
        for number, record in records:
            try:
                row = parse(record, number)
            except InputError as error:
                skipped.add(number, InputError(skipped.with_remedy(f"{skipped.place}, {unit} {number}: {error}")))
            else:
                yield row
    finally:  # also if the reading stops at a limit
        skipped.report()


def check_text(text: Any, what: str) -> str:
    """Returns the text; raises `InputError` if it is not a text, blank, or not encodable as UTF-8."""
    if not isinstance(text, str):
        raise InputError(f"{what} is {kind_of(text)} instead of a text; give a text")
    if not text.strip():
        raise InputError(f"{what} is empty; give one with words in it")
    return check_characters(text, what)
