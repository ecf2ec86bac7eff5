"""Files that are made to harm: each is read or refused in one sentence, soon and in little memory, whatever its kind.

They are small, and what they unfold to is not: a cell that is repeated, a slide that is named again and again, a cell
far out, tables in each other, marks that regular expressions could look for from every place.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import longspan
from longspan.errors import InputError
from longspan_documents.text.passages import passages_of, units_of
from longspan_documents.text.reading import read

OPEN = "urn:oasis:names:tc:opendocument:xmlns:"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
SLIDE = "http://schemas.openxmlformats.org/presentationml/2006/main"
DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
MEBI = 1 << 20
MAIL = "From: Ann <a@example.org>\nMessage-ID: <1@example.org>\nMIME-Version: 1.0\nSubject: The gate\n"


def packed(parts: dict[str, str]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return made.getvalue()


def opened(kind: str, body: str) -> bytes:
    names = " ".join(f'xmlns:{name}="{OPEN}{name}:1.0"' for name in ("office", "text", "table"))
    inside = f"<office:body><office:{kind}>{body}</office:{kind}></office:body>"
    content = f"<office:document-content {names}>{inside}</office:document-content>"
    return packed({"mimetype": f"application/vnd.oasis.opendocument.{kind}", "content.xml": content})


def office(main: str, kind: str, part: str, others: dict[str, tuple[str, str]]) -> bytes:
    """A file of Microsoft Office: its main part, and by their names others with their kinds."""
    content = f"application/vnd.openxmlformats-officedocument.{kind}.main+xml"
    types = f'<Types xmlns="{PACKAGE}/content-types"><Override PartName="/{main}" ContentType="{content}"/></Types>'
    folder, _, name = main.partition("/")
    related = "".join(f'<Relationship Id="r1" Type="{OFFICE}/{k}" Target="{n}"/>' for n, (k, _) in others.items())
    whole = f'<Relationship Id="r1" Type="{OFFICE}/officeDocument" Target="{main}"/>'
    return packed(
        {
            "[Content_Types].xml": types,
            "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships">{whole}</Relationships>',
            f"{folder}/_rels/{name}.rels": f'<Relationships xmlns="{PACKAGE}/relationships">{related}</Relationships>',
            main: part,
            **{f"{folder}/{other}": text for other, (_, text) in others.items()},
        }
    )


def workbook(rows: str) -> bytes:
    listed = '<sheets><sheet name="A" sheetId="1" r:id="r1"/></sheets>'
    listed = f'<workbook xmlns="{SHEET}" xmlns:r="{OFFICE}">{listed}</workbook>'
    sheet = f'<worksheet xmlns="{SHEET}"><sheetData>{rows}</sheetData></worksheet>'
    return office("xl/workbook.xml", "spreadsheetml.sheet", listed, {"worksheets/s.xml": ("worksheet", sheet)})


def slides(shapes: str, times: int = 1) -> bytes:
    names = f'xmlns:p="{SLIDE}" xmlns:a="{DRAWING}" xmlns:r="{OFFICE}"'
    listed = "".join('<p:sldId id="256" r:id="r1"/>' for _ in range(times))
    main = f"<p:presentation {names}><p:sldIdLst>{listed}</p:sldIdLst></p:presentation>"
    slide = f"<p:sld {names}><p:cSld><p:spTree>{shapes}</p:spTree></p:cSld></p:sld>"
    return office("ppt/presentation.xml", "presentationml.presentation", main, {"slides/s.xml": ("slide", slide)})


def word(body: str) -> bytes:
    main = f'<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>'
    return office("word/document.xml", "wordprocessingml.document", main, {})


CELL = "<table:table-cell{}><text:p>{}</text:p></table:table-cell>"
TABLE = ('<table:table table:name="A"><table:table-row{}>', "</table:table-row></table:table>")
REPEATED = ' table:number-{}-repeated="10000"'
LONG = "word " * (MEBI // 5)
FAR = "<row r={0}1{0}><c r={0}A1{0}><v>1</v></c></row><row r={0}1048576{0}><c {1}r={0}XFD1048576{0}><v>1</v></c></row>"
WORDS = "<a:p><a:r><a:t>{}</a:t></a:r></a:p>"
TOO_MUCH = "too much for one document"

REFUSED: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "cells repeated, text": (
        ".odt",
        lambda: opened("text", TABLE[0].format(REPEATED.format("rows")) + CELL.format("", LONG) + TABLE[1]),
        TOO_MUCH,
    ),
    "cells repeated, sheet": (
        ".ods",
        lambda: opened("spreadsheet", TABLE[0].format("") + CELL.format(REPEATED.format("columns"), LONG) + TABLE[1]),
        TOO_MUCH,
    ),
    "a far cell in other quotes": (".xlsx", lambda: workbook(FAR.format("'", "")), "does not survive"),
    "a far cell behind other marks": (
        ".xlsx",
        lambda: workbook(FAR.format('"', f'zz="{"y" * 300}" ')),
        "does not survive",
    ),
    "tables in each other, text": (
        ".odt",
        lambda: opened("text", (TABLE[0].format("") + "<table:table-cell>") * 60 + f"<text:p>{LONG}{LONG}</text:p>"
                       + ("</table:table-cell>" + TABLE[1]) * 60),
        TOO_MUCH,
    ),
    "paragraphs in each other": (
        ".docx",
        lambda: word("<w:tbl><w:tr><w:tc>" + "<w:p>" * 150 + f"<w:r><w:t>{LONG}</w:t></w:r>" + "</w:p>" * 150
                     + "</w:tc><w:tc/></w:tr></w:tbl>"),
        TOO_MUCH,
    ),
    "shapes in each other": (
        ".pptx",
        lambda: slides("<p:sp>" * 150 + f"<p:txBody>{WORDS.format(LONG)}</p:txBody>" + "</p:sp>" * 150),
        TOO_MUCH,
    ),
}  # fmt: skip
CELLS = [
    5,
    None,
    {"cell_type": ["x"], "source": "x"},
    {"cell_type": "heading", "level": 10**30, "source": 5},
    {"cell_type": "markdown", "source": ["It is open.", 5, None]},
]
READ: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "a slide named 20,000 times": (
        ".pptx",
        lambda: slides(f"<p:sp><p:txBody>{WORDS.format('The gate is open.')}</p:txBody></p:sp>", 20_000),
        "The gate is open.",
    ),
    "messages of wrong types": (
        ".json",
        lambda: json.dumps(
            {"messages": [
                {"from": "Ann", "text": [5, None, ["x"], {"text": 6}, {"text": ["y"]}, "The gate is open."]},
                {"from": ["Ben"], "text": "nobody"},
                {"from": "Cara\ud800", "text": "half \ud800 a sign"},
            ]}
        ).encode(),
        "Ann: The gate is open.\nCara\ufffd: half \ufffd a sign",
    ),
    "links without an end": (
        ".json",
        lambda: json.dumps(
            [{"user": "Ann", "text": "<http:" * 100_000}, {"user": "Ann", "text": "It is open."}]
        ).encode(),
        "It is open.",
    ),
    "styles without an end": (
        ".eml",
        lambda: (MAIL + "Content-Type: multipart/alternative; boundary=b\n\n--b\nContent-Type: text/plain\n\n"
                 "It is open.\n--b\nContent-Type: text/html\n\n" + "<style>" * 200_000 + "\n--b--\n").encode(),
        "It is open.",
    ),
    "voices without an end": (
        ".vtt", lambda: ("WEBVTT\n\n00:01.000 --> 00:02.000\nIt is open. " + "<v " * 200_000).encode(), "It is open."
    ),
    "pictures without an end": (".txt", lambda: ("It is open. " + "![" * 200_000).encode(), "It is open."),
    "formulas": (".csv", lambda: b"a,b\n=cmd|'/C calc'!A0,@SUM(1)\n+1+1,-2\n", "| =cmd|'/C calc'!A0 | @SUM(1) |"),
    "files beside it": (
        ".rst",
        lambda: b"It is open.\n\n.. include:: secret.txt\n\n.. literalinclude:: secret.txt\n\n.. raw:: html\n"
        b"   :file: secret.txt\n\n.. csv-table:: A\n   :file: secret.txt\n\n.. |x| include:: secret.txt\n\n|x| here\n",
        "It is open.",
    ),
    "files beside the page": (".man", lambda: b".TH A 1\n.SH NAME\n.so secret.txt\n.PP\nIt is open.\n", "It is open."),
    "files beside the source": (
        ".tex",
        lambda: rb"\documentclass{article}\begin{document}\input{secret.txt}\verbatiminput{secret.txt}It is open."
        rb"\end{document}",
        "It is open.",
    ),
    "absurd times": (
        ".srt",
        lambda: b"1\n99:99:99,999 --> 00:00:00,000\nIt is open.\n\n2\n00:00:00,000 --> 99:99:99,999\nIt is closed.\n",
        "It is open.",
    ),
    "cells of wrong types": (
        ".ipynb",
        lambda: json.dumps({"cells": CELLS}).encode(),
        "It is open.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_traps_are_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    ending, make, message = REFUSED[name]
    file = tmp_path / f"a{ending}"
    file.write_bytes(make())
    assert file.stat().st_size < MEBI // 4
    with pytest.raises(InputError, match=message) as refused:
        read(file)
    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", READ)
def test_what_can_be_read_is(name: str, tmp_path: Path) -> None:
    """And nothing of the file beside it."""
    ending, make, words = READ[name]
    (tmp_path / "secret.txt").write_text("root:x:0")
    file = tmp_path / f"a{ending}"
    file.write_bytes(make())
    document = read(file)
    assert passages_of(document, units_of(document))
    assert words in document.text
    assert "root:" not in document.text
    assert document.text.count("The gate is open.") < 2


def test_in_a_folder_they_are_passed_over(tmp_path: Path) -> None:
    """By `map` and `index`, each with its reason; the other file comes out."""
    from pyarrow import parquet

    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "good.md").write_text("# The gate\n\nThe gate is open. It was closed at night.\n")
    traps = list(REFUSED.values())[:3]
    for number, (ending, make, _) in enumerate(traps):
        (folder / f"trap{number}{ending}").write_bytes(make())
    mapped = longspan.map_documents("summarize", folder, tmp_path / "out", sentences=1, workers=0)
    rows = [row for part in sorted(mapped.folder.glob("*.parquet")) for row in parquet.read_table(part).to_pylist()]
    wrong = {Path(row["file"]).name: row["error"] for row in rows if row["error"]}
    assert len(rows) == len(traps) + 1
    assert len(wrong) == len(traps)
    assert all(name in reason for name, reason in wrong.items())
    library = longspan.index(folder, tmp_path / "index")
    assert library.added.documents == 1
    assert sum("passed over: " in note for note in library.notes) == len(traps)
