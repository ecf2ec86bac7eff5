"""The reading order of a page: columns from left to right, between what runs across them.

A gutter is a strip that few lines cross, with lines of prose on both of its sides: as long, as even and as often
continued as those of columns are, and those of tables are not. What crosses it (a title, a wide figure's caption) cuts
the page into bands, which are read one after the other, in each the left side before the right one; a side may have a
gutter of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from longspan.data.text.pdf.lines import Line

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
    found: list[list[Line]] = []
    for band, across in bands:
        pieces = [piece for line in band for piece in _cut(line, gutter)]
        sides = [side for number in (-1, 1) if (side := [line for line in pieces if _side(line, gutter) == number])]
        if all(_is_prose([span for line in side for span in _spans(line)]) for side in sides):
            for side in sides:
                found.extend(regions(side))
        elif band:
            found.append(band)
        if across:
            found.append(across)
    return found


def _bands(lines: Sequence[Line], gutter: Gutter) -> Iterator[tuple[list[Line], list[Line]]]:
    """From above, lines beside the gutter or with a wide space at it, and the lines across it that stand below them."""
    across = sorted((line for line in lines if _crosses(line, gutter)), key=lambda line: line.base)
    across = [line for line in across if not _has_neighbour(line, lines)]
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


def _has_neighbour(line: Line, lines: Sequence[Line]) -> bool:
    """Whether another line stands on the same base line, as in a row of authors."""
    return any(other is not line and abs(other.base - line.base) < line.size / 2 for other in lines)


def _between(lines: Sequence[Line], above: float, below: float, alone: set[int]) -> list[Line]:
    return [line for line in lines if above <= line.base < below and id(line) not in alone]


def _crosses(line: Line, gutter: Gutter) -> bool:
    return len(_cut(line, gutter)) == 1 and not _side(line, gutter)


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
    found = [
        (crossing[start], start - stop, start)
        for start, stop in _valleys(crossing)
        if min(before[start], len(spans) - behind[stop - 1]) >= FEWEST and crossing[start] <= CROSSED * whole
    ]
    for _, width, start in sorted(found):
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
