"""Word files that python-docx writes, and the marks that it has no words for, put in by hand."""

from __future__ import annotations

import copy
import io
import re
from pathlib import Path
from typing import Any

import docx
import pytest
from docx.opc.constants import RELATIONSHIP_TYPE
from docx.opc.packuri import PackURI
from docx.opc.part import Part
from docx.oxml import parse_xml

from longspan.errors import InputError
from longspan_documents.text.archives import word
from longspan_documents.text.blocks import Document
from longspan_documents.text.kinds.source import Source
from longspan_documents.text.reading import document_in, read, sentences_of
from untidied import untidied

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


def blocks(file: Any) -> list[tuple[str, int, str]]:
    data = io.BytesIO()
    file.save(data)
    document = untidied(data.getvalue())
    assert all(document.text[slice(*block.body.span(0, len(block.text)))] == block.text for block in document.blocks)
    return [(block.kind, block.level, block.text) for block in document.blocks]


def append(file: Any, xml: str) -> None:
    """A paragraph with the runs in `xml`."""
    file.add_paragraph()._p.append(parse_xml(f"<w:p {W}>{xml}</w:p>"))
    outer = file.paragraphs[-1]._p
    outer.addprevious(outer[-1])
    outer.getparent().remove(outer)


def test_headings_paragraphs_and_lists() -> None:
    file = docx.Document()
    file.add_heading("The keeper", 0)
    file.add_heading("The gate", 1)
    file.add_paragraph("It is opened in the morning.\tNobody\nknows why.")
    file.add_heading("At night", 2)
    file.add_paragraph("a lamp", style="List Bullet")
    file.add_paragraph("oil for it", style="List Bullet 2")
    file.add_paragraph("first the wick", style="List Number")
    file.add_paragraph("The lamp in winter", style="Caption")
    file.add_paragraph("It burns well.", style="Quote")
    file.sections[0].header.paragraphs[0].text = "A head of every page"
    file.sections[0].footer.paragraphs[0].text = "A foot of every page"
    assert blocks(file) == [
        ("heading", 1, "The keeper"),
        ("heading", 1, "The gate"),
        ("paragraph", 0, "It is opened in the morning. Nobody\nknows why."),
        ("heading", 2, "At night"),
        ("item", 1, "a lamp"),
        ("item", 2, "oil for it"),
        ("item", 1, "first the wick"),
        ("caption", 0, "The lamp in winter"),
        ("paragraph", 0, "It burns well."),
    ]


def test_tables_are_rows_and_layouts_are_paragraphs() -> None:
    file = docx.Document()
    table = file.add_table(2, 2)
    for cell, text in zip(
        (cell for row in table.rows for cell in row.cells), ("Sheep", "Gates", "40", "1"), strict=True
    ):
        cell.text = text
    wide = file.add_table(1, 2)
    wide.cell(0, 0).text = "Short."
    wide.cell(0, 1).text = "The text of a whole column that somebody has put into a cell. " * 10
    merged = file.add_table(1, 2)
    merged.cell(0, 0).merge(merged.cell(0, 1)).text = "One cell."
    assert blocks(file) == [
        ("table", 0, "| Sheep | Gates |\n| 40 | 1 |"),
        ("paragraph", 0, "Short."),
        ("paragraph", 0, ("The text of a whole column that somebody has put into a cell. " * 10).strip()),
        ("paragraph", 0, "One cell."),
    ]


def test_changes_fields_and_hidden_text() -> None:
    """What a reader of the printed page sees: insertions and results of fields, neither deletions nor hidden text."""
    file = docx.Document()
    text = "<w:r><w:t xml:space='preserve'>{}</w:t></w:r>".format
    append(
        file,
        text("The gate is ")
        + "<w:del><w:r><w:delText>never </w:delText></w:r></w:del>"
        + f"<w:ins>{text('always ')}</w:ins>"
        + "<w:r><w:rPr><w:vanish/></w:rPr><w:t>secretly </w:t></w:r>"
        + "<w:r><w:instrText>PAGEREF _1</w:instrText></w:r>"
        + f"<w:hyperlink>{text('open')}</w:hyperlink>"
        + "<w:r><w:noBreakHyphen/></w:r>"
        + f"<w:sdt><w:sdtContent>{text('ended')}</w:sdtContent></w:sdt>"
        + f"<w:moveFrom>{text(' twice')}</w:moveFrom>",
    )
    assert blocks(file) == [("paragraph", 0, "The gate is always open-ended")]


