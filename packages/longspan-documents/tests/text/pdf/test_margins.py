"""Heads and feet of pages, and first lines that are none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from longspan_documents.text.pdf.reader import document_from_pdf

TEXTS = (
    "Nobody who has read the report of the second year will be surprised by what the third one says about it.",
    "The fence has been mended twice, and the reasons for mending it a third time are given at the end.",
    "What the visitors said can be read in a book that lies beside the door and has a pencil on a string.",
    "In March the roof was painted, which took longer than the winter that had made it necessary.",
    "Money was found where it had been put, and spent in the order in which it had been found.",
    "All of this will be repeated next year unless somebody writes it down before the summer begins.",
)


def kinds(data: bytes) -> tuple[list[str], list[str]]:
    """What stands in the margins, and the first line of what does not, page by page."""
    blocks = document_from_pdf(data, "a.pdf").blocks
    return (
        [block.text for block in blocks if block.kind == "boilerplate"],
        [block.text for block in blocks if block.kind != "boilerplate"],
    )


def test_heads_of_left_and_right_pages_and_numbers(typeset: Callable[..., bytes]) -> None:
    pages = [
        [
            (60, 40, f"{number} The report" if number % 2 == 0 else f"A. Writer {number}", 8),
            (60, 90, TEXTS[number - 1]),
            (300, 770, f"- {number} -", 8),
        ]
        for number in range(1, 7)
    ]
    around, inside = kinds(typeset(*pages))
    assert around[:4] == ["A. Writer 1", "- 1 -", "2 The report", "- 2 -"]
    assert len(around) == 12
    assert inside == list(TEXTS)


def test_heads_that_name_the_chapter(typeset: Callable[..., bytes]) -> None:
    heads = ["The first year", "The first year", "The second year", "The second year", "The end", "The end"]
    pages = [[(60, 40, head), (60, 90, text)] for head, text in zip(heads, TEXTS, strict=True)]
    around, inside = kinds(typeset(*pages))
    assert around == heads
    assert inside == list(TEXTS)


def test_first_lines_that_differ_or_come_again_elsewhere_stay(typeset: Callable[..., bytes]) -> None:
    firsts = ["We went out.", "It was cold.", "It was cold.", "Nobody came.", "They had left.", "The sea rose."]
    pages = [[(60, 60 + 25 * (at == 2), first), (60, 200, TEXTS[at])] for at, first in enumerate(firsts)]
    around, inside = kinds(typeset(*pages))
    assert around == []
    assert inside == [text for pair in zip(firsts, TEXTS, strict=True) for text in pair]


def test_titles_of_chapters_are_no_heads(typeset: Callable[..., bytes]) -> None:
    """Numbered as pages are, at one height, but in large letters."""
    pages = [[(60, 60, f"Chapter {number}", 18, "bold"), (60, 120, TEXTS[number])] for number in range(1, 5)]
    around, inside = kinds(typeset(*pages))
    assert around == []
    assert inside[::2] == ["Chapter 1", "Chapter 2", "Chapter 3", "Chapter 4"]


def test_numbers_that_do_not_count_the_pages_stay(typeset: Callable[..., bytes]) -> None:
    years = (1871, 1934, 1902, 1990, 1888)
    pages = [
        [(60, 60, f"{year} was a year like all others."), (60, 300, text)]
        for year, text in zip(years, TEXTS[:5], strict=True)
    ]
    around, inside = kinds(typeset(*pages))
    assert around == []
    assert len(inside) == 10


def test_the_stamp_in_the_margin(typeset: Callable[..., bytes]) -> None:
    stamp = "arXiv:2601.01234v1 [cs.CL] 3 Jan 2026"
    around, inside = kinds(typeset([(30, 600, stamp, 16, "turned"), (60, 90, TEXTS[0])]))
    assert around == [stamp]
    assert inside == [TEXTS[0]]


def test_a_page_turned_as_a_whole_is_read(typeset: Callable[..., bytes]) -> None:
    around, inside = kinds(typeset([(90, 700, "The first line of a wide table", 10, "turned")]))
    assert (around, inside) == ([], ["The first line of a wide table"])


@pytest.mark.parametrize("font", ["text", "askew"])
def test_a_watermark_is_no_heading(typeset: Callable[..., bytes], font: str) -> None:
    text = [
        (50, 100 + 14 * number, f"The gauge at the mill records the level {number} of the water.")
        for number in range(8)
    ]
    document = document_from_pdf(typeset([*text, (80, 180, "DRAFT", 60, font)]), "x.pdf")
    assert [(block.kind, block.text) for block in document.blocks if "DRAFT" in block.text] == [
        ("boilerplate", "DRAFT")
    ]
    assert [block.kind for block in document.blocks if "DRAFT" not in block.text] == ["paragraph"]


def test_a_large_title_is_no_watermark(typeset: Callable[..., bytes]) -> None:
    text = [(50, 200 + 14 * number, "The gauge at the mill records the level of the water.") for number in range(8)]
    document = document_from_pdf(typeset([(50, 120, "The mill", 40), (50, 160, "of the town", 40), *text]), "x.pdf")
    assert document.title == "The mill of the town"
