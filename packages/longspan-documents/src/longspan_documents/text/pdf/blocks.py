"""From the lines of a PDF page to blocks in reading order: columns from left to right, between elements that span them,
and in each column headings, paragraphs, items, tables and captions.

A gutter is a strip that few lines cross, with prose on both sides: lines as long, as even and as often continued as
those of columns, in contrast to tables. Elements across it (a title, a wide figure's caption) divide the page into
bands, which are read in order, the left side before the right one; a side may have a gutter of its own.

A paragraph ends by layout: at a wider space below it, another font size, an indentation, or a line that ends although
the next word would have fitted. It may continue after the end of a column or a page.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from longspan_documents.text.blocks import Kind, space_between
from longspan_documents.text.pdf.lines import Line
from longspan_documents.text.pdf.rows import CELL

FEWEST = 4
"""Minimum lines on each side of a gutter."""
NARROWEST = 9
"""Minimum width of the longer lines of a column, relative to the font size."""
CROSSED = 0.5
"""Maximum share of lines across a gutter in everything on the page, by width."""
EVEN, FILLED = 0.55, 0.6
"""Lines at least `EVEN` times as wide as the longer ones of a side must be the share `FILLED` of its content."""
CONTINUED = 0.2
"""Minimum share of a side's lines that begin with a small letter, by width, if the script has any."""
MOST_BANDS = 8
"""A strip crossed by more lines is not a gutter."""
OVERHANG = 1.2
"""Overhang, relative to the font size, of a line across a gutter beyond both of its ends."""
BIN = 2.0
"""Step width of the gutter search, in points."""

Gutter = tuple[float, float]
"""Its left and its right end."""
Span = tuple[float, float, float, str]
"""Left and right end of a stretch between wide spaces, its font size and its first character."""


def regions(lines: Sequence[Line]) -> list[list[Line]]:
    """Returns the lines of a page by column; unchanged if there is one column."""
    gutter = _gutter(lines)
    bands = list(_bands(lines, gutter)) if gutter else []
    if gutter is None or len(bands) > MOST_BANDS:
        return [list(lines)] if lines else []
    columns: list[list[Line]] = []
    for band, across in bands:
        pieces = [piece for line in band for piece in _cut(line, gutter)]
        sides = [side for number in (-1, 1) if (side := [line for line in pieces if _side(line, gutter) == number])]
        if all(_is_prose([span for line in side for span in _spans(line)]) for side in sides):
            for side in sides:
                columns.extend(regions(side))
        elif band:
            columns.append(band)
        if across:
            columns.append(across)
    return columns


def _bands(lines: Sequence[Line], gutter: Gutter) -> Iterator[tuple[list[Line], list[Line]]]:
    """Yields from top to bottom the lines next to the gutter or with a wide space at it, and the lines across it below
    them."""
    across = [line for line in lines if len(_cut(line, gutter)) == 1 and not _side(line, gutter)]
    across = [  # without those that share their base line with another, as in a row of authors
        line
        for line in sorted(across, key=lambda line: line.base)
        if not any(other is not line and abs(other.base - line.base) < line.size / 2 for other in lines)
    ]
    alone = set(map(id, across))
    beside = sorted((line for line in lines if id(line) not in alone), key=lambda line: line.base)
    runs: list[list[Line]] = []
    for line in across:  # consecutive ones without lines between them belong together
        if not runs or any(runs[-1][-1].base < other.base < line.base for other in beside):
            runs.append([])
        runs[-1].append(line)
    above = float("-inf")
    for run in runs:
        inside, below = set(map(id, run)), run[0].base
        yield _between(lines, above, below, alone), [line for line in lines if id(line) in inside]
        above = below
    yield _between(lines, above, float("inf"), alone), []


def _between(lines: Sequence[Line], above: float, below: float, alone: set[int]) -> list[Line]:
    return [line for line in lines if above <= line.base < below and id(line) not in alone]


def _side(line: Line, gutter: Gutter) -> int:
    """Returns -1 for a line left of the gutter, 1 on its right, 0 across it."""
    begin, end = gutter
    if line.left < begin - OVERHANG * line.size and line.right > end + OVERHANG * line.size:
        return 0
    return -1 if line.left + line.right < begin + end else 1


def _cut(line: Line, gutter: Gutter) -> tuple[Line, ...]:
    """Returns the line, or its parts if one of its wide spaces is the gutter."""
    for number, (_, left, right) in enumerate(line.gaps):
        if 2 * (min(right, gutter[1]) - max(left, gutter[0])) > gutter[1] - gutter[0]:
            return line.cut(number)
    return (line,)


