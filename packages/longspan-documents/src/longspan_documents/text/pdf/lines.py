"""The lines of a PDF page with their positions and fonts, as PDFium finds them.

PDFium ends a line broken by a hyphen with a mark, U+FFFE (U+0002 in older versions), and appends the next line.
Superscripts and subscripts are marked as in `longspan.data.text.scripts`.
"""

from __future__ import annotations

import ctypes
import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from itertools import accumulate, groupby, islice, pairwise
from math import atan2, hypot, inf, pi
from typing import Any

from longspan.data.text.scripts import LEVEL, LOWERED, RAISED
from longspan.errors import InputError
from longspan.imports import require
from longspan.workers import run_bounded

_LIGATURES = {0x0B: "ff", 0x0C: "fi", 0x0E: "ffi", 0x0F: "ffl"}
_LIGATURES |= {0x1B: "ff", 0x1C: "fi", 0x1D: "fl", 0x1E: "ffi", 0x1F: "ffl"}
"""Codes of TeX's fonts (OT1 and T1), which remain if a font has no character map."""
_LINE = re.compile("[^\r\n\x02\ufffe]+[\x02\ufffe]?")
_WORD = re.compile(r"(?:[^\s\x02\ufffe\0]|[\x0b\x0c\x1c-\x1f])+")
_DIGIT_INSIDE = re.compile(r"(?<=\S)\d(?=[^\s\d\x02\ufffe])")
_CAPITAL = re.compile(r"[\"'“‘«„¡¿]?[^\W\d_](?=[^\r\n])")
_BOLD = re.compile(rb"bold|black|heavy|demi|medi(?![a-z])|cmb|cmssbx|-bd|[a-z]tb$", re.IGNORECASE)
_FIXED = re.compile(rb"mono|courier|typewriter|consol|cmtt|sftt|cmsltt|-tt", re.IGNORECASE)
_FIXED_PITCH, _FORCED_BOLD = 1, 1 << 18
"""Bits of the flags in a font's descriptor (PDF 32000-1, table 123)."""

GAP = 0.75
"""Relative to the font size; wider spaces between words are recorded, since a column or a cell may end there."""
UNEVEN = 0.06
"""Relative to the font size; maximum difference of character boxes of one font on one base line."""
UP, UP_ALONE, DOWN, SMALL = 0.15, 0.25, -0.06, 0.88
"""Relative to a line's font size: height of superscripts above its base line, or of digits of the same size; depth of
subscripts below it; and their maximum size."""
DROPPED = 1.6
"""Relative to a text's font size; drop capitals are larger."""
FEWEST, BETWEEN_WORDS = 5, 1.6
"""Minimum letters of a letter-spaced heading; a space between words, relative to the usual one in it."""
FEW_LETTERS, COVERED, MOST_IMAGES = 60, 0.5, 1_000
"""A page with fewer letters, such as its number and a stamp, of which images cover this share, is a picture; maximum
number of images whose areas are summed."""
ASKEW = 0.1
"""In quarter turns; letters rotated further from all quarters are a stamp or a watermark."""
MEMORY = 1 << 30
"""Memory limit, in bytes, of the process that lays out a file, in addition to the file."""
PASSWORD = 4
"""PDFium's error number for a file with a password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line, or its part in one column. Measures are in points.

    Attributes:
        text: its words; a hyphen at the end may break a word.
        page: index of its page, from 0.
        left, right: horizontal extent of its words.
        base: distance of its base line from the top of the page.
        size: font size.
        bold: whether its first, its longest and its last word are bold.
        fixed: whether those words have a fixed-width font, as programs do.
        gaps: for each wide space the character after it, its left and its right end.
        upright: whether it has the orientation of most letters of the page.
        label: number of bold words at the beginning of a line that is not bold.
    """

    text: str
    page: int
    left: float
    right: float
    base: float
    size: float
    bold: bool = False
    fixed: bool = False
    gaps: tuple[tuple[int, float, float], ...] = ()
    upright: bool = True
    label: int = 0

    def cut(self, number: int) -> tuple[Line, Line]:
        """Returns the parts before and after the wide space `gaps[number]`."""
        place, end, begin = self.gaps[number]
        behind = tuple((start - place, left, right) for start, left, right in self.gaps[number + 1 :])
        before = replace(self, text=self.text[:place].rstrip(), right=end, gaps=self.gaps[:number])
        return before, replace(self, text=self.text[place:], left=begin, gaps=behind, label=0)