def test_boxes_and_notes_stand_behind_their_paragraph() -> None:
    file = docx.Document()
    choice = f"<w:txbxContent {W}><w:p><w:r><w:t>In a box.</w:t></w:r></w:p></w:txbxContent>"
    mc = "http://schemas.openxmlformats.org/markup-compatibility/2006"
    append(
        file,
        "<w:r><w:t>Beside a box.</w:t></w:r><w:r><w:footnoteReference w:id='2'/></w:r>"
        f"<w:r><mc:AlternateContent xmlns:mc='{mc}'><mc:Choice>{choice}</mc:Choice>"
        f"<mc:Fallback>{choice}</mc:Fallback></mc:AlternateContent></w:r>",
    )
    notes = f"<w:footnotes {W}><w:footnote w:id='2'><w:p><w:r><w:t>A note.</w:t></w:r></w:p></w:footnote></w:footnotes>"
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.footnotes+xml"
    part = Part(PackURI("/word/footnotes.xml"), kind, notes.encode(), file.part.package)
    file.part.relate_to(part, RELATIONSHIP_TYPE.FOOTNOTES)
    file.add_paragraph("The end.")
    assert blocks(file) == [
        ("paragraph", 0, "Beside a box."),
        ("paragraph", 0, "In a box."),
        ("note", 0, "A note."),
        ("paragraph", 0, "The end."),
    ]


def test_styles_by_outline_and_by_what_they_are_based_on() -> None:
    file = docx.Document()
    mine = file.styles.add_style("Überschrift meines Hauses", docx.enum.style.WD_STYLE_TYPE.PARAGRAPH)
    mine.base_style = file.styles["Heading 3"]
    file.add_paragraph("Third", style=mine)
    file.add_paragraph("By itself")._p.get_or_add_pPr().append(parse_xml(f"<w:outlineLvl {W} w:val='1'/>"))
    file.add_paragraph("No item", style="List Bullet")._p.get_or_add_pPr().append(
        parse_xml(f"<w:numPr {W}><w:numId w:val='0'/></w:numPr>")
    )
    assert blocks(file) == [("heading", 3, "Third"), ("heading", 2, "By itself"), ("paragraph", 0, "No item")]


def test_title_speakers_and_names_without_meaning(tmp_path: Path) -> None:
    """Known by its contents; the title is the one that the file tells; turns are turns."""
    file = docx.Document()
    file.core_properties.title = "Minutes of the gate"
    for text in ("open it?", "Yes.", "And close it.", "Not today.", "Why?", "It is wet."):
        file.add_paragraph(f"{'Anna' if text.endswith('?') or 'close' in text else 'Bert'}: {text}")
    file.save(tmp_path / "minutes")
    document = read(tmp_path / "minutes")
    assert document.title == "Minutes of the gate"
    assert [(sentence.speaker, sentence.text) for sentence in sentences_of(document)][:2] == [
        ("Anna", "open it?"),
        ("Bert", "Yes."),
    ]


