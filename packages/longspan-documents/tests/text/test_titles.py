"""Titles of documents: no name of a section, number of a chapter, head of a page or source."""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan_documents.text.reading import document_of, read
from longspan_documents.text.titles import could_be_title, title_of_page

PROSE = (
    "The river rises in the hills above the old mill and runs for ninety miles before it meets the sea. In the spring "
    "of 1843 a flood carried away the bridge at Harrow, and with it the only road to the north.\n\n"
)


def manual(names: tuple[str, str, str], about: str) -> str:
    head = "FROB(1)                     User Commands                    FROB(1)"
    name, synopsis, description = names
    called = f"{head}\n\n{name}\n       frob - {about}\n\n{synopsis}\n       frob [OPTION]... FILE\n\n"
    return f"{called}{description}\n       {PROSE}\n{head}\n"


TITLES: dict[str, tuple[str, str | None]] = {
    "English manual page": (manual(("NAME", "SYNOPSIS", "DESCRIPTION"), "collect readings"), "frob(1)"),
    "French manual page": (manual(("NOM", "SYNOPSIS", "DESCRIPTION"), "recueillir les mesures"), "frob(1)"),
    "German manual page": (manual(("BEZEICHNUNG", "ÜBERSICHT", "BESCHREIBUNG"), "Werte sammeln"), "frob(1)"),
    "Spanish manual page": (manual(("NOMBRE", "SINOPSIS", "DESCRIPCIÓN"), "reunir medidas"), "frob(1)"),
    "Russian manual page": (manual(("ИМЯ", "ОБЗОР", "ОПИСАНИЕ"), "сбор показаний"), "frob(1)"),
    "chapters without a title": (f"CHAPTER I\n\n{PROSE}CHAPTER II\n\n{PROSE}", None),
    "chapters with names": (f"CHAPTER I\n\nTHE FLOOD\n\n{PROSE}CHAPTER II\n\nTHE FERRY\n\n{PROSE}", None),
    "German chapters": (f"KAPITEL 1\n\n{PROSE}KAPITEL 2\n\n{PROSE}", None),
    "a book": (f"THE RIVER AND ITS BRIDGES\n\nCHAPTER I\n\n{PROSE}CHAPTER II\n\n{PROSE}", "THE RIVER AND ITS BRIDGES"),
    "one chapter": (f"Chapter 3: The Ferry\n\n{PROSE}", "Chapter 3: The Ferry"),
    "an abstract alone": (f"Abstract\n\n{PROSE}1. Introduction\n\n{PROSE}{PROSE}", None),
    "a paper": (
        f"Losing No Readings\n\nJane Roe\n\nAbstract\n\n{PROSE}1. Introduction\n\n{PROSE}{PROSE}",
        "Losing No Readings",
    ),
    "a running head": (
        f"Journal of Rivers, Vol. 12, No. 3, pp. 101–120 (2005)\n\n"
        f"Losing No Readings in Buildings\n\nJane Roe\n\nAbstract\n\n{PROSE}"
        f"1. Introduction\n\n{PROSE}{PROSE}",
        "Losing No Readings in Buildings",
    ),
    "a stamp": (
        f"arXiv:2101.01234v2 [cs.DC] 5 Jan 2021\n\nLosing No Readings in Buildings\n\nJane Roe\n\nAbstract\n\n{PROSE}"
        f"1. Introduction\n\n{PROSE}{PROSE}",
        "Losing No Readings in Buildings",
    ),
    "an edition": (
        f"Edition 2\n\nThe Frob Manual\n\nLegal Notice\n\nCopyright © 2011 Frob.\n\nPreface\n\n{PROSE}{PROSE}{PROSE}",
        "The Frob Manual",
    ),
    "a copyright line": (f"Copyright © 2011 Frob\n\nThe Frob Manual\n\n{PROSE}{PROSE}{PROSE}", "The Frob Manual"),
    "references at the end": (
        f"{PROSE}{PROSE}{PROSE}REFERENCES\n\n[1] A. Field. The river. Journal of Bridges, 12(3):1-20, 1998.\n",
        None,
    ),
    "a Japanese book": (
        "目次\n\n第1章 洪水……3\n第2章 橋……15\n\n第1章 洪水\n\n川は丘から始まる。\n\n第2章 橋\n\n橋は石で造られた。\n",
        None,
    ),
}