def lines_of_pages(data: bytes, name: str) -> tuple[list[list[Line]], list[int]]:
    """Returns the lines of each page, read by another process (see `main`), and the pages, from 0, that are
    pictures."""
    require("pypdfium2", extra="documents", purpose="reading PDF")
    limit = MEMORY + 2 * len(data)
    written = run_bounded(f"{__name__}:main", data, limit, name=name, does="lays it out")
    if written is None:
        raise InputError(
            f"{name} needs more than {limit >> 20} MiB of memory to be laid out, or is damaged in a way that PDFium "
            "does not survive; print it to a new PDF, or convert it to text"
        )
    answer = json.loads(written)
    if "pages" in answer:
        return [list(map(line_of, page)) for page in answer["pages"]], answer["pictures"]
    if answer["number"] == PASSWORD:
        raise InputError(f"{name} is encrypted; save a copy without a password")
    reason = " ".join(answer["reason"].split()).rstrip(".")
    raise InputError(f"{name} cannot be read as PDF ({reason}); save it again, or convert it to text")


def main(data: bytes) -> str:
    """Returns the lines of the pages of a PDF file as JSON, or the reason why it cannot be read.

    This runs in a separate process with limited memory, because PDFium cannot be interrupted: it draws every form that
    a page uses, and forms that draw each other twice, forty levels deep, are 10¹² objects in a file of a few kilobytes.
    If memory runs out, PDFium aborts its process.
    """
    import pypdfium2

    try:
        with closing(pypdfium2.PdfDocument(data)) as document:
            pages = [[astuple(line) for line in lines_of_page(document, page)] for page in range(len(document))]
            few = [number for number, page in enumerate(pages) if sum(len(line[0]) for line in page) < FEW_LETTERS]
            pictures = [number for number in few if is_picture(document, number)]
            return json.dumps({"pages": pages, "pictures": pictures})
    except pypdfium2.PdfiumError as error:
        return json.dumps({"reason": str(error), "number": getattr(error, "err_code", None)})


def line_of(fields: list[Any]) -> Line:
    """Returns a line from the output of `main`."""
    text, page, left, right, base, size, bold, fixed, gaps, upright, label = fields
    return Line(
        text=text,
        page=page,
        left=left,
        right=right,
        base=base,
        size=size,
        bold=bold,
        fixed=fixed,
        gaps=tuple(map(tuple, gaps)),
        upright=upright,
        label=label,
    )


def lines_of_page(document: Any, number: int) -> list[Line]:
    """Returns the lines of a page in the order of the file."""
    with closing(document[number]) as page, closing(page.get_textpage()) as text:
        reader = _Reader(text, number, page.get_bbox())
        found = [match for match in _LINE.finditer(reader.letters) if _WORD.search(match[0])]
        lines = [line for match in found for line in reader.lines(match)]
    turns = Counter[int]()
    for turn, line in lines:
        turns[turn] += len(line.text)
    most = turns.most_common(1)[0][0] if turns else 0
    return [line if turn == most else replace(line, upright=False) for turn, line in lines]


def is_picture(document: Any, number: int) -> bool:
    """Whether images cover most of a page, as in scans."""
    import pypdfium2.raw as pdfium

    with closing(document[number]) as page:
        left, bottom, right, top = page.get_bbox()
        covered = 0.0
        for image in islice(page.get_objects(filter=[pdfium.FPDF_PAGEOBJ_IMAGE], max_depth=3), MOST_IMAGES):
            begin, low, end, high = image.get_bounds()
            covered += max(min(end, right) - max(begin, left), 0) * max(min(high, top) - max(low, bottom), 0)
        return covered > COVERED * (right - left) * (top - bottom)