def _gutter(lines: Sequence[Line]) -> Gutter | None:
    """Returns the gutter crossed least, or None."""
    if len(lines) < 2 * FEWEST:
        return None
    spans = [span for line in lines for span in _spans(line)]
    first, whole = min(span[0] for span in spans), sum(span[1] - span[0] for span in spans)
    bins = int((max(span[1] for span in spans) - first) / BIN) + 3
    crossed, ended, begun = [0.0] * bins, [0] * bins, [0] * bins
    for left, right, *_ in spans:
        start, stop = int((left - first) / BIN), int((right - first) / BIN) + 1
        crossed[start] += right - left
        crossed[stop] -= right - left
        ended[stop] += 1
        begun[start] += 1
    # Rounded to a thousandth of a point, since sums that should be equal differ by rounding.
    crossing = [round(width, 3) for width in accumulate(crossed)]
    before, behind = list(accumulate(ended)), list(accumulate(begun))
    gutters = [
        (crossing[start], start - stop, start)
        for start, stop in _valleys(crossing)
        if min(before[start], len(spans) - behind[stop - 1]) >= FEWEST and crossing[start] <= CROSSED * whole
    ]
    for _, width, start in sorted(gutters):
        gutter = (first + start * BIN, first + (start - width) * BIN)
        left = [span for span in spans if span[1] <= gutter[0] + BIN]
        if _is_prose(left) and _is_prose([span for span in spans if span[0] >= gutter[1] - BIN]):
            return gutter
    return None


def _valleys(crossing: list[float]) -> Iterator[tuple[int, int]]:
    """Yields strips crossed by the same lines, with more on both sides."""
    edges = [0, *(place for place in range(1, len(crossing)) if crossing[place] != crossing[place - 1]), len(crossing)]
    for start, stop in pairwise(edges):
        if start > 0 and stop < len(crossing) and crossing[start - 1] > crossing[start] < crossing[stop]:
            yield start, stop


def _spans(line: Line) -> Iterator[Span]:
    left, first = line.left, line.text[:1]
    for place, end, begin in line.gaps:
        yield left, end, line.size, first
        left, first = begin, line.text[place]
    yield left, max(line.right, left), line.size, first


def _is_prose(side: Sequence[Span]) -> bool:
    """Whether the lines on one side of a gutter are those of a column."""
    if not side:
        return False
    widths = sorted(right - left for left, right, *_ in side)
    long, size = widths[len(widths) * 9 // 10], sorted(span[2] for span in side)[len(side) // 2]
    filled = sum(width for width in widths if width >= EVEN * long)
    cased = [(right - left, first) for left, right, _, first in side if first.isalpha() or not first.isalnum()]
    letters = any(first.islower() or first.isupper() for _, first in cased)
    continued = sum(width for width, first in cased if first.islower())
    goes_on = not letters or continued >= CONTINUED * sum(widths)
    return long >= NARROWEST * size and filled >= FILLED * sum(widths) and goes_on


INDENT = 0.8
"""Relative to the font size; a larger horizontal shift is an indentation."""
LOOSE = 1.25
"""Relative to the usual line distance; a larger one ends a paragraph."""
SLACK = 2.0
"""Relative to the font size; minimum space left by a line that ended deliberately."""
LARGER = 1.08
"""Relative to the common font size; headings are larger."""
LARGE = 1.8
"""Relative to a larger font size; maximum distance between lines of one heading."""
NEIGHBOURS = 6
"""Number of lines above and below a line whose longest shows the possible width."""

ENDED = re.compile(r"[.!?:;。！？：؟…][\"'”’»)\]]*$")
BULLET = re.compile(r"[-*•‣◦▪–—●■○·►➢✓]\s+(?=\S)")
NUMBERED = re.compile(r"(?:\(?(?:\d{1,3}|[a-z]|[ivx]{1,4})[.)]|\[\d{1,3}\])\s+(?=\S)")
CAPTION = re.compile(
    r"(?:fig(?:ure|\.)?|table|tab\.|listing|algorithm|scheme|plate|abb(?:ildung|\.)|tab(?:elle|leau)|figura|tabla|图|表)"
    r"\s*(?:\d+|[IVX]+)(?:\.\d+)*\s*[.:|—–]",
    re.IGNORECASE,
)
_SPEAKER = re.compile(r"[^\W\d_a-z][\w.’'-]*(?: [^\W\d_a-z][\w.’'-]*){0,3}:(?=\s|$)")
_LEADERS = re.compile(r"(?<!\.)(?<!\.\s)(?:\.\s?){4,}+\s*[\divxlc]++$", re.IGNORECASE)
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]")


@dataclass(slots=True)
class Piece:
    """Consecutive lines of one block.

    Attributes:
        kind: their kind.
        lines: in order.
        level: as of a block.
        begun: the piece in which their block began, if it is not this one.
    """

    kind: Kind
    lines: list[Line]
    level: int = 0
    begun: Piece | None = None

    @property
    def text(self) -> str:
        """Its lines on one line."""
        return "".join(line.text + space for line, space in self.spaced)

    @property
    def spaced(self) -> list[tuple[Line, str]]:
        """Its lines, each with the separator before the next one."""
        pairs = pairwise(self.lines)
        return [*((line, space_between(line.text, after.text)) for line, after in pairs), (self.lines[-1], "")]

    @property
    def size(self) -> float:
        """The font size of its longest line, in points."""
        return max(self.lines, key=lambda line: len(line.text)).size


