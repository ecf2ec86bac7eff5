"""Word files that python-docx writes, and the marks that it has no words for, put in by hand."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import docx
from docx.opc.constants import RELATIONSHIP_TYPE
from docx.opc.packuri import PackURI
from docx.opc.part import Part
from docx.oxml import parse_xml

from longspan.data.text.reading import read, sentences_of
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
        ("paragraph", 0, "It is opened in the morning. Nobody knows why."),
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