class _Reader:
    """Reads the lines of one page from PDFium's text."""

    def __init__(self, text: Any, number: int, page_box: tuple[float, float, float, float]) -> None:
        import pypdfium2.raw as pdfium

        self.pdfium, self.text, self.number, self.page_box = pdfium, text.raw, number, page_box
        self.box, self.matrix = pdfium.FS_RECTF(), pdfium.FS_MATRIX()
        self.box_there, self.matrix_there = ctypes.byref(self.box), ctypes.byref(self.matrix)
        self.name, self.flags = ctypes.create_string_buffer(128), ctypes.c_int()
        self.flags_there = ctypes.byref(self.flags)
        self.letters = self._letters(text)
        self.dropped = 0

    def _letters(self, text: Any) -> str:
        """Returns the page's text with one character for each UTF-16 unit counted by PDFium."""
        # Unpaired surrogates, from a font with a broken table, are replaced by the caller, as for every kind of file.
        letters = text.get_text_range(errors="surrogatepass")
        count = text.count_chars()
        if len(letters) == count:
            return letters
        return "".join(chr(self.pdfium.FPDFText_GetUnicode(self.text, index)) for index in range(count))

    def lines(self, match: re.Match[str]) -> Iterator[tuple[int, Line]]:
        """Yields the rotation of a line in quarter turns, 4 for others, and the line; a drop capital is a line of its
        own."""
        turned = self.line(match)
        if not self.dropped:
            yield turned
            return
        begin, end = match.span()
        for part in (
            _LINE.match(self.letters, begin, begin + self.dropped),
            _LINE.match(self.letters, begin + self.dropped, end),
        ):
            if part is not None and _WORD.search(part[0]):
                yield self.line(part)

    def line(self, match: re.Match[str]) -> tuple[int, Line]:
        """Returns a line as in `lines`, and stores in `dropped` the length of a drop capital at its beginning."""
        begin = match.start()
        words = [(begin + start, begin + end - 1) for start, end in map(re.Match.span, _WORD.finditer(match[0]))]
        longest = max(last - first for first, last in words)
        main = next(first for first, last in words if last - first == longest)
        main += longest // 2 if longest > 2 else 0  # the first letter may be a superscript mark
        fonts = [self._font(index) for index in dict.fromkeys((words[0][0], main, words[-1][0]))]
        size = self._size(main)
        angle = atan2(self.matrix.b, self.matrix.a) / (pi / 2)
        turn = round(angle) % 4 if abs(angle - round(angle)) < ASKEW else 4
        base = self._box(main, turn)[2]
        left, right, gaps, uneven = self._extent(words, turn, size, match)
        scripts = list(self._scripts(uneven, main, size)) if uneven and size > 0 else []
        self.dropped = self._drop_capital(match[0], begin, main, size) if uneven and uneven[0] == words[0] else 0
        text, places = _marked(match[0], [first - begin for first, _, _ in gaps], begin, scripts)
        text, places = _cleaned(text, places)
        if longest == 0 and (spaced := self._without_tracking(words, turn)):
            text, gaps, places = spaced, [], []
        return turn, Line(
            text=text,
            page=self.number,
            left=left,
            right=right,
            base=base,
            size=size,
            bold=(bold := all(one for one, _ in fonts)),
            fixed=all(fixed for _, fixed in fonts),
            gaps=tuple((place, gap[1], gap[2]) for place, gap in zip(places, gaps, strict=True)),
            label=self._label(words) if fonts[0][0] and not bold else 0,
        )

    def _label(self, words: list[tuple[int, int]]) -> int:
        """Returns the number of bold words at the beginning of a line."""
        return next((number for number, (first, _) in enumerate(words) if not self._font(first)[0]), len(words))

    def _extent(
        self, words: list[tuple[int, int]], turn: int, size: float, line: re.Match[str]
    ) -> tuple[float, float, list[tuple[int, float, float]], list[tuple[int, int]]]:
        """Returns the horizontal extent of a line, its wide spaces with the letters before which they are, and its
        words with letters above or below `self.box`, that of its longest word."""
        box_of, text, box, there = self.pdfium.FPDFText_GetLooseCharBox, self.text, self.box, self.box_there
        edge, wide = self.page_box[0], GAP * size
        low, high = box.bottom - UNEVEN * size, box.bottom + UNEVEN * size
        left, right, gaps, uneven = inf, -inf, [], []
        for first, last in words:
            if turn:
                start, end = self._box(first, turn)[0], self._box(last, turn)[1]
            else:  # the usual case, without a call for each letter
                box_of(text, first, there)
                start, bottom = box.left - edge, box.bottom
                if last > first:
                    box_of(text, last, there)
                end = box.right - edge
                if not (low < bottom < high and low < box.bottom < high):
                    uneven.append((first, last))
            if start - right > wide and right > left:
                gaps.append((first, right, start))
            if start < left:
                left = start
            if end > right:
                right = end
        for digit in () if turn else _DIGIT_INSIDE.finditer(line[0]):
            box_of(text, line.start() + digit.start(), there)
            if not low < box.bottom < high:
                uneven.append(words[bisect_right(words, (line.start() + digit.start(), inf)) - 1])
        return left, right, gaps, uneven

    def _without_tracking(self, words: list[tuple[int, int]], turn: int) -> str | None:
        """Returns the words of a letter-spaced heading, "T H E  R I V E R"; None if the letters are not one."""
        letters = "".join(self.letters[first] for first, _ in words)
        alphabetic = "".join(map(chr, range(ord(letters[0]), ord(letters[0]) + len(letters))))
        if len(letters) < FEWEST or not letters.isalpha() or not letters[0].isupper() or letters == alphabetic:
            return None
        edges = [self._box(first, turn)[:2] for first, _ in words]
        gaps = [begin - end for (_, end), (begin, _) in pairwise(edges)]
        most = BETWEEN_WORDS * sorted(gaps)[len(gaps) // 2]
        return letters[0] + "".join(
            f" {one}" if gap > most else one for gap, one in zip(gaps, letters[1:], strict=True)
        )

    def _drop_capital(self, line: str, begin: int, main: int, size: float) -> int:
        """Returns the length of a drop capital, which is lower and larger, at the beginning of a line."""
        capital = _CAPITAL.match(line)
        if capital is None or size <= 0 or self._size(begin + capital.end() - 1) < DROPPED * size:
            return 0
        return capital.end() if self._origin(main) - self._origin(begin + capital.end() - 1) > size / 3 else 0

    def _scripts(self, words: list[tuple[int, int]], main: int, size: float) -> Iterator[tuple[int, int, str]]:
        """Yields superscripts and subscripts in some words: first, last, and the mark before them."""
        ground = self._origin(main)

        def level(index: int) -> str:
            shift, shrunk = (self._origin(index) - ground) / size, self._size(index) < SMALL * size
            if shift > UP and (shrunk or (shift > UP_ALONE and self.letters[index].isdigit())):
                return RAISED
            return LOWERED if shift < DOWN and shrunk else ""

        for first, last in sorted(set(words)):
            for mark, indices in groupby(range(first, last + 1), key=level):
                if mark:
                    run = list(indices)
                    yield run[0], run[-1], mark

    def _origin(self, index: int) -> float:
        """Returns the distance of a letter's base line from the bottom of the page."""
        across, up = ctypes.c_double(), ctypes.c_double()
        self.pdfium.FPDFText_GetCharOrigin(self.text, index, ctypes.byref(across), ctypes.byref(up))
        return up.value

    def _size(self, index: int) -> float:
        self.pdfium.FPDFText_GetMatrix(self.text, index, self.matrix_there)
        return self.pdfium.FPDFText_GetFontSize(self.text, index) * hypot(self.matrix.c, self.matrix.d)

    def _box(self, index: int, turn: int) -> tuple[float, float, float]:
        """Returns the extent of a letter along its line, and its distance from the top of the page."""
        self.pdfium.FPDFText_GetLooseCharBox(self.text, index, self.box_there)
        box, (left, bottom, right, top) = self.box, self.page_box
        if turn == 0:
            return box.left - left, box.right - left, top - box.bottom
        if turn == 1:
            return box.bottom - bottom, box.top - bottom, box.right - left
        if turn == 2:
            return right - box.right, right - box.left, box.top - bottom
        return top - box.top, top - box.bottom, right - box.left

    def _font(self, index: int) -> tuple[bool, bool]:
        """Returns whether the font of a letter is bold, and whether it is fixed-width."""
        self.pdfium.FPDFText_GetFontInfo(self.text, index, self.name, 128, self.flags_there)
        return _kind_of_font(self.name.value, self.flags.value)


@lru_cache(maxsize=1024)
def _kind_of_font(name: bytes, flags: int) -> tuple[bool, bool]:
    bold = bool(flags & _FORCED_BOLD or _BOLD.search(name))
    return bold, bool(flags & _FIXED_PITCH or _FIXED.search(name))


def _marked(text: str, places: list[int], begin: int, scripts: list[tuple[int, int, str]]) -> tuple[str, list[int]]:
    """Marks superscripts and subscripts of a line, and returns the new positions of the letters at `places`.

    Args:
        text: text of the line.
        places: positions in it.
        begin: index of its first letter on the page.
        scripts: the result of `_Reader._scripts`.
    """
    if not scripts:
        return text, places
    put = [one for first, last, mark in scripts for one in ((first - begin, mark), (last + 1 - begin, LEVEL))]
    pieces = [text[start:end] + mark for (start, _), (end, mark) in pairwise([(0, ""), *put])]
    return "".join(pieces) + text[put[-1][0] :], [place + sum(at < place for at, _ in put) for place in places]


def _cleaned(text: str, places: list[int]) -> tuple[str, list[int]]:
    """Returns a line with single spaces and a hyphen for PDFium's mark, and the new positions of the words at
    `places`."""
    broken = "-" if text[-1] in "\x02\ufffe" else ""
    words = _WORD.findall(text)
    if not places:
        return _whole(" ".join(words)) + broken, []
    starts = [word.start() for word in _WORD.finditer(text)]
    lengths = accumulate((len(_whole(word)) + 1 for word in words), initial=0)
    new = dict(zip(starts, lengths, strict=False))
    return _whole(" ".join(words)) + broken, [new[place] for place in places]


def _whole(text: str) -> str:
    """Joins surrogate pairs, and replaces ligature codes by letters."""
    if not text.isprintable():
        text = text.translate(_LIGATURES)
    if text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
