"""The documents in a file of each kind, as streams: text, JSON Lines, Parquet, Hugging Face data sets; and a text that
is one file, cut by position into training, validation and test part, such as enwik8 and text8 as published.

Both of these are 100 million bytes, of which the first 90 million are trained on, 5 million are for validation and the
last 5 million are the test (Longformer, Beltagy et al. 2020, and all before it). A character belongs to the part in
which its first byte lies, so that every part is UTF-8.
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
from longspan.data.fields import Skipped, kind_of
from longspan.data.jsonl import UNREADABLE, check_regular, lines_of, open_bytes, unreadable
from longspan.data.sources import split_of
from longspan.data.tables import open_parquet, read_records
from longspan.data.zipped import DAMAGED, PACKED
from longspan.errors import InputError
from longspan.imports import require

TEXT_FIELDS = ("text", "content", "document", "body", "article", "article_text", "source", "raw_content")
"""Fields that hold a document, the first one found is taken."""

READ = 1 << 18
"""Characters read at once."""


def text_documents(path: Path, unit: str) -> Iterator[Iterator[str]]:
    """Documents of a UTF-8 text file, each as a stream of texts; `unit` as in `Corpus`."""
    if unit == "file":
        yield _read_file(path, lambda file: iter(lambda: file.read(READ), ""))
        return
    lines = _read_file(path, lambda file: lines_of(file, path))
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
        from longspan.data.documents import Choice
        from longspan.data.summaries.readers import detect_layout, parse_record

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


def _read_file(path: Path, parts: Callable[[io.TextIOWrapper], Iterable[str]]) -> Iterator[str]:
    """The parts of a UTF-8 file, compressed or not."""
    try:
        with io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig") as file:
            yield from parts(file)
    except UNREADABLE as error:
        raise unreadable(path, error) from None


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


logger = logging.getLogger(__name__)

PUBLISHED = {"enwik8": 100_000_000, "text8": 100_000_000}
"""Files by name, and how many bytes they have; each may lie in NAME.zip, as it is published."""
PERCENT = {"train": (0, 90), "validation": (90, 95), "test": (95, 100)}
"""Where each part begins and ends."""


def published_file(source: str) -> Path | None:
    """The file of enwik8 or text8 that a source names by itself, its folder or its folder in LONGSPAN_DATA."""
    given, root = Path(source), os.environ.get("LONGSPAN_DATA")
    for path in (given, *([Path(root) / given] if root and not given.is_absolute() else [])):
        name = path.name.removesuffix(".zip")
        if name in PUBLISHED:
            for candidate in (path, path.with_name(f"{name}.zip"), path / name, path / f"{name}.zip"):
                if candidate.is_file():
                    return candidate
    return None


def part_texts(path: Path, split: str, *, any_size: bool) -> Iterator[str]:
    """The texts of one part of a UTF-8 file, plain, `.zip`, `.gz` or `.xz`; line ends stay as they are.

    Args:
        path: the file.
        split: "train", "validation" or "test", or as these are called elsewhere.
        any_size: cut in proportion, whatever the size; False refuses all but that of the published file.

    Raises:
        InputError: another split, another size, bytes that are no UTF-8, an archive of several files, or a damaged one.
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
    """The file, decompressed on the way, and how many bytes it has."""
    check_regular(path)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            inside = [each for each in archive.infolist() if not each.is_dir()]
            chosen = [each for each in inside if Path(each.filename).name == name] or inside
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
        if isinstance(file, gzip.GzipFile | lzma.LZMAFile):  # which say only when they are read how many there are
            with open_bytes(path) as unpacked:
                size = sum(len(block) for block in iter(lambda: unpacked.read(READ), b""))
        yield file, size


def _part_pieces(file: IO[bytes], start: int, end: int, path: Path) -> Iterator[str]:
    """The characters whose first byte is one of `start … end − 1`."""
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
    """Bytes without those in front that go on with a character."""
    first = next((place for place, byte in enumerate(block[:4]) if byte & 0xC0 != 0x80), min(len(block), 4))
    return block[first:] if first < 4 else block
