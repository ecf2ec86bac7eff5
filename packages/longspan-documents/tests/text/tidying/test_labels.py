"""Run-in heads, in each kind of file whose styles tell them: never glued to the sentence behind them."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from longspan_documents.text.reading import read, sentences_of

HEADS = [  # in bold, behind it, the heading, the first sentence
    ("Inducement", " As a material inducement, the borrower gives a pledge.", "Inducement"),
    ("Background.", " We studied two hundred snails in a garden.", "Background"),
    ("Results:", " The snails were slow in every garden.", "Results"),
    ("Definition 3 (Foo).", " Let X be a set of snails in a garden.", "Definition 3 (Foo)"),
    ("Definition 4", " (Bar). Let Y be a set of snails in a garden.", "Definition 4 (Bar)"),
    ("3.2 Method", " — It was measured with a clock and a rule.", "3.2 Method"),
    ("Zweck", " Diese Studie untersucht zweihundert Schnecken.", "Zweck"),
    ("Objectif", " Nous avons compté deux cents escargots.", "Objectif"),
    ("Цель", " В этой работе изучены двести улиток.", "Цель"),
    ("背景", " 本研究は二百匹のカタツムリを調べた。", "背景"),
    ("方法。", " 我们研究了两百只蜗牛。", "方法"),
]
STRESSED = [
    ("Apple", " Inc. said that it sells snails."),
    ("The snail", " is slow and goes on for a mile."),
    ("Warning", " lights are red in the garden."),
    ("John Smith", " Jr. was the keeper of the snails."),
    ("Dr.", " Marsh keeps two hundred snails."),
    ("Bank", " Street is where the snails were seen."),
    ("東京", "は日本の首都である。"),
]
LAST = "The last paragraph has no head at all."


def behind(text: str) -> str:
    """The words of a sentence behind the name and mark of a head."""
    return text.split(").")[-1].strip(" —")


def shown(path: Path) -> tuple[list[str], list[str]]:
    document = read(path)
    headings = [block.text for block in document.blocks if block.kind == "heading"]
    return headings, [sentence.text for sentence in sentences_of(document)]


def as_page(pairs: list[tuple[str, str]], path: Path) -> None:
    body = "".join(f"<p><b>{bold}</b>{rest}</p>\n" for bold, rest in pairs)
    path.write_text(f"<html><meta charset=utf-8><body><h1>On snails</h1>{body}<p>{LAST}</p></body></html>", "utf-8")


def as_styled_page(pairs: list[tuple[str, str]], path: Path) -> None:
    body = "".join(f"<p><span style='color:red; font-weight: 700'>{bold}</span>{rest}</p>" for bold, rest in pairs)
    path.write_text(f"<html><meta charset=utf-8><body><h1>On snails</h1>{body}<p>{LAST}</p></body></html>", "utf-8")


def as_markdown(pairs: list[tuple[str, str]], path: Path) -> None:
    path.write_text("# On snails\n\n" + "".join(f"**{bold}**{rest}\n\n" for bold, rest in pairs) + LAST + "\n", "utf-8")


def as_word(pairs: list[tuple[str, str]], path: Path) -> None:
    docx = pytest.importorskip("docx")
    document = docx.Document()
    document.add_heading("On snails", 1)
    for bold, rest in pairs:
        paragraph = document.add_paragraph()
        paragraph.add_run(bold).bold = True
        paragraph.add_run(rest)
    document.add_paragraph(LAST)
    document.save(path)


def as_open_text(pairs: list[tuple[str, str]], path: Path) -> None:
    spaces = "urn:oasis:names:tc:opendocument:xmlns:"
    names = " ".join(f'xmlns:{one}="{spaces}{one}:1.0"' for one in ("office", "text", "style"))
    body = "".join(f'<text:p><text:span text:style-name="T1">{bold}</text:span>{rest}</text:p>' for bold, rest in pairs)
    content = (
        f'<office:document-content {names} xmlns:fo="{spaces}xsl-fo-compatible:1.0"><office:automatic-styles>'
        "<style:style "
        'style:name="T1" style:family="text"><style:text-properties fo:font-weight="bold"/></style:style>'
        '</office:automatic-styles><office:body><office:text><text:h text:outline-level="1">On snails</text:h>'
        f"{body}<text:p>{LAST}</text:p></office:text></office:body></office:document-content>"
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.text")
        archive.writestr("META-INF/manifest.xml", "<manifest/>")
        archive.writestr("content.xml", content)


def as_latex(pairs: list[tuple[str, str]], path: Path) -> None:
    body = "\n\n".join(rf"\textbf{{{bold}}}{rest}" for bold, rest in pairs)
    start = "\\documentclass{article}\\begin{document}\\title{On snails}\\maketitle\n\n"
    path.write_text(f"{start}{body}\n\n{LAST}\\end{{document}}", "utf-8")


def as_restructured(pairs: list[tuple[str, str]], path: Path) -> None:
    body = "\n\n".join(f"**{bold}**\\ {rest}" for bold, rest in pairs)
    path.write_text(f"On snails\n=========\n\n{body}\n\n{LAST}\n", "utf-8")


WRITERS: dict[str, Callable[[list[tuple[str, str]], Path], None]] = {
    ".html": as_page,
    ".xhtml": as_styled_page,
    ".md": as_markdown,
    ".docx": as_word,
    ".odt": as_open_text,
    ".tex": as_latex,
    ".rst": as_restructured,
}


@pytest.mark.parametrize("ending", WRITERS)
def test_run_in_heads(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"heads{ending}"
    WRITERS[ending]([(bold, rest) for bold, rest, _ in HEADS], path)
    headings, sentences = shown(path)
    assert headings == ["On snails", *(heading for _, _, heading in HEADS)]
    assert sentences == [*(behind(rest) for _, rest, _ in HEADS), LAST]


@pytest.mark.parametrize("ending", WRITERS)
def test_words_that_are_stressed_stay_in_their_sentence(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"stressed{ending}"
    WRITERS[ending](STRESSED, path)
    headings, sentences = shown(path)
    assert headings == ["On snails"]
    assert sentences == [*(f"{bold}{rest}" for bold, rest in STRESSED), LAST]


def pdf_of(lines: list[tuple[str, str]]) -> bytes:
    """A page with lines whose first words are in Helvetica-Bold."""
    shows = " ".join(
        f"/F2 12 Tf ({bold}) Tj /F1 12 Tf ({rest}) Tj 0 -{down} Td"
        for down, (bold, rest) in ((15 if not bold else 30, (bold, rest)) for bold, rest in lines)
    )
    stream = f"BT 60 760 Td /F2 20 Tf (On snails in the garden) Tj 0 -40 Td {shows} ET"
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [5 0 R] /Count 1 >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica-Bold >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents 6 0 R /Resources << /Font << /F1 3 0 R "
        "/F2 4 0 R >> >> >>",
        f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream",
    ]
    data, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += f"{number} 0 obj\n{body}\nendobj\n".encode("latin-1")
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    end = f"trailer\n<< /Size 7 /Root 1 0 R >>\nstartxref\n{len(data)}\n%%EOF\n"
    return data + f"xref\n0 7\n0000000000 65535 f \n{table}{end}".encode()


def test_run_in_heads_of_a_pdf_page(tmp_path: Path) -> None:
    path = tmp_path / "heads.pdf"
    lines = [
        ("Inducement", " As a material inducement to the lender, the borrower gives it a pledge of all snails."),
        ("Background.", " We studied two hundred snails in a garden for a year and wrote down where they went."),
        ("Apple", " Inc. said to everyone in the town that it sells snails to every garden in the country."),
    ]
    path.write_bytes(pdf_of(lines))
    headings, sentences = shown(path)
    assert headings == ["On snails in the garden", "Inducement", "Background"]
    assert sentences == [*(rest.strip() for _, rest in lines[:2]), "".join(lines[2])]


def test_speakers_stay_speakers(tmp_path: Path) -> None:
    path = tmp_path / "talk.html"
    lines = ["Ann", "Bob", "Ann", "Bob"]
    body = "".join(
        f"<p><b>{name}:</b> I have seen {number} snails. They were slow.</p>" for number, name in enumerate(lines)
    )
    path.write_text(f"<html><body><h1>A talk</h1>{body}</body></html>", "utf-8")
    assert [one.speaker for one in sentences_of(read(path))] == [name for name in lines for _ in range(2)]


def test_a_bold_line_above_a_paragraph(tmp_path: Path) -> None:
    path = tmp_path / "hours.html"
    path.write_text(
        "<html><body><h1>The garden</h1><p><b>Opening hours</b><br>The garden opens at nine. It closes at six.</p>"
        "<p><strong>Way</strong></p><p>Take the bus to the mill. Walk from there.</p>"
        "<p><b>Do not touch the snails.</b></p><p>They are slow. They are old.</p></body></html>",
        "utf-8",
    )
    headings, sentences = shown(path)
    assert headings == ["The garden", "Opening hours", "Way"]
    assert sentences[:2] == ["The garden opens at nine.", "It closes at six."]
    assert "Do not touch the snails." in sentences


def test_a_name_of_a_section_above_lines_that_are_set_in(tmp_path: Path) -> None:
    path = tmp_path / "page.txt"
    path.write_text(
        "名前\n       frob - センサーの値を集める\n\n説明\n       建物の値を集める。\n       値を送る。\n", "utf-8"
    )
    assert [block.text for block in read(path).blocks] == [
        "名前",
        "frob - センサーの値を集める",
        "説明",
        "建物の値を集める。値を送る。",
    ]
