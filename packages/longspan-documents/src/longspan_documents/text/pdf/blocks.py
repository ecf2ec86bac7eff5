"""From the lines of a PDF page to its paragraphs, in reading order: columns from left to right, between what runs
across them, and in each column headings, paragraphs, items, tables and captions.

A gutter is a strip that few lines cross, with lines of prose on both of its sides: as long, as even and as often
continued as those of columns are, and those of tables are not. What crosses it (a title, a wide figure's caption) cuts
the page into bands, which are read one after the other, in each the left side before the right one; a side may have a
gutter of its own.

A paragraph ends where the layout says so: a wider space below it, another size of letters, an indentation, or a line
that ends although the next word would have fitted. It goes on behind the end of a column or a page.
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
"""Lines on each side of a gutter."""
NARROWEST = 9
"""Of the size of the letters; the longer lines of a column are at least so wide."""
CROSSED = 0.5
"""The share that lines across a gutter may have in all that stands on the page, by their widths."""
EVEN, FILLED = 0.55, 0.6
"""Lines at least `EVEN` times as wide as the longer ones of a side make up the share `FILLED` of all that it holds."""
CONTINUED = 0.2
"""The share of a side's lines that begin with a small letter, by their widths, where the script has any."""
MOST_BANDS = 8
"""What more lines cross, here and there, is no gutter."""
OVERHANG = 1.2
"""Of the size of the letters; a line across a gutter reaches so far beyond both of its ends."""
BIN = 2.0
"""Points; steps in which a gutter is looked for."""

Gutter = tuple[float, float]
"""Its left and its right end."""
Span = tuple[float, float, float, str]
"""The left and the right end of a stretch between wide spaces, the size of its letters and the first of them."""


def regions(lines: Sequence[Line]) -> list[list[Line]]:
    """The lines of a page, column after column; where there is one column, as they were."""
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
    """From above, lines beside the gutter or with a wide space at it, and the lines across it that stand below them."""
    across = [line for line in lines if len(_cut(line, gutter)) == 1 and not _side(line, gutter)]
    across = [  # without those that share their base line with another, as in a row of authors
        line
        for line in sorted(across, key=lambda line: line.base)
        if not any(other is not line and abs(other.base - line.base) < line.size / 2 for other in lines)
    ]
    alone = set(map(id, across))
    beside = sorted((line for line in lines if id(line) not in alone), key=lambda line: line.base)
    runs: list[list[Line]] = []
    for line in across:  # those with nothing beside the gutter between them belong together
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
    """-1 for a line on the left of the gutter, 1 on its right, 0 across it."""
    begin, end = gutter
    if line.left < begin - OVERHANG * line.size and line.right > end + OVERHANG * line.size:
        return 0
    return -1 if line.left + line.right < begin + end else 1


def _cut(line: Line, gutter: Gutter) -> tuple[Line, ...]:
    """The line, or the parts of it where one of its wide spaces is the gutter."""
    for number, (_, left, right) in enumerate(line.gaps):
        if 2 * (min(right, gutter[1]) - max(left, gutter[0])) > gutter[1] - gutter[0]:
            return line.cut(number)
    return (line,)


def _gutter(lines: Sequence[Line]) -> Gutter | None:
    """The gutter that the least crosses, or None."""
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
    # To a thousandth of a point, since sums that should be equal differ by rounding.
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
    """Where the same lines cross, and more on both sides."""
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
"""Of the size of the letters; a line that begins so much further to the right or left is indented."""
LOOSE = 1.25
"""Of the usual distance of lines; more of it ends a paragraph."""
SLACK = 2.0
"""Of the size of the letters; how much space is left at least where a line ended on purpose."""
LARGER = 1.08
"""Of the common size of letters; headings are larger."""
LARGE = 1.8
"""Of the size of larger letters; the distance up to which lines of one heading stand apart."""
NEIGHBOURS = 6
"""Lines above and below a line among which the longest tells how long it could have been."""

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
    """Lines of one block that stand together.

    Attributes:
        kind: what they are.
        lines: in order.
        level: as of a block.
        begun: the piece with which their block began, where they are not its beginning.
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
        """Its lines, each with what stands between it and the next one."""
        pairs = pairwise(self.lines)
        return [*((line, space_between(line.text, after.text)) for line, after in pairs), (self.lines[-1], "")]

    @property
    def size(self) -> float:
        """The size of the letters of its longest line, in points."""
        return max(self.lines, key=lambda line: len(line.text)).size


def leadings(columns: Sequence[Sequence[Line]]) -> dict[int, float]:
    """For letters of each size, rounded to points, the usual distance of lines."""
    gaps: dict[int, list[float]] = defaultdict(list)
    for column in columns:
        for above, line in pairwise(column):
            distance = line.base - above.base
            if abs(above.size - line.size) < 0.5 and 0.8 * line.size < distance < 3 * line.size:
                gaps[round(line.size)].append(distance)
    return {size: sorted(distances)[len(distances) * 3 // 10] for size, distances in gaps.items()}


def pieces_of(rows: Sequence[Line], leading: dict[int, float], size: float) -> Iterator[Piece]:
    """The rows of one column as pieces; `classify` tells headings, notes and levels.

    Args:
        rows: what `rows_of` gave.
        leading: what `leadings` gave.
        size: the common size of letters.
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
    """A row of Arabic or Hebrew as if it were written from the left."""
    if row.text.isascii() or not _RIGHT_TO_LEFT.search(row.text):
        return row
    return replace(row, left=-row.right, right=-row.left, gaps=())


def _tables(rows: Sequence[Line]) -> list[bool]:
    """For each row whether it belongs to a table: two or more rows with cells, one below the other."""
    cells = [bool(cell_starts(row)) or bool(_LEADERS.search(row.text)) for row in rows]
    near = [
        0 < below.base - row.base < 3 * row.size and cells[index] and cells[index + 1]
        for index, (row, below) in enumerate(pairwise(rows))
    ]
    return [above or below for above, below in zip([False, *near], [*near, False], strict=True)] if rows else []


def cell_starts(row: Line) -> list[int]:
    """The characters at which the second and later cells of a row begin; behind an item's mark begins none."""
    mark = BULLET.match(row.text) or NUMBERED.match(row.text)
    first = mark.end() if mark else 6 if row.text[:1].isdigit() else 0
    return [place for place, left, right in row.gaps if right - left >= CELL * row.size and place > first]


def _begins(piece: list[Line], rows: Sequence[Line], index: int, leading: dict[int, float], common: float) -> bool:
    """Whether a row begins a piece of its own behind the rows of `piece`."""
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
    # How far the lines around the one above reach tells how much longer it could have been.
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
        return False  # lines of code and of headings end where they like
    return _ends_on_purpose(piece, rows, index, room, ended)


def _ends_on_purpose(piece: list[Line], rows: Sequence[Line], index: int, room: float, ended: bool) -> bool:
    """Whether indentations or the space left on the row above say that a paragraph ends there."""
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
    """Whether a row further to the right than the one before belongs to the same item or entry."""
    if BULLET.match(piece[0].text) or NUMBERED.match(piece[0].text):
        return True
    if len(piece) > 1:
        return False
    return not ended or (after is not None and abs(after.left - row.left) < 0.4 * row.size and after.base > row.base)
