"""Documents of a file of each kind, as streams: text, JSON Lines, Parquet, Hugging Face data sets; and single-file
texts such as enwik8 and text8, split by position into training, validation and test part.

Both have 100 million bytes: 90 million for training, 5 million for validation and the last 5 million for testing
(Longformer, Beltagy et al. 2020, and earlier work). A character belongs to the part that contains its first byte, so
that every part is UTF-8.
"""

from __future__ import annotations

import codecs
import gzip
import io
import logging
import lzma
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import IO, Any

from longspan.characters import check_characters, counted
from longspan.data.fields import CORPUS_FIELDS, Skipped, joined_text
from longspan.data.jsonl import UNREADABLE, check_regular, lines_of, open_bytes, unreadable
from longspan.data.sources import split_of
from longspan.data.tables import open_parquet, read_records
from longspan.data.zipped import DAMAGED, PACKED
from longspan.errors import InputError
from longspan.imports import require

READ = 1 << 18
"""Characters read at once."""


def text_documents(path: Path, unit: str) -> Iterator[Iterator[str]]:
    """Yields the documents of a UTF-8 text file, each as a stream of texts; `unit` as in `Corpus`."""
    if unit == "file":
        yield _read_file(path, lambda file: iter(lambda: file.read(READ), ""))
        return
    lines = _read_file(path, lambda file: lines_of(file, path))
    if unit == "line":
        yield from (iter((line,)) for line in lines)
    else:
        yield from (block for blank, block in groupby(lines, lambda line: not line.strip()) if not blank)


def json_documents(path: Path, field: str | None, skipped: Skipped) -> Iterator[str]:
    """Yields the text of every record of a JSON Lines, CSV or TSV file."""
    records = read_records(path, skipped.add)
    read = ((number, lambda record=record: text_of(record, field)) for number, record in records)
    yield from _checked_texts(read, f"{path}, line", skipped)


def parquet_documents(path: Path, field: str | None, skipped: Skipped) -> Iterator[str]:
    """Yields the text of every row of a Parquet file, reading batches of that column."""
    with open_parquet(path) as file:
        column = field_of(file.schema_arrow.names, field, str(path))
        batches = file.iter_batches(batch_size=64, columns=[column])
        values = (value for batch in batches for value in batch.column(0))
        yield from _checked_texts(enumerate((value.as_py for value in values), 1), f"{path}, row", skipped)


def is_saved(folder: Path) -> bool:
    """Whether a folder was written by `Dataset.save_to_disk` or `DatasetDict.save_to_disk`."""
    return (folder / "dataset_dict.json").is_file() or (
        (folder / "dataset_info.json").is_file() and (folder / "state.json").is_file()
    )


def disk_documents(folder: Path, split: str, field: str | None, skipped: Skipped) -> Iterator[str]:
    """Yields the documents of a saved data set, memory-mapped."""
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
    """Yields the documents of a data set of the Hub, streamed; only the library's own cache is written to disk."""
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
    """Returns the document of a record: its text field, or the document field of a summarisation layout."""
    if field is None and not any(record.get(name) for name in CORPUS_FIELDS):
        from longspan.data.documents import Choice
        from longspan.data.summaries.readers import detect_layout, parse_record

        choice = Choice()
        try:
            return next(iter(parse_record(detect_layout(record, choice), record, choice, ""))).source
        except (InputError, KeyError, TypeError, AttributeError, ValueError, StopIteration):
            pass  # the error below explains the problem
    return record[field_of(list(record), field, "the record", record)]


def field_of(names: list[str], field: str | None, place: str, record: dict[str, Any] | None = None) -> str:
    """Returns the name of the text field: `field`, or the first known one (that is not empty in `record`)."""
    if field is not None:
        if field not in names:
            raise InputError(f"{place} has no field {field!r}; it has {', '.join(names[:12])}")
        return field
    known = [name for name in CORPUS_FIELDS if name in names]
    full = [name for name in known if record is None or record[name]]
    if not known:
        raise InputError(f"{place} has no field known to hold text; name it as text_field: {', '.join(names[:12])}")
    return (full or known)[0]


def _checked_texts(values: Iterable[tuple[int, Callable[[], Any]]], place: str, skipped: Skipped) -> Iterator[str]:
    """Yields the texts returned by the numbered calls; errors go to `skipped` with their place."""
    for number, value in values:
        try:
            text = check_characters(joined_text(value()), "the text")
        except UnicodeDecodeError as error:
            skipped.add(number, InputError(f"{place} {number}: not UTF-8 at byte {error.start}; repair the text"))
        except InputError as error:
            skipped.add(number, InputError(f"{place} {number}: {error}"))
        else:
            yield text