def test_raised_and_lowered_letters() -> None:
    file = docx.Document()
    raised = '<w:r><w:rPr><w:vertAlign w:val="superscript"/></w:rPr><w:t>{}</w:t></w:r>'.format
    lowered = '<w:r><w:rPr><w:vertAlign w:val="subscript"/></w:rPr><w:t>{}</w:t></w:r>'.format
    plain = '<w:r><w:t xml:space="preserve">{}</w:t></w:r>'.format
    append(file, plain("It cost $320") + raised("1") + plain(" in all. It holds 10") + raised("6") + plain(" litres."))
    append(
        file, plain("The mayor agreed.") + raised("1") + raised("2") + plain(" H") + lowered("2") + plain("O is wet.")
    )
    moved = '<w:r><w:rPr><w:position w:val="8"/></w:rPr><w:t>2</w:t></w:r>'
    styled = '<w:r><w:rPr><w:rStyle w:val="Mark"/></w:rPr><w:t>3</w:t></w:r>'
    append(file, plain("A word") + moved + plain(" and another") + styled + plain("."))
    style = f'<w:style {W} w:type="character" w:styleId="Mark"><w:name w:val="Mark"/><w:basedOn w:val="Up"/></w:style>'
    base = (
        f'<w:style {W} w:type="character" w:styleId="Up"><w:name w:val="Up"/>'
        '<w:rPr><w:vertAlign w:val="superscript"/></w:rPr></w:style>'
    )
    file.styles.element.extend([parse_xml(style), parse_xml(base)])
    assert [text for _, _, text in blocks(file)] == [
        "It cost $320 in all. It holds 10^6 litres.",
        "The mayor agreed. H₂O is wet.",
        "A word and another.",
    ]


# What is embedded (altChunk)

CHUNK = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/aFChunk"
R = 'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'


def saved(file: Any) -> bytes:
    data = io.BytesIO()
    file.save(data)
    return data.getvalue()


def opened(file: Any, **options: bool) -> Document:
    source = Source(name="the file", suffix=".docx", head=saved(file)[:8192], content=saved(file), **options)
    return document_in(source)


def embed(file: Any, data: bytes, name: str, kind: str, into: Any = None) -> None:
    """A chunk behind the last paragraph, or in a cell."""
    relation = file.part.relate_to(Part(PackURI(f"/word/{name}"), kind, data, file.part.package), CHUNK)
    chunk = parse_xml(f'<w:altChunk {W} {R} r:id="{relation}"/>')
    if into is None:
        file.element.body.insert(len(file.element.body) - 1, chunk)
    else:
        into._tc.insert(len(into._tc) - 1, chunk)


PAGE = b"<html><body><h2>By the mill</h2><p>The gate is <b>open</b> today.</p><ul><li>a lamp</li></ul></body></html>"
MHT = (
    b'MIME-Version: 1.0\nContent-Type: multipart/related; type="text/html"; boundary="----b"\n\n------b\n'
    b'Content-Type: text/html; charset="utf-8"\nContent-Transfer-Encoding: quoted-printable\n'
    b"Content-Location: file:///C:/fake/document.html\n\n<p>The weir holds, caf=C3=A9.</p>\n------b--\n"
)
RTF = rb"{\rtf1\ansi{\fonttbl{\f0 Arial;}}\pard The rye is high.\par The gate is shut.\par}"