@pytest.mark.parametrize("case", TITLES)
def test_titles_of_texts(case: str) -> None:
    text, title = TITLES[case]
    assert document_of(text).title == title


NONE = [
    *(
        "NAME",
        "NOM",
        "BEZEICHNUNG",
        "名前",
        "ИМЯ",
        "CHAPTER I",
        "Chapter 12.",
        "Kapitel 3",
        "Chapitre premier",
        "第三章",
        "IV",
        "7.",
    ),
    *(
        "Abstract",
        "ABSTRACT",
        "1. Introduction",
        "Zusammenfassung",
        "Résumé",
        "要旨",
        "References",
        "Literaturverzeichnis",
        "目次",
    ),
    "[12] A. Field. The river and its bridges. Journal of Bridges, 12(3):1-20, 1998.",
    "Field, A. (1998). The river and its bridges. Mill Press.",
    *(
        "arXiv:2101.01234v2 [cs.DC] 5 Jan 2021",
        "Journal of Rivers, Vol. 12, No. 3, 2005",
        "Proceedings of the 3rd Workshop on Snails",
    ),
    *(
        "Page 3 of 12",
        "Version 2.1",
        "March 2005",
        "12.03.2005",
        "© 2011 Frob",
        "https://example.org/frob",
        "ISSN 1234-5678",
    ),
    *("Untitled document", "Microsoft Word - report.doc", "Research Article", "3"),
]
SOME = [
    *(
        "On the Speed of Snails",
        "The Frob Manual",
        "Chapter 3: The Ferry",
        "Introduction to Algorithms",
        "A Name of the Rose",
    ),
    *(
        "Annual Report 2009",
        "1984",
        "Proceedings",
        "Part of the Sea",
        "川と橋の歴史",
        "Die Geschichte des Flusses",
        "GNU GENERAL PUBLIC LICENSE",
    ),
]


@pytest.mark.parametrize("line", NONE)
def test_lines_that_are_no_title(line: str) -> None:
    assert not could_be_title(line)


@pytest.mark.parametrize("line", [one for one in SOME if one != "1984"])
def test_lines_that_may_be_a_title(line: str) -> None:
    assert could_be_title(line)


def test_the_title_of_a_page_without_its_site() -> None:
    assert title_of_page("FROB(1) — Linux manual page") == "FROB(1)"
    assert title_of_page("On snails | The Garden") == "On snails"
    assert title_of_page("Untitled document") is None


def test_a_page_of_a_manual(tmp_path: Path) -> None:
    path = tmp_path / "frob.html"
    path.write_text(
        "<html><head><title>FROB(1)</title></head><body>"
        "<table><tr><td>FROB(1)</td><td>User Commands</td><td>FROB(1)</td></tr>"
        f"</table><h2>NAME</h2><p>frob - collect readings</p><h2>DESCRIPTION</h2><p>{PROSE}</p></body></html>",
        "utf-8",
    )
    assert read(path).title == "frob(1)"


def test_a_page_whose_title_stands_in_its_head_alone(tmp_path: Path) -> None:
    path = tmp_path / "snails.html"
    path.write_text(
        f"<html><head><title>On snails - The Garden</title></head>"
        f"<body><p>{PROSE}</p><h2>References</h2></body></html>",
        "utf-8",
    )
    assert read(path).title == "On snails"


def test_a_word_file_with_the_title_of_its_template(tmp_path: Path) -> None:
    docx = pytest.importorskip("docx")
    document = docx.Document()
    document.core_properties.title = "Microsoft Word - Document1"
    document.add_heading("Chapter 1", 1)
    document.add_heading("On snails", 1)
    document.add_paragraph(PROSE)
    document.save(tmp_path / "snails.docx")
    assert read(tmp_path / "snails.docx").title == "On snails"
