"""Tables: comma- or tab-separated values (.csv, .tsv), and workbooks (.xlsx, .xls, .ods)."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time
from io import BytesIO, StringIO
from typing import Any

from longspan.characters import mend
from longspan.errors import InputError, last_line
from longspan.imports import require
from longspan.workers import run_bounded
from longspan_documents.text.archives.archive import Archive
from longspan_documents.text.archives.open_document import rows_of_sheets
from longspan_documents.text.blocks import Document, Part, document_from_parts
from longspan_documents.text.kinds.source import Source
from longspan_documents.text.kinds.table import FileKind

MOST_CELLS = 4_000_000
"""Maximum cells of a table, including empty ones between others."""
LARGEST = 1 << 26
"""Maximum characters of all cells."""
MEMORY = 1 << 30
"""Memory limit, in bytes, of the process that reads a workbook, in addition to the file."""
SEPARATORS = ",;\t|"
SAMPLED = 20
"""Number of lines for detecting the separator."""

_OLD = b"\xd0\xcf\x11\xe0"
_WORKBOOK = "Workbook".encode("utf-16-le")
_PLACE = re.compile(rb'<(?:\w+:)?c\s[^>]{0,200}?\br="([A-Z]{1,3})([0-9]{1,7})"')


def _read_text(source: Source) -> Document:
    text = mend(source.text)[0]
    lines = text.split("\n", SAMPLED)[:SAMPLED]
    best = max(SEPARATORS, key=lambda mark: (sum(line.count(mark) for line in lines), -SEPARATORS.index(mark)))
    separator = "\t" if source.suffix == ".tsv" else best
    if text.startswith("sep=") and len(lines[0].strip()) == 5:  # written by Excel
        separator, text = lines[0][4], text.partition("\n")[2]
    try:
        rows = csv.reader(StringIO(text, newline=""), delimiter=separator, strict=False)
        sheets = _bounded([("", rows)], source.name)
    except (csv.Error, TypeError, ValueError) as error:  # TypeError and ValueError: an invalid separator
        raise InputError(f"{source.name} is no table ({error}); save it again, or rename it to .txt") from None
    return document_from_parts(_parts(sheets), source.name)


def _bounded(sheets: Iterable[tuple[str, Iterable[Sequence[Any]]]], name: str) -> list[tuple[str, list[list[str]]]]:
    """Returns all rows as displayed; raises `InputError` if there are too many cells or characters."""
    cells = characters = 0
    shown: list[tuple[str, list[list[str]]]] = []
    for title, rows in sheets:
        shown.append((title, []))
        for row in rows:
            cells += len(row) + 1
            characters += sum(len(value) for value in row if isinstance(value, str))
            if cells > MOST_CELLS or characters > LARGEST:
                most = f"{MOST_CELLS:,} cells" if cells > MOST_CELLS else f"{LARGEST >> 20} MiB of text"
                raise InputError(f"{name} holds more than {most}, too much for one document; cut it into parts")
            shown[-1][1].append([_shown(value) for value in row])
    return shown


def _shown(value: Any) -> str:
    """Returns a cell as displayed, on one line."""
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
    """Yields a heading for each of several sheets, and its rows as lines of cells between bars."""
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
    require("python_calamine", extra="documents", purpose="reading workbooks")
    if source.archive is not None:
        _check_size(source.archive)
    written = run_bounded(f"{__name__}:main", source.data, MEMORY + 4 * len(source.data), name=source.name)
    if written is None:
        raise InputError(
            f"{source.name} needs more than {MEMORY >> 20} MiB of memory to be read, or is damaged in a way that the "
            "reader does not survive; save the part that matters as a file of its own"
        )
    answer = json.loads(written)
    if "sheets" in answer:
        return document_from_parts(_parts(answer["sheets"]), source.name)
    if "large" in answer:
        raise InputError(f"{source.name} {answer['large']}")
    if "assword" in answer["reason"]:
        raise InputError(f"{source.name} is locked with a password; save a copy without one")
    raise InputError(f"{source.name} is damaged ({answer['reason']}); save it or download it again")


def main(data: bytes) -> str:
    """Returns the visible sheets of a workbook, without charts, as JSON, or the reason why it cannot be read.

    This runs in a separate process with limited memory: the library allocates every cell up to the last one, and aborts
    its process if memory runs out.
    """
    import python_calamine as library

    shown, sheet = library.SheetVisibleEnum.Visible, library.SheetTypeEnum.WorkSheet
    try:
        book = library.CalamineWorkbook.from_filelike(BytesIO(data))
        names = [entry.name for entry in book.sheets_metadata if entry.visible == shown and entry.typ == sheet]
        sheets = _bounded(((name, book.get_sheet_by_name(name).to_python()) for name in names), "")
    except InputError as error:
        return json.dumps({"large": str(error).strip()})
    except (library.CalamineError, OSError, ValueError) as error:
        return json.dumps({"reason": last_line(error)})
    return json.dumps({"sheets": sheets})


def _check_size(archive: Archive) -> None:
    """Decompresses the parts to read, with limits, and refuses a sheet whose last cell is so far away that the empty
    cells before it would fill the memory."""
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
    return document_from_parts(_parts(_bounded(rows_of_sheets(source.archive), source.name)), source.name)


VALUES = FileKind(
    name="values",
    title="a table",
    endings=(".csv", ".tsv"),
    read=_read_text,
    is_text=True,
    is_prose=False,
    parts=(
        "One table, with rows as lines of cells between bars; separators are commas, semicolons, tabs or "
        "bars. `answer` and `chunks` read its rows; for other commands, a note says that it has no sentences."
    ),
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
    parts="A heading and a table for each sheet; a formula is replaced by its saved value.",
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
    parts="Like `.xlsx`.",
    left_out="comments",
    library="lxml",
)