def test_embedded_documents_stand_where_the_file_has_them() -> None:
    inner = docx.Document()
    inner.add_heading("In the inner file", 2)
    inner.add_paragraph("The keeper sleeps.")
    file = docx.Document()
    file.add_paragraph("Before.")
    embed(file, PAGE, "a.html", "text/html")
    embed(file, MHT, "b.mht", "message/rfc822")
    file.add_paragraph("Between.")
    embed(file, RTF, "c.rtf", "application/rtf")
    embed(file, "Plain, of café.\n\nTwo.".encode(), "d.txt", "text/plain")
    embed(
        file, saved(inner), "e.docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    )
    file.add_paragraph("Behind.")
    document = opened(file)
    assert [(block.kind, block.text) for block in document.blocks] == [
        ("paragraph", "Before."),
        ("heading", "By the mill"),
        ("paragraph", "The gate is open today."),
        ("item", "a lamp"),
        ("paragraph", "The weir holds, café."),
        ("paragraph", "Between."),
        ("paragraph", "The rye is high."),
        ("paragraph", "The gate is shut."),
        ("paragraph", "Plain, of café."),
        ("paragraph", "Two."),
        ("heading", "In the inner file"),
        ("paragraph", "The keeper sleeps."),
        ("paragraph", "Behind."),
    ]
    assert document.note is None


def test_a_file_that_is_one_chunk_as_programs_write_it() -> None:
    """The type of the part tells what it is where its name does not; a chunk in a cell is read too."""
    file = docx.Document()
    embed(file, PAGE, "chunk1.dat", "text/html")
    table = file.add_table(1, 2)
    table.cell(0, 0).text = "Left."
    embed(file, RTF, "chunk2.dat", "application/rtf", table.cell(0, 1))
    assert [block.text for block in opened(file).blocks] == [
        "By the mill",
        "The gate is open today.",
        "a lamp",
        "Left.",
        "The rye is high.",
        "The gate is shut.",
    ]


@pytest.mark.parametrize(
    ("data", "name", "kind", "reason"),
    [
        (b"PK\x03\x04 broken", "a.docx", "application/x", r"a\.docx is damaged"),
        (RTF[:4] + b"\xff" * 9, "a.rtf", "application/rtf", r"a\.rtf "),
        (b"\x89PNG\r\n\x1a\n" + bytes(90), "a.html", "text/html", r"a\.html is an image"),
        (
            b"MIME-Version: 1.0\nFrom: b@example.org\nSubject: a\n\nWords.",
            "a.txt",
            "text/plain",
            r"a\.txt is a(?:n e-)?mail",
        ),
        (b"", "a.html", "text/html", "empty or missing"),
    ],
)
def test_damaged_chunks_are_named_and_the_rest_is_read(data: bytes, name: str, kind: str, reason: str) -> None:
    file = docx.Document()
    file.add_paragraph("The gate is open.")
    embed(file, data, name, kind)
    document = opened(file)
    assert [block.text for block in document.blocks] == ["The gate is open."]
    assert document.note is not None
    match = rf"the embedded document {name} was not read: .*{reason}"
    assert re.search(match, document.note), document.note


def test_chunks_outside_the_file_and_too_many_or_too_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    file = docx.Document()
    file.add_paragraph("The gate is open.")
    relation = file.part.relate_to("https://example.org/a.html", CHUNK, is_external=True)
    file.element.body.insert(0, parse_xml(f'<w:altChunk {W} {R} r:id="{relation}"/>'))
    assert opened(file).note == "the embedded document number 1 was not read: it lies outside the file"

    deep = docx.Document()
    deep.add_paragraph("Level 4.")
    for level in (3, 2, 1):
        outer = docx.Document()
        outer.add_paragraph(f"Level {level}.")
        embed(outer, saved(deep), f"inner{level}.docx", "application/x")
        deep = outer
    document = opened(deep)
    assert [block.text for block in document.blocks] == ["Level 1.", "Level 2.", "Level 3."]
    assert document.note == (
        "the embedded document inner3.docx was not read: inner3.docx is a Word file in a Word file, more than 3 deep"
    )

    many = docx.Document()
    many.add_paragraph("The gate is open.")
    monkeypatch.setattr(word, "MOST_CHUNKS", 3)
    for number in range(5):
        embed(many, b"Number %d." % number, f"n{number}.txt", "text/plain")
    document = opened(many)
    assert [block.text for block in document.blocks][1:] == ["Number 0.", "Number 1.", "Number 2."]
    assert document.note == "it holds more than 3 embedded documents; the others were not read"


def test_embedded_files_share_the_bounds_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """One part that is taken in again and again, and a bomb in a file in the file."""
    monkeypatch.setattr("longspan_documents.text.archives.archive.LARGEST_TEXT", 1 << 20)
    file = docx.Document()
    file.add_paragraph("The gate is open.")
    embed(file, b"Words. " * 60_000, "a.txt", "text/plain")
    file.element.body.extend([copy.deepcopy(file.element.body[1]) for _ in range(5)])
    with pytest.raises(InputError, match="more than 1 MiB of text and marks"):
        opened(file)
    inner = docx.Document()
    inner.add_paragraph("a " * 900_000)
    outer = docx.Document()
    outer.add_paragraph("The gate is open.")
    embed(outer, saved(inner), "i.docx", "application/x")
    assert "i.docx holds more than 1 MiB" in str(opened(outer).note)


def test_a_file_whose_only_text_is_a_broken_chunk_is_refused() -> None:
    file = docx.Document()
    embed(file, b"PK\x03\x04 broken", "a.docx", "application/x")
    with pytest.raises(InputError, match=r"holds no text \(the embedded document a\.docx was not read"):
        opened(file)


# Heads and feet


def test_heads_and_feet_are_read_on_demand() -> None:
    file = docx.Document()
    section = file.sections[0]
    section.header.paragraphs[0].text = "Contract 12/2021, confidential"
    section.first_page_header.paragraphs[0].text = "Not shown, since no first page is different"
    section.even_page_header.paragraphs[0].text = "Not shown, since pages do not differ"
    section.footer.paragraphs[0]._p.append(
        parse_xml(f'<w:fldSimple {W} w:instr=" PAGE "><w:r><w:t>3</w:t></w:r></w:fldSimple>')
    )
    section.footer.add_paragraph("Mill Ltd, 4 River Street")
    file.add_paragraph("The gate is open.")
    second = file.add_section()
    second.header.is_linked_to_previous = False
    second.header.paragraphs[0].text = "Annex"
    second.footer.is_linked_to_previous = False
    second.footer.paragraphs[0].text = "Mill Ltd, 4 River Street"
    file.add_paragraph("The weir holds.")
    assert [block.text for block in opened(file).blocks] == ["The gate is open.", "The weir holds."]
    asked = opened(file, page_headers=True)
    assert [(block.kind, block.text) for block in asked.blocks] == [
        ("note", "Contract 12/2021, confidential"),
        ("note", "Annex"),
        ("paragraph", "The gate is open."),
        ("paragraph", "The weir holds."),
        ("note", "Mill Ltd, 4 River Street"),
    ]
    file.sections[0].different_first_page_header_footer = True
    assert "Not shown, since no first page is different" in opened(file, page_headers=True).text


def test_letterheads_in_tables_of_a_head() -> None:
    file = docx.Document()
    table = file.sections[0].header.add_table(1, 2, docx.shared.Inches(5))
    table.cell(0, 0).text = "Office of the Weir"
    table.cell(0, 1).text = "Our sign: W/17"
    file.add_paragraph("Dear keeper.")
    assert [block.text for block in opened(file, page_headers=True).blocks] == [
        "Office of the Weir",
        "Our sign: W/17",
        "Dear keeper.",
    ]


# Tables

LONG = "The keeper of the gate has written down what he saw of the river in each of the nights of that long winter. "


def test_tables_that_lay_out_a_page() -> None:
    """Columns of a newsletter, a life in two columns with headings, a box, a letter in a frame of empty columns."""
    file = docx.Document()
    news = file.add_table(1, 2)
    news.cell(0, 0).text = LONG.strip()
    news.cell(0, 0).add_paragraph("He sleeps by day.")
    news.cell(0, 1).text = "Short news."
    file.add_paragraph("Then.")
    life = file.add_table(2, 2)
    life.cell(0, 0).text = "Contact"
    cell = life.cell(0, 1)
    cell.paragraphs[0].text, cell.paragraphs[0].style = "Experience", file.styles["Heading 2"]
    cell.add_paragraph("Keeper of a gate", style="List Bullet")
    life.cell(1, 0).text = "Speaks Dutch"
    life.cell(1, 1).text = "None."
    frame = file.add_table(2, 3)
    frame.cell(0, 1).text = "Dear keeper."
    frame.cell(1, 1).text = "The gate is open."
    around = file.add_table(1, 2)
    around.cell(0, 0).text = "Rye"
    inner = around.cell(0, 1).add_table(2, 2)
    for place, text in zip(((0, 0), (0, 1), (1, 0), (1, 1)), ("Year", "Tons", "1920", "4"), strict=True):
        inner.cell(*place).text = text
    assert [(kind, text) for kind, _, text in blocks(file)] == [
        ("paragraph", LONG.strip()),
        ("paragraph", "He sleeps by day."),
        ("paragraph", "Short news."),
        ("paragraph", "Then."),
        ("paragraph", "Contact"),
        ("heading", "Experience"),
        ("item", "Keeper of a gate"),
        ("paragraph", "Speaks Dutch"),
        ("paragraph", "None."),
        ("paragraph", "Dear keeper."),
        ("paragraph", "The gate is open."),
        ("paragraph", "Rye"),
        ("table", "| Year | Tons |\n| 1920 | 4 |"),
    ]


def test_tables_of_data_with_a_list_a_remark_and_a_note() -> None:
    file = docx.Document()
    table = file.add_table(4, 2)
    for row, (left, right) in enumerate((("Gate", "Remark"), ("North", LONG * 5), ("South", ""), ("West", "shut"))):
        table.cell(row, 0).text, table.cell(row, 1).text = left, right.strip()
    table.cell(2, 1).paragraphs[0].text = "a lamp"
    table.cell(2, 1).add_paragraph("oil", style="List Bullet")
    table.cell(3, 1).paragraphs[0]._p.append(parse_xml(f"<w:r {W}><w:footnoteReference w:id='2'/></w:r>"))
    notes = (
        f"<w:footnotes {W}><w:footnote w:id='2'><w:p><w:r><w:t>Since May.</w:t></w:r></w:p></w:footnote></w:footnotes>"
    )
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.footnotes+xml"
    part = Part(PackURI("/word/footnotes.xml"), kind, notes.encode(), file.part.package)
    file.part.relate_to(part, RELATIONSHIP_TYPE.FOOTNOTES)
    rows = f"| Gate | Remark |\n| North | {(LONG * 5).strip()} |\n| South | a lamp oil |\n| West | shut |"
    assert blocks(file) == [("table", 0, rows), ("note", 0, "Since May.")]


# Lines in a paragraph

BREAK = "<w:r><w:br/></w:r>"
RUN = '<w:r><w:t xml:space="preserve">{}</w:t></w:r>'


@pytest.mark.parametrize(
    ("apart", "lines"),
    [
        (BREAK, ["0:0:{}.0 --&gt; 0:0:{}.450", "Example, Ada", "Is it open?"]),
        ("<w:r><w:cr/></w:r>", ["00:00:0{}.5 --&gt; 00:00:0{}.9", "Example, Ada", "Is it open?"]),
        (BREAK, ["Example, Ada   0:0{}", "Is it open?"]),
        (BREAK, ["Example, Ada: ", "Is it open?"]),
    ],
)
def test_transcripts_whose_turns_are_lines_of_a_paragraph(apart: str, lines: list[str]) -> None:
    """Teams as it was, as it is, and names with a colon: who speaks, when and what are told apart."""
    file = docx.Document()
    for number in range(6):
        words = "Is it open?" if number % 2 else "Yes, since noon."
        name = "Example, Ada" if number % 2 else "Sample, Bo"
        texts = [line.replace("{}", str(number + 1)) for line in lines]
        texts = [line.replace("Example, Ada", name).replace("Is it open?", words) for line in texts]
        append(file, apart.join(RUN.format(text) for text in texts))
    assert [(one.speaker, one.text) for one in sentences_of(opened(file))] == [
        ("Sample, Bo", "Yes, since noon."),
        ("Example, Ada", "Is it open?"),
    ] * 3


def test_lines_of_a_paragraph_are_one_line_of_prose() -> None:
    """A word that a line end breaks is whole, headings and items have one line, a break ends no sentence."""
    file = docx.Document()
    file.add_heading("The\ngate", 1)
    file.add_paragraph("a lamp\nwith oil", style="List Bullet")
    append(
        file, RUN.format("It is opened in the") + BREAK + RUN.format("morning, and mea-") + BREAK + RUN.format("sured.")
    )
    append(file, RUN.format("The measured gate  is\n wide."))
    assert [(block.kind, block.text) for block in opened(file).blocks] == [
        ("heading", "The gate"),
        ("item", "a lamp with oil"),
        ("paragraph", "It is opened in the morning, and measured."),
        ("paragraph", "The measured gate is wide."),
    ]
