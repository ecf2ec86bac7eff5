"""Distinguishes layout tables, whose cells are read in order, from data tables, which are rows."""

from __future__ import annotations

from collections.abc import Sequence

from longspan.data.text.sentences import count_words

LONGEST_CELL = 400
"""In characters; a table with such a cell in every second row is layout."""
LONG_PARAGRAPH, SENTENCE = 150, 100
"""Characters of a cell that is a paragraph, and of one that is a sentence or two."""
SHORT_WITH_NUMBER = 4
"""In words; a page header or footer with a number and at most as many words as "Page 3 of 9" is a page number."""


def is_margin_text(text: str, *, numbered: bool) -> bool:
    """Whether a page header or footer has content other than the page number, which `numbered` indicates."""
    return any(map(str.isalpha, text)) and not (numbered and count_words(text) <= SHORT_WITH_NUMBER)


def lays_out(rows: Sequence[Sequence[Sequence[str]]]) -> bool:
    """Whether a table lays out paragraphs, which cannot be inferred from its borders.

    This is the case if no row has two cells with words, if most cells are long paragraphs, or if its only row has
    columns of several paragraphs or of whole sentences.

    Args:
        rows: the cells of each row, as lists of paragraphs.
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
