"""Lines outside the text of PDF pages: page headers and footers, page numbers, stamps, watermarks.

They are at the same height on several pages, and are equal except for a number that increases with the pages.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from longspan_documents.text.pdf.lines import Line

DEPTH = 3
"""Number of rows at the top and bottom of a page that may be its header or footer."""
NEAR = 4.0
"""Maximum vertical difference, in points, of the same header on two pages."""
SHARE = 0.4
"""Minimum share of pages with a repeated line at the height of a header."""
LARGER = 1.4
"""Relative to the text's font size; larger lines are chapter headings instead of page headers."""

WATERMARK = 2.0
"""Relative to the text's font size; watermarks are larger."""

FEW, APART = 3, 1.8
"""In files with few pages, a header or footer is separated from the text by at least this multiple of the font size."""

Repeated = dict[int, tuple[Line, int]]
"""By `id`, the lines that occur on other pages too, and the number of these pages."""

_NUMBER = re.compile(r"\d+")
_ROMAN = re.compile(r"\W*[ivxlc]{1,7}\W*", re.IGNORECASE)
_COUNTED = "\0"
"""Replaces any number."""


def common_size(pages: Sequence[Sequence[Line]]) -> float:
    """Returns the font size of most letters of the pages, in points, rounded to halves; 0 without letters."""
    letters = Counter[float]()
    for page in pages:
        for line in page:
            letters[round(2 * line.size) / 2] += len(line.text)
    return letters.most_common(1)[0][0] if letters else 0.0


def lines_in_margins(pages: Sequence[Sequence[Line]], size: float) -> set[int]:
    """Returns the `id` of each line that is in the header, the footer or the margin of its page, or is a watermark."""
    outside = {id(line) for page in pages for line in page if not line.upright or _is_watermark(line, page, size)}
    for end in ("head", "foot"):
        upright = [[line for line in page if line.upright] for page in pages]
        rows = [_rows(page, end) for page in upright]
        repeated = _repeated(rows)
        heights = _heights([line for line, _ in repeated.values()], len(pages))
        for page in rows:
            outer: list[Line] = []
            for depth, row in enumerate(page[:DEPTH]):
                often = 2 if depth == 0 else max(2.0, SHARE * len(pages))
                if not all(_is_frame(line, repeated, heights, often, size) for line in row):
                    if len(pages) <= FEW and outer and abs(row[0].base - outer[-1].base) < APART * size:
                        outer = []
                    break
                outer.extend(row)
            outside.update(map(id, outer))
    return outside


def _is_watermark(line: Line, page: Sequence[Line], size: float) -> bool:
    """Whether a line of large letters overlaps several others."""
    if line.size < WATERMARK * size:
        return False
    under = [
        other
        for other in page
        if line.base - line.size < other.base < line.base
        and other.size * WATERMARK < line.size
        and min(other.right, line.right) - max(other.left, line.left) > line.size
    ]
    return len(under) > 1


def _is_frame(line: Line, repeated: Repeated, heights: Sequence[float], often: float, size: float) -> bool:
    times = repeated[id(line)][1] if id(line) in repeated else 0
    near = any(0 <= line.base - height <= NEAR for height in heights)
    return near and times >= often and line.size <= LARGER * size


def _rows(lines: Sequence[Line], end: str) -> list[list[Line]]:
    """Returns the outermost rows at one end of a page, from outside."""
    rows: list[list[Line]] = []
    for line in sorted(lines, key=lambda line: line.base, reverse=end == "foot"):
        if not rows or abs(line.base - rows[-1][0].base) > NEAR:
            rows.append([])
        if len(rows) > DEPTH + 1:
            return rows[:-1]
        rows[-1].append(line)
    return rows


def _repeated(pages: Sequence[list[list[Line]]]) -> Repeated:
    """Returns the lines at the same height on other pages too, ignoring page numbers, and the number of these pages."""
    same: dict[str, list[Line]] = defaultdict(list)
    for page in pages:
        for line in (line for row in page[:DEPTH] for line in row):
            text = "roman" if _ROMAN.fullmatch(line.text) else _NUMBER.sub(_COUNTED, line.text.casefold())
            same[text].append(line)
    repeated: Repeated = {}
    for text, lines in same.items():
        for group in _at_one_height(lines):
            if len({line.page for line in group}) > 1 and (_COUNTED not in text or _counts(group)):
                repeated |= {id(line): (line, len(group)) for line in group}
    return repeated


def _at_one_height(lines: list[Line]) -> Iterator[list[Line]]:
    from statistics import median  # late: the process of `main` starts faster without it

    while lines:
        middle = median(line.base for line in lines)
        near = [line for line in lines if abs(line.base - middle) <= NEAR] or lines[:1]
        yield near
        taken = set(map(id, near))
        lines = [line for line in lines if id(line) not in taken]


def _counts(lines: Sequence[Line]) -> bool:
    """Whether the numbers in the lines are constant, or one of them increases with the pages for most of them."""
    numbers = [[int(number[-9:]) for number in _NUMBER.findall(line.text)] for line in lines]
    turned = [second.page - first.page for first, second in pairwise(lines)]
    for place in range(len(numbers[0])):
        steps = [after[place] - before[place] for before, after in pairwise(numbers)]
        if any(steps) and 2 * sum(step == turn for step, turn in zip(steps, turned, strict=True)) >= len(steps):
            return True
    return all(one == numbers[0] for one in numbers)


def _heights(lines: Sequence[Line], pages: int) -> list[float]:
    """Returns the heights at which a sufficient share of all, left or right pages has a repeated line."""
    bases = sorted((line.base, line.page) for line in lines)
    heights: list[float] = []
    for base, _ in bases:
        if heights and base - heights[-1] <= NEAR:
            continue
        here = {page for other, page in bases if 0 <= other - base <= NEAR}
        if len(here) >= max(2, SHARE * pages / 2):
            heights.append(base)
    return heights
