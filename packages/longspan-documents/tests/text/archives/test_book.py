"""Electronic books: the order of the spine, what is left out, and files as they really are."""

from __future__ import annotations

import io
import zipfile

from longspan_documents.text.blocks import Document
from untidied import untidied

CONTAINER = """<?xml version="1.0"?>
<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container" version="1.0"><rootfiles>
<rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>"""
PACKAGE = """<?xml version="1.0" encoding="utf-8"?>
<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/" version="3.0">
<metadata><dc:title>The  Keeper</dc:title></metadata>
<manifest>
<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>
<item id="cover" href="cover.xhtml" media-type="application/xhtml+xml"/>
<item id="two" href="text/two.xhtml" media-type="application/xhtml+xml"/>
<item id="one" href="text/chapter%20one.xhtml" media-type="application/xhtml+xml"/>
<item id="rights" href="rights.xhtml" media-type="application/xhtml+xml"/>
<item id="extra" href="extra.xhtml" media-type="application/xhtml+xml"/>
<item id="style" href="a.css" media-type="text/css"/>
</manifest>
<spine><itemref idref="cover"/><itemref idref="nav"/><itemref idref="one"/><itemref idref="two"/>
<itemref idref="rights"/><itemref idref="extra" linear="no"/><itemref idref="style"/><itemref idref="lost"/></spine>
<guide><reference type="cover" href="cover.xhtml"/></guide>
</package>"""
PAGE = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops">
<head><title/><style>p {{}}</style></head>
<body{}>{}</body></html>"""
ONE = PAGE.format(
    "", "<h1>I<br/>The gate</h1><p>It is&nbsp;opened <a id='p1'/>in the <i>morning</i>.</p><p>Nobody knows why.</p>"
)
TWO = PAGE.format(
    "",
    "<section epub:type='chapter'><h2>Evening</h2><ul><li>a lamp</li><li>oil</li></ul>"
    "<section epub:type='toc'><p>Page one</p></section>"
    "<aside epub:type='footnote'>A note.</aside></section>",
)
RIGHTS = PAGE.format(" epub:type='copyright-page'", "<p>All rights are reserved.</p>")


def book(**changes: str | bytes) -> Document:
    """The book above, read; `changes` replace its parts."""
    parts: dict[str, str | bytes] = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": CONTAINER,
        "OEBPS/book.opf": PACKAGE,
        "OEBPS/nav.xhtml": PAGE.format("", "<nav><a href='one.xhtml'>The gate</a></nav>"),
        "OEBPS/cover.xhtml": PAGE.format("", "<p>A cover</p>"),
        "OEBPS/text/chapter one.xhtml": ONE,
        "OEBPS/text/two.xhtml": TWO,
        "OEBPS/rights.xhtml": RIGHTS,
        "OEBPS/extra.xhtml": PAGE.format("", "<p>Answers to the questions</p>"),
    }
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as made:
        for name, body in {**parts, **changes}.items():
            made.writestr(name, body)
    document = untidied(data.getvalue())
    assert all(document.text[slice(*block.body.span(0, len(block.text)))] == block.text for block in document.blocks)
    return document


def test_chapters_in_the_order_of_the_spine() -> None:
    document = book()
    assert document.title == "The Keeper"
    assert [(block.kind, block.level, " ".join(block.text.split())) for block in document.blocks] == [
        ("heading", 1, "I The gate"),
        ("paragraph", 0, "It is opened in the morning."),
        ("paragraph", 0, "Nobody knows why."),
        ("heading", 2, "Evening"),
        ("item", 1, "a lamp"),
        ("item", 1, "oil"),
        ("note", 0, "A note."),
    ]


def test_pages_in_other_encodings_and_with_faults() -> None:
    latin = ONE.replace("utf-8", "iso-8859-1").replace("morning", "März").encode("latin-1")
    wide = PAGE.split("\n", 1)[1].format("", "<p>Wide letters.</p>").encode("utf-16")
    document = book(**{"OEBPS/text/chapter one.xhtml": latin, "OEBPS/text/two.xhtml": wide})
    assert [" ".join(block.text.split()) for block in document.blocks][1::2] == [
        "It is opened in the März.",
        "Wide letters.",
    ]
    faulty = PAGE.format("", "<p>One & two <b>three</p><p>Four")
    document = book(**{"OEBPS/text/chapter one.xhtml": faulty})
    assert [block.text for block in document.blocks][:2] == ["One & two three", "Four"]


def test_hidden_fonts_do_not_lock_a_book() -> None:
    fonts = """<encryption><EncryptedData><EncryptionMethod Algorithm="http://www.idpf.org/2008/embedding"/>
    <CipherData><CipherReference URI="OEBPS/font.otf"/></CipherData></EncryptedData></encryption>"""
    assert len(book(**{"META-INF/encryption.xml": fonts}).blocks) == 7


def test_raised_and_lowered_letters() -> None:
    page = PAGE.format(
        "", "<p>It cost $320<sup><a href='#n1'>1</a></sup> in all. It holds 10<sup>6</sup> m<sup>3</sup>.</p>"
    )
    assert book(**{"OEBPS/text/chapter one.xhtml": page}).blocks[0].text == ("It cost $320 in all. It holds 10^6 m^3.")
