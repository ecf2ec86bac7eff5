"""Tables: rows as lines of cells, never sentences, and in bounds."""

from __future__ import annotations

import io
import zipfile
from datetime import datetime
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
import xlsxwriter

from longspan.errors import InputError
from longspan_documents.text.kinds import sheets
from longspan_documents.text.passages import units_of
from longspan_documents.text.reading import read, sentences_of

TABLE = "| Grain | Price |\n| Rye, old | 4 |\n| =1+1 | two lines |"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", 'Grain,Price\n"Rye, old",4\n\n=1+1,"two\nlines"\n'),
        ("a.csv", 'Grain;Price\r\n"Rye, old";4\r\n=1+1;"two\r\nlines"\r\n'),
        ("a.tsv", 'Grain\tPrice\nRye, old\t4\n=1+1\t"two\nlines"\n'),
        ("a.csv", 'sep=|\nGrain|Price\nRye, old|4\n=1+1|"two\nlines"\n'),
    ],
)
def test_values(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode())
    document = read(path)
    assert [(block.kind, block.text) for block in document.blocks] == [("table", TABLE)]
    assert sentences_of(document) == []
    assert [unit.text for unit in units_of(document)] == TABLE.split("\n")
    assert read(path, raw=True).text == text.replace("\r\n", "\n")


def workbook(path: Path) -> None:
    with xlsxwriter.Workbook(path) as book:
        first = book.add_worksheet("Prices")
        first.write_row(0, 0, ["Grain", "Price", "Day", "Sold"])
        first.write_row(1, 0, ["Rye", 4, None, True])
        first.write_datetime(1, 2, datetime(2021, 5, 3), book.add_format({"num_format": "yyyy-mm-dd"}))
        first.write_formula(2, 1, "=B2*2", None, 8.5)
        book.add_worksheet("Empty")
        second = book.add_worksheet("Days")
        second.write(4, 2, "Monday")
        book.add_worksheet("Secret").write(0, 0, "hidden")
        book.get_worksheet_by_name("Secret").hide()


def test_a_workbook(tmp_path: Path) -> None:
    workbook(tmp_path / "a.xlsx")
    assert [(block.kind, block.text) for block in read(tmp_path / "a.xlsx").blocks] == [
        ("heading", "Prices"),
        ("table", "| Grain | Price | Day | Sold |\n| Rye | 4 | 2021-05-03 | TRUE |\n|  | 8.5 |  |  |"),
        ("heading", "Days"),
        ("table", "| Monday |"),
    ]


def changed(data: bytes, part: str, old: str, new: str) -> bytes:
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as before, zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED) as after:
        for name in before.namelist():
            content = before.read(name)
            after.writestr(name, content.replace(old.encode(), new.encode()) if name == part else content)
    return result.getvalue()


def test_a_cell_far_out_is_refused(tmp_path: Path) -> None:
    """The empty cells before it would take hundreds of gigabytes."""
    path = tmp_path / "a.xlsx"
    workbook(path)
    path.write_bytes(changed(path.read_bytes(), "xl/worksheets/sheet1.xml", 'r="B3"', 'r="XFD1048576"'))
    with pytest.raises(InputError, match=r"a sheet of 1,048,576 × 16,384 cells"):
        read(path)


def test_damaged_and_locked_workbooks(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    workbook(path)
    data = path.read_bytes()
    path.write_bytes(changed(data, "xl/worksheets/sheet1.xml", "<sheetData>", "<sheetDat"))
    with pytest.raises(InputError, match=r"a\.xlsx is damaged"):
        read(path)
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=r"a\.xlsx is damaged"):
        read(path)
    path.write_bytes(b"\xd0\xcf\x11\xe0" + "EncryptedPackage".encode("utf-16-le"))
    with pytest.raises(InputError, match="locked with a password"):
        read(path)
    path.write_text("Grain,Price\n")
    with pytest.raises(InputError, match="is not an Excel workbook, despite its name"):
        read(path)


ODF = "urn:oasis:names:tc:opendocument:xmlns:"


def open_document(body: str, kind: str, manifest: str = "") -> bytes:
    spaces = " ".join(f'xmlns:{name}="{ODF}{name}:1.0"' for name in ("office", "text", "table", "style"))
    content = f"<office:document-content {spaces}><office:body>{body}</office:body></office:document-content>"
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as made:
        made.writestr("mimetype", f"application/vnd.oasis.opendocument.{kind}")
        made.writestr("META-INF/manifest.xml", manifest)
        made.writestr("content.xml", content)
    return data.getvalue()


def sheet(*rows: str) -> bytes:
    table = f'<table:table table:name="Prices">{"".join(rows)}</table:table>'
    return open_document(f"<office:spreadsheet>{table}</office:spreadsheet>", "spreadsheet")


def row(*cells: str, times: int = 1, empty: int = 0) -> str:
    inside = "".join(f"<table:table-cell><text:p>{escape(cell)}</text:p></table:table-cell>" for cell in cells)
    end = f'<table:table-cell table:number-columns-repeated="{empty}"/>' if empty else ""
    return f'<table:table-row table:number-rows-repeated="{times}">{inside}{end}</table:table-row>'


def test_an_open_document_sheet_does_not_reach_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.ods"
    path.write_bytes(sheet(row("Grain", "Price", empty=16_382), row("Rye", "4"), row(empty=16_384, times=1_048_574)))
    assert [(block.kind, block.text) for block in read(path).blocks] == [("table", "| Grain | Price |\n| Rye | 4 |")]


def test_a_row_that_is_repeated_without_end_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sheets, "MOST_CELLS", 25_000)
    path = tmp_path / "a.ods"
    path.write_bytes(sheet(*[row("a" * 9, times=9_999_999)] * 500))
    with pytest.raises(InputError, match="more than 25,000 cells"):
        read(path)


def test_a_table_of_no_values_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",,\n,,\n")
    with pytest.raises(InputError, match="holds no text"):
        read(tmp_path / "a.csv")
