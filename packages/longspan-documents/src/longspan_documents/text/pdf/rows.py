"""From the lines of a PDF column to rows in reading order: parts of one line are joined, drop capitals joined to their
words, and superscripts and subscripts converted to plain text."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from longspan.data.text.scripts import LEVEL, LOWERED, RAISED, with_scripts
from longspan_documents.text.frequencies import common_words
from longspan_documents.text.pdf.lines import DROPPED, Line

CELL = 1.2
"""Relative to the font size; minimum space between two table cells."""
TOUCHING = 0.12
"""Relative to the font size; letters closer to a superscript or subscript belong to the same word."""
SMALL = 0.85
"""Relative to the font size of a line; smaller letters slightly above or below belong to it."""
DESCENT = 0.22
"""Relative to the font size: distance of a line's lower end below its base line in most fonts."""

_CAPITAL = re.compile(r"[\"'“”‘«„¡¿]?[^\W\d_]")
_NOTE = re.compile(rf"{RAISED}\s?(\d{{1,3}})|(\d{{1,3}})\s")


def rows_of(column: Sequence[Line]) -> list[Line]:
    """Joins the lines of a column that share a base line, including superscripts and subscripts."""
    rows: list[Line] = []
    for line in _with_drop_capitals(column):
        if not rows or not _same_row(rows[-1], line):
            rows.append(line)
            continue
        before = rows.pop()
        left_text, right_text = _leveled(before, line)
        beside = line.left - before.right
        scripts = left_text.endswith(LEVEL) or right_text[0] in {RAISED, LOWERED}
        space = "" if scripts and beside < TOUCHING * max(before.size, line.size) else " "
        place = len(left_text) + len(space)
        shift = len(right_text) != len(line.text)
        gaps = [
            *_shifted(before, left_text),
            *((start + place + shift, left, right) for start, left, right in line.gaps),
        ]
        if beside > CELL * line.size:
            gaps.insert(len(before.gaps), (place, before.right, line.left))
        main = before if len(before.text) >= len(line.text) else line
        right, text = max(before.right, line.right), f"{left_text}{space}{right_text}"
        rows.append(replace(main, text=text, left=before.left, right=right, gaps=tuple(gaps)))
    return rows


def _shifted(line: Line, text: str) -> list[tuple[int, float, float]]:
    shift = len(text) != len(line.text)
    return [(start + shift, left, right) for start, left, right in line.gaps]


def _same_row(before: Line, line: Line) -> bool:
    size, apart, beside = max(before.size, line.size), abs(before.base - line.base), line.left - before.right
    if apart < 0.2 * size:
        return beside > -1.2 * size  # superscripts may be above subscripts
    script = min(len(before.text), len(line.text)) <= 4 and min(before.size, line.size) < SMALL * size
    return beside > -0.5 * size and apart < (0.7 if script else 0.35) * size


def _leveled(before: Line, line: Line) -> tuple[str, str]:
    """Returns the texts of two lines of one row, the smaller one marked as superscript or subscript if it is."""
    size = max(before.size, line.size)
    smaller = before if before.size < line.size else line
    other = line if smaller is before else before
    # The lower end of smaller letters on the same base line is slightly higher.
    shift = (other.base - DESCENT * other.size) - (smaller.base - DESCENT * smaller.size)
    if smaller.size > SMALL * size or abs(shift) < 0.15 * size or smaller.text[-1] == LEVEL or len(smaller.text) > 4:
        return before.text, line.text
    marked = f"{RAISED if shift > 0 else LOWERED}{smaller.text}{LEVEL}"
    return (marked, line.text) if smaller is before else (before.text, marked)


def _with_drop_capitals(column: Sequence[Line]) -> list[Line]:
    """Returns the lines with drop capitals, which span several lines, put before their words."""
    capitals = [line for line in column if len(line.text) < 3 and _CAPITAL.fullmatch(line.text)]
    lines = list(column)
    for capital in capitals:
        top, bottom = capital.base - 1.1 * capital.size, capital.base - DESCENT * capital.size
        beside = [
            index
            for index, line in enumerate(lines)
            if line.size * DROPPED < capital.size
            and top < line.base - DESCENT * line.size < bottom + 0.3 * line.size
            and -0.3 * line.size < line.left - capital.right < 1.5 * line.size
        ]
        if not beside:
            continue
        first = min(beside, key=lambda index: lines[index].base)
        for index in beside:  # they begin at the letter, like the lines below it
            lines[index] = replace(lines[index], left=capital.left)
        text = capital.text + ("" if _is_begun(capital.text[-1], lines[first].text) else " ")
        gaps = tuple((start + len(text), left, right) for start, left, right in lines[first].gaps)
        lines[first] = replace(lines[first], text=text + lines[first].text, gaps=gaps)
        lines.remove(capital)
    return lines


def _is_begun(letter: str, text: str) -> bool:
    """Whether a drop capital begins the first word of a text, instead of being a word: "A river", "I saw"."""
    if letter not in {"A", "I"}:
        return True
    word = re.split(r"\W", text, maxsplit=1)[0].casefold()
    whole = f"{letter.casefold()}{word}"
    return common_words().rank(whole) <= common_words().rank(word)


def notes_marked(rows: Sequence[Line], size: float) -> set[str]:
    """Returns the numbers at the beginning of notes: superscripts, or in letters smaller than `size`."""
    begun = [match for row in rows if (match := _NOTE.match(row.text)) and (match[1] or row.size < size)]
    return {match[1] or match[2] for match in begun}


def plain(row: Line, notes: Collection[str] = ()) -> Line:
    """Returns the row with superscripts and subscripts as plain text; `notes` as in `with_scripts`."""
    if LEVEL not in row.text:
        return row
    edges = [0, *(start for start, _, _ in row.gaps), len(row.text)]
    parts = [" ".join(with_scripts(row.text[start:end], notes).split()) for start, end in pairwise(edges)]
    starts = list(accumulate((len(part) + 1 for part in parts), initial=0))[1:-1]
    gaps = tuple((start, left, right) for start, (_, left, right) in zip(starts, row.gaps, strict=True))
    return replace(row, text=" ".join(parts), gaps=gaps)