def leadings(columns: Sequence[Sequence[Line]]) -> dict[int, float]:
    """Returns the usual line distance for each font size, rounded to points."""
    gaps: dict[int, list[float]] = defaultdict(list)
    for column in columns:
        for above, line in pairwise(column):
            distance = line.base - above.base
            if abs(above.size - line.size) < 0.5 and 0.8 * line.size < distance < 3 * line.size:
                gaps[round(line.size)].append(distance)
    return {size: sorted(distances)[len(distances) * 3 // 10] for size, distances in gaps.items()}


def pieces_of(rows: Sequence[Line], leading: dict[int, float], size: float) -> Iterator[Piece]:
    """Groups the rows of one column into pieces; `classify` determines headings, notes and levels.

    Args:
        rows: the result of `rows_of`.
        leading: the result of `leadings`.
        size: the common font size.
    """
    rows = [_mirrored(row) for row in rows]
    celled = _tables(rows)
    piece: list[Line] = []
    for index, row in enumerate(rows):
        if piece:
            begins = celled[index] != celled[index - 1]
            if begins or (not celled[index] and _begins(piece, rows, index, leading, size)):
                yield Piece("table" if celled[index - 1] else "paragraph", piece)
                piece = []
        piece.append(row)
    if piece:
        yield Piece("table" if celled[-1] else "paragraph", piece)


def _mirrored(row: Line) -> Line:
    """Mirrors a row of Arabic or Hebrew, as if it were written from the left."""
    if row.text.isascii() or not _RIGHT_TO_LEFT.search(row.text):
        return row
    return replace(row, left=-row.right, right=-row.left, gaps=())


def _tables(rows: Sequence[Line]) -> list[bool]:
    """Returns for each row whether it belongs to a table: two or more consecutive rows with cells."""
    cells = [bool(cell_starts(row)) or bool(_LEADERS.search(row.text)) for row in rows]
    near = [
        0 < below.base - row.base < 3 * row.size and cells[index] and cells[index + 1]
        for index, (row, below) in enumerate(pairwise(rows))
    ]
    return [above or below for above, below in zip([False, *near], [*near, False], strict=True)] if rows else []


def cell_starts(row: Line) -> list[int]:
    """Returns the characters at which the second and later cells of a row begin; none begins after an item's mark."""
    mark = BULLET.match(row.text) or NUMBERED.match(row.text)
    first = mark.end() if mark else 6 if row.text[:1].isdigit() else 0
    return [place for place, left, right in row.gaps if right - left >= CELL * row.size and place > first]


def _begins(piece: list[Line], rows: Sequence[Line], index: int, leading: dict[int, float], common: float) -> bool:
    """Whether a row begins a new piece after the rows of `piece`."""
    row, above = rows[index], piece[-1]
    size, distance = row.size, row.base - above.base
    large = size > LARGER * common
    usual = leading.get(round(size), 1.2 * size)
    most = LOOSE * max(usual, leading.get(round(above.size), usual)) + 0.5
    if distance < -0.5 * size or distance > (max(most, LARGE * size) if large else most):
        return True
    if abs(size - above.size) > 0.08 * max(size, above.size):
        return True
    ended = ENDED.search(above.text) is not None
    beside = rows[max(0, index - 1 - NEIGHBOURS) : index + NEIGHBOURS]
    # The extent of the lines around the one above shows how much longer it could have been.
    room = max(other.right for other in beside if abs(other.left - above.left) < 5 * above.size) - above.right
    short = room > SLACK * size
    if above.bold != row.bold and (short or (row.bold and ended)):
        return True
    if above.fixed != row.fixed and (short or ended):
        return True
    if BULLET.match(row.text) or CAPTION.match(row.text) or (NUMBERED.match(row.text) and (short or ended)):
        return True
    if ended and (row.label or _SPEAKER.match(row.text)):
        return True
    if (above.fixed and row.fixed) or (above.bold and row.bold) or large:
        return False  # line ends of code and headings are arbitrary
    return _ends_on_purpose(piece, rows, index, room, ended)


def _ends_on_purpose(piece: list[Line], rows: Sequence[Line], index: int, room: float, ended: bool) -> bool:
    """Whether indentations or the space left on the row above mean that a paragraph ends there."""
    row, above = rows[index], piece[-1]
    shift = row.left - above.left
    if shift > INDENT * row.size:
        return not _hangs(piece, row, rows[index + 1] if index + 1 < len(rows) else None, ended)
    if shift < -INDENT * row.size:
        hung = above.left - piece[0].left >= INDENT * row.size
        return len(piece) > 1 and (not hung or ended or abs(row.left - piece[0].left) < INDENT * row.size)
    word = row.text.split(" ", 1)[0]
    width = len(word) * (row.right - row.left) / max(len(row.text), 1)
    return room > width + SLACK * row.size and (ended or not row.text[:1].islower())


def _hangs(piece: list[Line], row: Line, after: Line | None, ended: bool) -> bool:
    """Whether an indented row belongs to the same item or entry as the previous one."""
    if BULLET.match(piece[0].text) or NUMBERED.match(piece[0].text):
        return True
    if len(piece) > 1:
        return False
    return not ended or (after is not None and abs(after.left - row.left) < 0.4 * row.size and after.base > row.base)
