"""The reading order of pages with columns, and pages that only look as if they had some."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path

import pypdfium2
import pytest

from longspan.data.text.sentences import split_words
from longspan_documents.text.pdf.blocks import regions
from longspan_documents.text.pdf.lines import lines_of_page
from longspan_documents.text.pdf.reader import document_from_pdf

PAGES = Path(__file__).parent / "pages"

LEFT = (
    "The old harbour was built by people who had never seen the sea, and who took the advice of nobody that had. Its "
    "wall faces the meadow, its stairs lead into the water, and the bell can be rung only by somebody who stands where "
    "no ship has ever come. Visitors are shown the wall first, because it is the only part that was finished in time."
)
RIGHT = (
    "A second harbour was begun in the year after the flood, when the money had been found and the reasons forgotten. "
    "It has two gates, of which one is open in summer and the other in winter, so that the keeper has to walk around "
    "the whole basin twice a year. He has asked for a boat, which was refused since there is a path on both sides."
)
THIRD = (
    "In the third harbour there is no water at all, which makes it popular with the owners of small gardens. They grow "
    "beans along the moorings and store their tools in the office of the pilot, who has moved to the coast, where "
    "he is said to grow beans as well. His letters are read aloud in the evening and answered by whoever is there."
)
ACROSS = "What three towns learned from building harbours far away from any coast, told by those who were there"


def words(*texts: str) -> list[str]:
    return split_words(" ".join(texts))


def read(data: bytes) -> list[str]:
    return words(*(block.text for block in document_from_pdf(data, "a.pdf").blocks))


@pytest.mark.parametrize("by_rows", [False, True])
def test_two_columns_below_a_title(typeset: Callable[..., bytes], column: Callable, by_rows: bool) -> None:
    """The same page from a file that holds it column by column, and from one that holds it row by row."""
    left, right = column(LEFT, 50, 130), column(RIGHT, 310, 130)
    rows = [line for pair in zip_longest(left, right) for line in pair if line]
    data = typeset([(50, 80, ACROSS), *(rows if by_rows else [*left, *right])])
    assert read(data) == words(ACROSS, LEFT, RIGHT)


def test_the_right_column_may_come_first_in_the_file(typeset: Callable[..., bytes], column: Callable) -> None:
    data = typeset([*column(RIGHT, 310, 130), *column(LEFT, 50, 130), (50, 80, ACROSS)])
    assert read(data) == words(ACROSS, LEFT, RIGHT)


def test_what_stands_across_the_columns_parts_them(typeset: Callable[..., bytes], column: Callable) -> None:
    parts = [*column(LEFT, 50, 80), *column(RIGHT, 310, 80), *column(THIRD, 50, 300), *column(LEFT, 310, 300)]
    assert read(typeset([*parts, (50, 240, ACROSS)])) == words(LEFT, RIGHT, ACROSS, THIRD, LEFT)


def test_three_columns(typeset: Callable[..., bytes], column: Callable) -> None:
    columns = [column(text, left, 80, 30) for text, left in ((LEFT, 40), (RIGHT, 225), (THIRD, 410))]
    rows = [line for row in zip_longest(*columns) for line in row if line]
    assert read(typeset(rows)) == words(LEFT, RIGHT, THIRD)


def test_a_table_stays_in_rows(typeset: Callable[..., bytes], column: Callable) -> None:
    rows = [("Harbour", "Length"), *((f"Basin {number}", f"{40 * number} metres") for number in range(1, 12))]
    table = [(left, 200 + 14 * at, row[left > 60]) for at, row in enumerate(rows) for left in (60, 330)]
    data = typeset([*column(LEFT, 50, 80, 95), *table])
    assert read(data) == words(LEFT, *(" ".join(row) for row in rows))
    blocks = document_from_pdf(data, "a.pdf").blocks
    assert [block.kind for block in blocks] == ["paragraph", "table"]
    assert blocks[1].text.split("\n")[:2] == ["| Harbour | Length |", "| Basin 1 | 40 metres |"]


def test_one_column_stays_as_it_is(typeset: Callable[..., bytes], column: Callable) -> None:
    """Wide spaces at one place in a few lines are no gutter."""
    lines = column(f"{LEFT} {RIGHT}", 50, 80, 95)
    spaced = [(left, down, text.replace(" ", "     ", 9)) for left, down, text in lines]
    assert read(typeset(spaced)) == words(LEFT, RIGHT)


@pytest.mark.parametrize("name", ["two_columns", "one_column"])
def test_every_word_of_a_typeset_page_in_order(name: str) -> None:
    """The words of the HTML source that a browser typeset, in its order."""
    source = (PAGES / f"{name}.html").read_text(encoding="utf-8").split("</style>")[1]
    expected = words(re.sub("<[^>]*>", " ", source.replace("&shy;", "")))
    document = document_from_pdf((PAGES / f"{name}.pdf").read_bytes(), name)
    assert words(*(block.text for block in document.blocks if block.kind != "boilerplate")) == expected


def test_a_page_read_by_rows_is_put_in_order() -> None:
    """The lines of the typeset page, shuffled into rows as some programs write them, come back in columns."""
    with pypdfium2.PdfDocument(PAGES / "two_columns.pdf") as file:
        lines = [line for line in lines_of_page(file, 0) if 60 < line.base < 800]  # without head and foot
    shuffled = sorted(lines, key=lambda line: (round(line.base), line.left))
    assert shuffled != lines
    assert [line for column in regions(shuffled) for line in column] == lines
