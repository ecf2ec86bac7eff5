"""Tables: values separated by commas or tabs (.csv, .tsv), and workbooks (.xlsx, .xls, .ods)."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time
from io import BytesIO, StringIO
from typing import Any

from longspan.characters import mend
from longspan.data.text.archives.archive import Archive
from longspan.data.text.archives.open_document import content_of, rows_of_sheets
from longspan.data.text.blocks import Document, Part, document_from_parts
from longspan.data.text.kinds.source import Source
from longspan.data.text.kinds.table import FileKind
from longspan.errors import InputError, last_line
from longspan.imports import require

MOST_CELLS = 4_000_000
"""Of a table, empty ones between others too."""
SEPARATORS = ",;\t|"
SAMPLED = 20
"""Lines by which the separator is found."""

_OLD = b"\xd0\xcf\x11\xe0"
_WORKBOOK = "Workbook".encode("utf-16-le")
_PLACE = re.compile(rb'<(?:\w+:)?c\s[^>]{0,200}?\br="([A-Z]{1,3})([0-9]{1,7})"')


def _read_text(source: Source) -> Document:
    text = mend(source.text)[0]
    lines = text.split("\n", SAMPLED)[:SAMPLED]
    best = max(SEPARATORS, key=lambda mark: (sum(line.count(mark) for line in lines), -SEPARATORS.index(mark)))
    separator = "\t" if source.suffix == ".tsv" else best
    if text.startswith("sep=") and len(lines[0].strip()) == 5:  # as Excel writes it
        separator, text = lines[0][4], text.partition("\n")[2]
    try:
        rows = list(_bounded(csv.reader(StringIO(text, newline=""), delimiter=separator, strict=False), source.name))
    except csv.Error as error:
        raise InputError(f"{source.name} is no table ({error}); save it again, or rename it to .txt") from None
    return document_from_parts(_parts([("", rows)]), source.name)


def _bounded(rows: Iterable[Sequence[Any]], name: str) -> Iterator[list[str]]:
    cells = 0
    for row in rows:
        cells += len(row) + 1
        if cells > MOST_CELLS:
            raise InputError(
                f"{name} holds more than {MOST_CELLS:,} cells, too much for one document; cut it into parts"
            )
        yield [_shown(value) for value in row]


def _shown(value: Any) -> str:
    """A cell as a reader sees it, on one line."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, datetime):
        return value.date().isoformat() if value.time() == time() else value.isoformat(" ")
    if isinstance(value, date | time):
        return value.isoformat()
    return " ".join(str("" if value is None else value).replace("\0", "").split())


def _parts(sheets: Sequence[tuple[str, Sequence[Sequence[str]]]]) -> Iterator[Part]:
    """A heading for each sheet of several, and its rows as lines of cells between bars."""
    filled = [(title, [row for row in rows if any(row)]) for title, rows in sheets]
    filled = [(title, rows) for title, rows in filled if rows]
    for title, rows in filled:
        if len(filled) > 1 and title:
            yield "heading", title, 1
        yield "table", "\n".join(f"| {' | '.join(row)} |" for row in rows), 0


def _is_workbook(source: Source) -> bool:
    if source.archive is not None:
        return "spreadsheetml.sheet.main" in source.archive.types
    return source.head.startswith(_OLD) and source.suffix not in {".doc", ".ppt"} and _WORKBOOK in source.data


def _read_workbook(source: Source) -> Document:
    library = require("python_calamine", extra="documents", purpose="reading workbooks")
    if source.archive is not None:
        _check_size(source.archive)
    try:
        book = library.CalamineWorkbook.from_filelike(BytesIO(source.data))
        sheets = [
            (name, list(_bounded(book.get_sheet_by_name(name).to_python(), source.name)))
            for name in _shown_sheets(book, library)
        ]
    except InputError:
        raise
    except (library.CalamineError, OSError, ValueError) as error:
        if "assword" in str(error):
            raise InputError(f"{source.name} is locked with a password; save a copy without one") from None
        raise InputError(f"{source.name} is damaged ({last_line(error)}); save it or download it again") from None
    return document_from_parts(_parts(sheets), source.name)


def _shown_sheets(book: Any, library: Any) -> list[str]:
    """The names of the sheets that are not hidden, nor charts."""
    shown, sheet = library.SheetVisibleEnum.Visible, library.SheetTypeEnum.WorkSheet
    return [one.name for one in book.sheets_metadata if one.visible == shown and one.typ == sheet]


def _check_size(archive: Archive) -> None:
    """Unpack what will be read, in bounds, and refuse a sheet whose last cell lies so far out that the empty ones
    before it fill the memory."""
    for part in sorted(archive.names):
        if part.startswith("xl/") and part.endswith((".xml", ".rels")):
            rows = columns = 0
            for letters, number in _PLACE.findall(archive.part(part)):
                column = 0
                for letter in letters:
                    column = 26 * column + letter - 64
                rows, columns = max(rows, int(number)), max(columns, column)
            if rows * columns > MOST_CELLS:
                raise InputError(
                    f"{archive.name} holds a sheet of {rows:,} × {columns:,} cells, too much for one "
                    "document; save the part that matters as a file of its own"
                )


def _is_open_sheet(source: Source) -> bool:
    return source.archive is not None and source.archive.mime == "application/vnd.oasis.opendocument.spreadsheet"


def _read_open_sheet(source: Source) -> Document:
    assert source.archive is not None
    sheets = [(name, list(_bounded(rows, source.name))) for name, rows in rows_of_sheets(content_of(source.archive))]
    return document_from_parts(_parts(sheets), source.name)


VALUES = FileKind(
    name="values",
    title="a table",
    endings=(".csv", ".tsv"),
    read=_read_text,
    is_text=True,
    is_prose=False,
    parts="One table, its rows as lines of cells between bars; commas, semicolons, tabs or bars separate them. "
    "A table is no prose: `answer` and `chunks` read its rows, a note says that it has no sentences.",
    left_out="empty rows",
)

WORKBOOK = FileKind(
    name="workbook",
    title="an Excel workbook",
    endings=(".xlsx", ".xls"),
    signature=_is_workbook,
    sure=True,
    read=_read_workbook,
    is_prose=False,
    parts="A heading and a table for each sheet, as values: of a formula what it gave.",
    left_out="hidden sheets, charts, comments; macros and passwords are refused",
    library="python-calamine",
)

OPEN_SHEET = FileKind(
    name="open-sheet",
    title="an OpenDocument spreadsheet",
    endings=(".ods",),
    signature=_is_open_sheet,
    sure=True,
    read=_read_open_sheet,
    is_prose=False,
    parts="As an `.xlsx`.",
    left_out="comments",
    library="lxml",
)