def _read_file(path: Path, parts: Callable[[io.TextIOWrapper], Iterable[str]]) -> Iterator[str]:
    """Yields the parts of a UTF-8 file, compressed or not."""
    try:
        with io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig") as file:
            yield from parts(file)
    except UNREADABLE as error:
        raise unreadable(path, error) from None


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


logger = logging.getLogger(__name__)

PUBLISHED = {"enwik8": 100_000_000, "text8": 100_000_000}
"""Published files by name, and their size in bytes; each may be in NAME.zip."""
PERCENT = {"train": (0, 90), "validation": (90, 95), "test": (95, 100)}
"""Range of each part in percent."""


def published_file(source: str) -> Path | None:
    """Returns the file of enwik8 or text8 for a source that names it, its folder, or its folder in LONGSPAN_DATA."""
    source_path, root = Path(source), os.environ.get("LONGSPAN_DATA")
    for path in (source_path, *([Path(root) / source_path] if root and not source_path.is_absolute() else [])):
        name = path.name.removesuffix(".zip")
        if name in PUBLISHED:
            for candidate in (path, path.with_name(f"{name}.zip"), path / name, path / f"{name}.zip"):
                if candidate.is_file():
                    return candidate
    return None


def part_texts(path: Path, split: str, *, any_size: bool) -> Iterator[str]:
    """Yields the texts of one part of a UTF-8 file, plain, `.zip`, `.gz` or `.xz`, with original line ends.

    Args:
        path: the file.
        split: "train", "validation" or "test", or an alias.
        any_size: cut in proportion to any size; False requires the size of the published file.

    Raises:
        InputError: another split or size, bytes that are not UTF-8, an archive of several files, or a damaged one.
    """
    part = split_of(PERCENT, split)
    if part is None:
        raise InputError(f"split={split!r} is none of a text that is cut by position; give one of {', '.join(PERCENT)}")
    name = path.name.removesuffix(".zip")
    try:
        with _opened(path, name) as (file, size):
            if not any_size and size != PUBLISHED[name]:
                raise InputError(
                    f"{path} holds {size:,} bytes, but {name} as it is published has {PUBLISHED[name]:,}; get it "
                    "again, or set task.text_split=position to cut what is there in the same proportions"
                )
            start, end = (size * percent // 100 for percent in PERCENT[part])
            yield from _part_pieces(file, start, end, path)
    except (*UNREADABLE, *DAMAGED) as error:
        raise unreadable(path, error) from None


@contextmanager
def _opened(path: Path, name: str) -> Iterator[tuple[Any, int]]:
    """Opens the file, decompressed, and returns its size in bytes."""
    check_regular(path)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            inside = [member for member in archive.infolist() if not member.is_dir()]
            chosen = [member for member in inside if Path(member.filename).name == name] or inside
            if len(chosen) != 1:
                raise InputError(
                    f"{path} holds {counted(len(inside), 'file')}, none of them named {name}; unpack the one to read"
                )
            if chosen[0].compress_type not in PACKED:
                raise InputError(f"{path} is packed in a way that is not read piece by piece; unpack it")
            with archive.open(chosen[0]) as file:
                yield file, chosen[0].file_size
        return
    with open_bytes(path) as file:
        size = path.stat().st_size
        if isinstance(file, gzip.GzipFile | lzma.LZMAFile):  # the size is known only after reading
            with open_bytes(path) as unpacked:
                size = sum(len(block) for block in iter(lambda: unpacked.read(READ), b""))
        yield file, size


def _part_pieces(file: IO[bytes], start: int, end: int, path: Path) -> Iterator[str]:
    """Yields the characters whose first byte is in `start … end − 1`."""
    left = start
    while left and (block := file.read(min(READ, left))):
        left -= len(block)
    decoder, left, begun = codecs.getincrementaldecoder("utf-8")(), end - start, start == 0
    while left and (block := file.read(min(READ, left))):
        left -= len(block)
        if not begun:
            block, begun = _without_rest(block), True
        if text := decoder.decode(block):
            yield text
    behind = file.read(3)
    if rest := decoder.decode(behind[: len(behind) - len(_without_rest(behind))]):
        yield rest
    cut = len(decoder.getstate()[0])
    if cut and behind:
        decoder.decode(b"", final=True)  # raises
    elif cut:
        logger.warning("%s ends within a character, which is left out (%s)", path, counted(cut, "byte"))


def _without_rest(block: bytes) -> bytes:
    """Removes continuation bytes at the beginning."""
    first = next((place for place, byte in enumerate(block[:4]) if byte & 0xC0 != 0x80), min(len(block), 4))
    return block[first:] if first < 4 else block
