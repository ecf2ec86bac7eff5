"""Tables that lay out a page, whose cells are read one after the other, and those that hold data, which are rows."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_CELL = 400
"""Characters; a table with such a cell for every second row lays out paragraphs."""
LONG_PARAGRAPH, SENTENCE = 150, 100
"""Characters of a cell that is a paragraph, and of one that is a sentence or two."""
SHORT_WITH_NUMBER = 4
"""Words; a head or foot of a page with its number and no more words than "Page 3 of 9" is that number."""


def is_margin_text(text: str, *, numbered: bool) -> bool:
    """Whether a head or foot of a page says something, beside the number of the page, which `numbered` says it has."""
    return any(map(str.isalpha, text)) and not (numbered and len(text.split()) <= SHORT_WITH_NUMBER)


def lays_out(rows: Sequence[Sequence[Sequence[str]]]) -> bool:
    """Whether a table places paragraphs on a page, which its borders do not tell: they are often drawn all the same.

    It does where no row has two cells with words, where most cells are long paragraphs, and where its only row has
    columns of several paragraphs or of whole sentences.

    Args:
        rows: of each row the cells, of each cell the paragraphs.
    """
    filled = [[[part for part in cell if part] for cell in row if any(cell)] for row in rows]
    filled = [row for row in filled if row]
    if max(map(len, filled), default=0) < 2:
        return True
    cells = [cell for row in filled for cell in row]
    lengths = [sum(map(len, cell)) for cell in cells]
    if 2 * sum(length > LONGEST_CELL for length in lengths) >= len(filled):
        return True
    if 2 * sum(length > LONG_PARAGRAPH for length in lengths) > len(cells):
        return True
    return len(filled) == 1 and (max(lengths) > SENTENCE or max(map(len, cells)) > 1)
