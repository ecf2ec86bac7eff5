"""Word files, books and other zip archives that cannot be read."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from typing import Any

import docx
import pytest

TYPES = '<Types><Override ContentType="{}"/></Types>'
OLD = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500)
OFFICE = "application/vnd.openxmlformats-officedocument."
OPEN = "application/vnd.oasis.opendocument."
CONTAINER = '<container><rootfiles><rootfile full-path="{}"/></rootfiles></container>'
PACKAGE = """<package><manifest><item id="a" href="{0}" media-type="application/xhtml+xml"/></manifest>
<spine><itemref idref="a"/></spine></package>"""
OUTSIDE = {"META-INF__container_xml": CONTAINER.format("../../etc/passwd")}
LOCKED = """<encryption><EncryptedData><EncryptionMethod Algorithm="http://www.w3.org/2001/04/xmlenc#aes128-cbc"/>
<CipherData><CipherReference URI="a.xhtml"/></CipherData></EncryptedData></encryption>"""


def archive(**parts: str | bytes) -> bytes:
    """A zip archive; two underlines stand for a slash, one for a point."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as made:
        for name, body in parts.items():
            name = {"types": "[Content_Types].xml"}.get(name, name.replace("__", "/").replace("_", "."))
            made.writestr(name, body)
    return data.getvalue()


def book(page: str = "<html><body><p>Text.</p></body></html>", package: str = PACKAGE, **more: str) -> bytes:
    container = CONTAINER.format("a.opf")
    parts = {"META-INF__container_xml": container, "a_opf": package.format("a.xhtml"), "a_xhtml": page, **more}
    return archive(**{name: body for name, body in parts.items() if body})


def word(*paragraphs: str) -> bytes:
    data, file = io.BytesIO(), docx.Document()
    for paragraph in paragraphs:
        file.add_paragraph(paragraph)
    file.save(data)
    return data.getvalue()


def without(data: bytes, part: str, instead: bytes | None = None) -> bytes:
    """A copy of an archive without one of its parts, or with another one in its place."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            if name != part or instead is not None:
                new.writestr(name, instead if name == part and instead is not None else old.read(name))
    return made.getvalue()


def one(name: str, data: bytes, says: str | list[str]) -> dict[str, Any]:
    return {"files": {name: data}, "run": ["summarize", name], "says": says}


def office(name: str, kind: str, says: str | list[str]) -> dict[str, Any]:
    return one(name, archive(types=TYPES.format(f"{OFFICE}{kind}+xml")), says)


def bomb() -> bytes:
    """A book of a third of a megabyte whose one part is 300 MiB of spaces."""
    data = io.BytesIO(book())
    with zipfile.ZipFile(data, "a", zipfile.ZIP_DEFLATED) as made, made.open("b.xhtml", "w", force_zip64=True) as part:
        for _ in range(300):
            part.write(b" " * (1 << 20))
    return data.getvalue()


WORD = word("A sentence stands here. Another one follows.")
CASES: dict[str, dict[str, Any]] = {
    "a Word file cut off": one("a.docx", WORD[: len(WORD) // 2], "a.docx is damaged"),
    "a Word file without its text": one("a.docx", without(WORD, "word/document.xml"), "a.docx is damaged"),
    "a Word file of no XML": one("a.docx", without(WORD, "word/document.xml", b"<w:document"), "a.docx is damaged"),
    "a Word file of other XML": one("a.docx", without(WORD, "word/document.xml", b"<a/>"), "a.docx is damaged"),
    "a Word file without words": one("a.docx", word(), "a.docx holds no text"),
    "a text called .docx": one("a.docx", b"Just a text.", ["a.docx is not a Word file", "rename"]),
    "a locked Word file": one(
        "a.docx",
        OLD + "EncryptedPackage".encode("utf-16-le"),
        ["locked with a password", "save a copy without one"],
    ),
    "an old Word file": one("a.doc", OLD, ["old Microsoft Office", ".docx"]),
    "a Word file with macros": one(
        "a.docm", archive(types=TYPES.format("application/vnd.ms-word.document.macroEnabled.main+xml")), "macros"
    ),
    "a Word template": office("a.dotx", "wordprocessingml.template.main", "template"),
    "a workbook": office("a.xlsx", "spreadsheetml.sheet.main", "a.xlsx is damaged"),
    "slides": office("a.pptx", "presentationml.presentation.main", "a.pptx is damaged"),
    "an OpenDocument text": one("a.odt", archive(mimetype=f"{OPEN}text"), "a.odt is damaged"),
    "an OpenDocument sheet called .docx": one("a.docx", archive(mimetype=f"{OPEN}spreadsheet"), "a.docx is damaged"),
    "an OpenDocument presentation": one("a.odp", archive(mimetype=f"{OPEN}presentation"), ["presentation", ".pptx"]),
    "a PowerPoint template": office("a.potx", "presentationml.template.main", ["template", ".pptx"]),
    "an archive of files": one("a.zip", archive(a_txt="Text."), ["zip archive", "unpack it"]),
    "a book cut off": one("a.epub", book()[:300], "a.epub is damaged"),
    "a book without package": one("a.epub", book(a_opf=""), ["a.epub is damaged", "a.opf"]),
    "a package outside": one("a.epub", book(**OUTSIDE), "damaged"),
    "a book without chapters": one("a.epub", book(package="<package/>"), "a.epub holds no text"),
    "a chapter outside": one("a.epub", book(a_opf=PACKAGE.format("../../../etc/passwd")), "a.epub holds no text"),
    "a book of pictures": one("a.epub", book("<html><body><img src='a.png'/></body></html>"), "a.epub holds no text"),
    "a locked book": one("a.epub", book(**{"META-INF__encryption_xml": LOCKED}), ["encrypted by its seller", "DRM"]),
    "a book of no XML": one("a.epub", book(a_opf="\0\1"), "a.epub is damaged"),
    "entities of entities": one(
        "a.epub",
        book(
            "<!DOCTYPE a [<!ENTITY b 'bbbbbbbbbb'><!ENTITY c '&b;&b;&b;&b;&b;&b;&b;&b;'>]><html><body>&c;</body></html>"
        ),
        "a.epub holds no text",
    ),
    "an empty .docx": one("a.docx", b"", "a.docx is empty"),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_fault(case: dict[str, Any], check_fault: Callable[..., str]) -> None:
    check_fault(**case)


def test_a_trap_is_not_unpacked(check_fault: Callable[..., str]) -> None:
    check_fault(**one("a.epub", bomb(), ["unpacks to 300 MiB", "too much"]))
