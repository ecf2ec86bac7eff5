"""The lines around and over the text of the pages of a PDF file: heads, feet, page numbers, stamps, watermarks.

They stand at the same height on several pages, and say the same but for a number that grows as the pages do.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from longspan_documents.text.pdf.lines import Line

DEPTH = 3
"""Rows at the upper and at the lower end of a page that may be its head or its foot."""
NEAR = 4.0
"""Points by which the same head may stand higher or lower on another page."""
SHARE = 0.4
"""Of the pages, which have a repeated line at a height where heads stand."""
LARGER = 1.4
"""Of the size of the text's letters; what is larger is no head of a page but of a chapter."""

WATERMARK = 2.0
"""Of the size of the text's letters; those of watermarks are larger."""

FEW, APART = 3, 1.8
"""In files of few pages a head or a foot stands apart from the text: so many sizes of letters from the next line."""

Repeated = dict[int, tuple[Line, int]]
"""By `id`, the lines that other pages have too, and on how many pages they stand."""

_NUMBER = re.compile(r"\d+")
_ROMAN = re.compile(r"\W*[ivxlc]{1,7}\W*", re.IGNORECASE)
_COUNTED = "\0"
"""Stands for any number."""


def common_size(pages: Sequence[Sequence[Line]]) -> float:
    """The size in which most letters of the pages are set, in points, to a half; 0 without letters."""
    letters = Counter[float]()
    for page in pages:
        for line in page:
            letters[round(2 * line.size) / 2] += len(line.text)
    return letters.most_common(1)[0][0] if letters else 0.0


def lines_in_margins(pages: Sequence[Sequence[Line]], size: float) -> set[int]:
    """The `id` of each line that belongs to the head, the foot or the margin of its page, or is a watermark."""
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
    """Whether a line of large letters lies over several others."""
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
    """The outermost rows at one end of a page, from outside."""
    rows: list[list[Line]] = []
    for line in sorted(lines, key=lambda line: line.base, reverse=end == "foot"):
        if not rows or abs(line.base - rows[-1][0].base) > NEAR:
            rows.append([])
        if len(rows) > DEPTH + 1:
            return rows[:-1]
        rows[-1].append(line)
    return rows


def _repeated(pages: Sequence[list[list[Line]]]) -> Repeated:
    """The lines that stand at the same height on other pages too, numbers of pages aside, and on how many pages."""
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
    from statistics import median  # late: the process of `main` starts sooner without

    while lines:
        middle = median(line.base for line in lines)
        near = [line for line in lines if abs(line.base - middle) <= NEAR] or lines[:1]
        yield near
        taken = set(map(id, near))
        lines = [line for line in lines if id(line) not in taken]


def _counts(lines: Sequence[Line]) -> bool:
    """Whether the numbers in the lines stay, or one of them grows as the pages do, from most of them to the next."""
    numbers = [[int(number[-9:]) for number in _NUMBER.findall(line.text)] for line in lines]
    turned = [second.page - first.page for first, second in pairwise(lines)]
    for place in range(len(numbers[0])):
        steps = [after[place] - before[place] for before, after in pairwise(numbers)]
        if any(steps) and 2 * sum(step == turn for step, turn in zip(steps, turned, strict=True)) >= len(steps):
            return True
    return all(one == numbers[0] for one in numbers)


def _heights(lines: Sequence[Line], pages: int) -> list[float]:
    """The heights at which a fair share of the pages, or of the left or the right ones, has a repeated line."""
    bases = sorted((line.base, line.page) for line in lines)
    heights: list[float] = []
    for base, _ in bases:
        if heights and base - heights[-1] <= NEAR:
            continue
        here = {page for other, page in bases if 0 <= other - base <= NEAR}
        if len(here) >= max(2, SHARE * pages / 2):
            heights.append(base)
    return heights
