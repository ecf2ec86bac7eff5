"""The documents in a file of each kind, as streams: text, JSON Lines, Parquet, Hugging Face data sets."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from longspan.characters import check_characters
from longspan.data.fields import kind_of
from longspan.data.jsonl import UNREADABLE, lines_of, open_bytes, unreadable
from longspan.data.skipping import Skipped
from longspan.data.sources import split_of
from longspan.data.summaries.layouts import Choice, detect_layout, parse_record
from longspan.data.tables import open_parquet, read_records
from longspan.errors import InputError
from longspan.imports import require

TEXT_FIELDS = ("text", "content", "document", "body", "article", "article_text", "source", "raw_content")
"""Fields that hold a document, the first one found is taken."""

READ = 1 << 18
"""Characters read at once."""


def text_documents(path: Path, unit: str) -> Iterator[Iterator[str]]:
    """Documents of a UTF-8 text file, each as a stream of texts; `unit` as in `Corpus`."""
    if unit == "file":
        yield _read(path, lambda file: iter(lambda: file.read(READ), ""))
        return
    lines = _read(path, lambda file: lines_of(file, path))
    if unit == "line":
        yield from (iter((line,)) for line in lines)
    else:
        yield from (block for blank, block in groupby(lines, lambda line: not line.strip()) if not blank)


def json_documents(path: Path, field: str | None, skipped: Skipped) -> Iterator[str]:
    """The text of every record of a JSON Lines, CSV or TSV file."""
    records = read_records(path, skipped.add)
    read = ((number, lambda record=record: text_of(record, field)) for number, record in records)
    yield from _checked_texts(read, f"{path}, line", skipped)


def parquet_documents(path: Path, field: str | None, skipped: Skipped) -> Iterator[str]:
    """The text of every row of a Parquet file, read in batches of its one column."""
    with open_parquet(path) as file:
        column = field_of(file.schema_arrow.names, field, str(path))
        batches = file.iter_batches(batch_size=64, columns=[column])
        values = (value for batch in batches for value in batch.column(0))
        yield from _checked_texts(enumerate((value.as_py for value in values), 1), f"{path}, row", skipped)


def is_saved(folder: Path) -> bool:
    """Whether `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote the folder."""
    return (folder / "dataset_dict.json").is_file() or (
        (folder / "dataset_info.json").is_file() and (folder / "state.json").is_file()
    )


def disk_documents(folder: Path, split: str, field: str | None, skipped: Skipped) -> Iterator[str]:
    """The documents of a data set that was saved on disk; it stays there, memory-mapped."""
    datasets = require("datasets", extra="datasets", purpose="reading a saved Hugging Face data set")
    try:
        loaded = datasets.load_from_disk(str(folder))
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{folder} cannot be read as a saved data set ({_reason(error)}); save it again") from None
    if isinstance(loaded, datasets.DatasetDict):
        name = split_of(loaded, split)
        if name is None:
            raise InputError(f"{folder} has no split {split!r}; it has {', '.join(loaded)}")
        loaded = loaded[name]
    column = field_of(loaded.column_names, field, str(folder))
    rows = loaded.select_columns([column])
    read = ((lambda number=number: rows[number][column]) for number in range(len(rows)))
    yield from _checked_texts(enumerate(read, 1), f"{folder}, row", skipped)


def hub_documents(
    name: str, configuration: str | None, split: str, field: str | None, skipped: Skipped
) -> Iterator[str]:
    """The documents of a data set of the Hub, streamed: nothing of it is kept on disk but what it caches."""
    datasets = require("datasets", extra="datasets", purpose="reading a data set of the Hub")
    try:
        loaded = datasets.load_dataset(name, configuration, split=split, streaming=True)
        first = next(iter(loaded), None)
    except Exception as error:  # whatever the library or the network raises
        raise InputError(
            f"data set {name!r} of the Hub cannot be streamed ({_reason(error)}); check name, configuration and split"
        ) from error
    if first is not None:
        column = field_of(list(first), field, name)
        read = ((lambda row=row: row[column]) for row in loaded)
        yield from _checked_texts(enumerate(read, 1), f"{name}, row", skipped)


def text_of(record: dict[str, Any], field: str | None) -> Any:
    """The document in a record: its text field, or what the layouts of summarisation data sets take for it."""
    if field is None and not any(record.get(name) for name in TEXT_FIELDS):
        choice = Choice()
        try:
            return next(iter(parse_record(detect_layout(record, choice), record, choice, ""))).source
        except (InputError, KeyError, TypeError, AttributeError, ValueError, StopIteration):
            pass  # the sentence below says what is wrong
    return record[field_of(list(record), field, "the record", record)]


def field_of(names: list[str], field: str | None, place: str, record: dict[str, Any] | None = None) -> str:
    """The field that holds the text: the one asked for, or the first known one (that is not empty in `record`)."""
    if field is not None:
        if field not in names:
            raise InputError(f"{place} has no field {field!r}; it has {', '.join(names[:12])}")
        return field
    known = [name for name in TEXT_FIELDS if name in names]
    full = [name for name in known if record is None or record[name]]
    if not known:
        raise InputError(f"{place} has no field known to hold text; name it as text_field: {', '.join(names[:12])}")
    return (full or known)[0]


def _checked_texts(values: Iterable[tuple[int, Callable[[], Any]]], place: str, skipped: Skipped) -> Iterator[str]:
    """The texts that the numbered calls give; one that is none goes to `skipped` with its place."""
    for number, value in values:
        try:
            text = check_characters(_joined(value()), "the text")
        except UnicodeDecodeError as error:
            skipped.add(number, InputError(f"{place} {number}: not UTF-8 at byte {error.start}; repair the text"))
        except InputError as error:
            skipped.add(number, InputError(f"{place} {number}: {error}"))
        else:
            yield text


def _joined(value: Any) -> str:
    """A text, or a list of texts and lists as lines; nothing for null."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(_joined(item) for item in value)
    raise InputError(f"the text field holds {kind_of(value)}; it must be a text or a list of texts")


def _read(path: Path, parts: Callable[[io.TextIOWrapper], Iterable[str]]) -> Iterator[str]:
    """The parts of a UTF-8 file, compressed or not."""
    try:
        with io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig") as file:
            yield from parts(file)
    except UNREADABLE as error:
        raise unreadable(path, error) from None


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
