"""Headings and items of plain text, and lines that only look like them."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from longspan_documents.text.reading import document_of

PROSE = "The snail went on for a long while, and nobody saw it on its way to the wall.\nIt was slow.\n\n"
HEADINGS = {
    "2.1 Methods and materials": 2,
    "3. Results": 1,
    "1. DEFINITIONS.": 1,
    "IV. CONCLUSIONS": 1,
    "CHAPTER IV.": 1,
    "Chapter 3: The wall": 1,
    "Appendix B": 1,
    "THE LONG WAY HOME": 1,
    "## The way home ##": 2,
    "The way home\n============": 1,
    "The way home\n------------": 2,
    " = = The way home = = ": 2,
    "The Way Home": 2,
    "\tBackground and History": 2,
    "References": 1,
    "II": 2,
}


@pytest.mark.parametrize("heading", HEADINGS)
def test_a_heading_between_paragraphs(heading: str) -> None:
    document = document_of(f"{PROSE * 3}{heading}\n\n{PROSE * 3}")
    found = [block for block in document.blocks if block.kind == "heading"]
    assert [(block.level, len(document.blocks)) for block in found] == [(HEADINGS[heading], 7)]
    assert found[0].text.split()[0] in heading


@pytest.mark.parametrize("heading", ["Introduction", "2.1 Methods", "CHAPTER IV.", "# Methods"])
def test_a_heading_right_above_its_paragraph(heading: str) -> None:
    kinds = [block.kind for block in document_of(f"{PROSE * 3}{heading}\n{PROSE * 3}").blocks]
    assert kinds == [*["paragraph"] * 3, "heading", *["paragraph"] * 3]


NO_HEADINGS = [
    '"Well," said the snail',
    "the way home",
    "It was slow.",
    "Yes, it was slow,",
    "1. Bread",
    "https://snails.example/way",
    "./configure --prefix=/usr/local",
    "total = 3",
    "* * *",
]


@pytest.mark.parametrize("line", NO_HEADINGS)
def test_a_line_that_is_no_heading(line: str) -> None:
    more = "2. Butter\n3. Salt\n" if line[0] == "1" else ""
    document = document_of(f"{PROSE * 3}{line}\n{more}\n{PROSE * 3}")
    assert "heading" not in {block.kind for block in document.blocks}


def test_lines_without_end_marks_are_no_headings() -> None:
    transcript = "so we went there\n\nand it was good\n\nThen we came back and told everybody we met about it again\n\n"
    assert "heading" not in {block.kind for block in document_of(transcript * 9).blocks}


def test_a_heading_that_is_read_twice_stands_once() -> None:
    document = document_of(f"THE SNAIL\n\nThe Snail\n\n{PROSE * 3}")
    assert [block.kind for block in document.blocks][:2] == ["heading", "boilerplate"]
    assert document.title == "THE SNAIL"


def test_items_lose_their_marks_and_keep_their_lines() -> None:
    document = document_of("Aims:\n1. To climb\n   the wall.\n2. To rest.\n  - At noon.\n\n(a) For ever.\n")
    assert [(block.kind, block.text) for block in document.blocks] == [
        ("paragraph", "Aims:"),
        ("item", "To climb the wall."),
        ("item", "To rest."),
        ("item", "At noon."),
        ("item", "For ever."),
    ]


def test_a_number_at_the_beginning_of_a_wrapped_line_is_no_item() -> None:
    document = document_of("The snail is shown in Table\n3. The wall is not, as it is too\nlarge for a table.\n")
    assert len(document.blocks) == 1


def test_long_lines_are_paragraphs_unless_the_text_is_wrapped_there() -> None:
    long = "The snail went on and on for a long while and nobody saw it on its way to the wall of stones. " * 2
    assert len(document_of(f"Introduction\n{long}\n{long}\n").blocks) == 3
    wide = "\n".join(["The snail went on and on, as it does each morning " * 4 + "at" * (n % 5) for n in range(40)])
    assert len(document_of(wide).blocks) == 1


def test_books_without_blank_lines() -> None:
    """A line that is set in begins a paragraph; a word that ends one is no title, whatever it says."""
    book = "The snail had gone to the wall, with no\nbackground.\n    The wall was high. It\nsaw no end of it.\n"
    book += "    So it slept.\n"
    assert [block.text for block in document_of(book).blocks] == [
        "The snail had gone to the wall, with no background.",
        "The wall was high. It saw no end of it.",
        "So it slept.",
    ]


@pytest.mark.skipif(not os.environ.get("LONGSPAN_DATA"), reason="LONGSPAN_DATA is not set")
def test_chapters_of_a_real_novel() -> None:
    path = Path(os.environ["LONGSPAN_DATA"]) / "pg_novels" / "validation.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        books = {record["title"]: record["text"] for record in map(json.loads, lines)}
    document = document_of(books["wuthering heights"])
    headings = [block.text for block in document.blocks if block.kind == "heading"]
    chapters = [line for line in books["wuthering heights"].split("\n") if line.startswith("CHAPTER ")]
    assert [heading for heading in headings if heading.startswith("CHAPTER ")] == chapters
    assert len(headings) < len(chapters) + 6
