"""What the pieces of a PDF file are: headings and their levels, items, captions, notes, code, formulas."""

from __future__ import annotations

import re
from collections.abc import Sequence

from longspan.data.text.blocks import Kind
from longspan.data.text.pdf.blocks import BULLET, CAPTION, ENDED, LARGER, NUMBERED, Piece
from longspan.data.text.plain_text import SECTIONS

SMALLER, SMALLEST = 0.93, 0.85
"""Of the common size of letters; notes at the foot of a page are smaller than the first, no heading than the second."""
LONGEST_HEADING = 200
"""Characters."""
DEEPEST = 6
WORDY = 0.4
"""The share of words in the characters of a text; what has less is a formula."""

_FLOWING: frozenset[Kind] = frozenset({"heading", "paragraph", "item"})
"""What a paragraph cannot go on behind; notes, captions, tables and formulas may stand in its way."""
_NUMBER = re.compile(r"(?:(\d{1,2}(?:\.\d{1,2}){0,4})\.?|[IVX]{1,5}\.|[A-Z]\.(?:\d+\.?)*|§\s?\d+)\s+(?=[^\W\d_])")
_NOTE = re.compile(r"(?:\d{1,3}|[*†‡§¶∗]{1,3})\s?[^\W\d_(]")
_WORD = re.compile(r"[^\W\d_]{3,}|[\u3040-\u9fff\uac00-\ud7af]+")


def classify(columns: Sequence[Sequence[Piece]], size: float) -> None:
    """Say of each piece in the columns what it is; `size` is the common one of letters."""
    for column in columns:
        for piece in column:
            if piece.kind == "paragraph":
                piece.kind = _kind(piece, size)
        _notes(column, size)
    _authors([piece for column in columns for piece in column if piece.lines[0].page == 0])
    pieces = [piece for column in columns for piece in column]
    _levels([piece for piece in pieces if piece.kind == "heading"])
    _depths([piece for piece in pieces if piece.kind == "item"])


def _kind(piece: Piece, size: float) -> Kind:
    text = piece.text
    if CAPTION.match(text):
        return "caption"
    if len(piece.lines) > 1 and all(line.fixed for line in piece.lines):
        return "code"
    if _is_heading(piece, text, size):
        return "heading"
    if BULLET.match(text) or NUMBERED.match(text):
        return "item"
    if sum(map(len, _WORD.findall(text))) < WORDY * len(text.replace(" ", "")):
        return "code"
    return "paragraph"


def _is_heading(piece: Piece, text: str, size: float) -> bool:
    words = _WORD.findall(text)
    if not words or len(text) > LONGEST_HEADING or BULLET.match(text):
        return False
    if SECTIONS.fullmatch(_NUMBER.sub("", text).strip(" .:—–-")):
        return True
    if sum(map(len, words)) < WORDY * len(text.replace(" ", "")) or text[-1] in ",;":
        return False
    if piece.size >= LARGER * size:
        return text[-1] != "." or _NUMBER.match(text) is not None
    if ENDED.search(text) and not text.endswith(("?", "!")):
        return False
    if len(piece.lines) > 2 or piece.size < SMALLEST * size:
        return False
    return all(line.bold for line in piece.lines) or (_NUMBER.match(text) is not None and text.isupper())


def _authors(pieces: Sequence[Piece]) -> None:
    """Call notes what stands between the title and the first real heading in letters as large as those of headings."""
    headings = [index for index, piece in enumerate(pieces) if piece.kind == "heading"]
    title = max(headings, key=lambda index: pieces[index].size, default=len(pieces))
    for index in range(title + 1, len(pieces)):
        piece = pieces[index]
        if piece.kind != "heading" or SECTIONS.match(piece.text) or _NUMBER.match(piece.text):
            return
        if index + 1 == len(pieces) or pieces[index + 1].kind in {"paragraph", "item"}:
            return
        piece.kind = "note"


def _levels(headings: Sequence[Piece]) -> None:
    """Levels by size, then weight, then numbers: "2.1" is deeper than "2"."""

    def rank(piece: Piece) -> tuple[float, bool, int]:
        number = _NUMBER.match(piece.text)
        depth = number[1].count(".") if number and number[1] else 0
        return -round(2 * piece.size) / 2, not piece.lines[0].bold, depth

    ranks = sorted({rank(piece) for piece in headings})
    for piece in headings:
        piece.level = min(ranks.index(rank(piece)) + 1, DEEPEST)


def _depths(items: Sequence[Piece]) -> None:
    """How deep items stand, by how far those before them on the page were indented."""
    open_: list[tuple[float, int]] = []
    for piece in items:
        left, page = piece.lines[0].left, piece.lines[0].page
        while open_ and (open_[-1][1] != page or open_[-1][0] > left - piece.size / 2):
            open_.pop()
        open_.append((left, page))
        piece.level = len(open_)


def _notes(column: Sequence[Piece], size: float) -> None:
    """Call notes what stands in small letters at the foot of a column, from the first mark of a note on."""
    first = len(column)
    for index in range(len(column) - 1, -1, -1):
        piece = column[index]
        if piece.kind not in {"paragraph", "item", "heading"} or piece.size > SMALLER * size:
            break
        if _NOTE.match(piece.text):
            first = index
    for piece in column[first:]:
        piece.kind = "note"


def with_whole_formulas(column: Sequence[Piece]) -> list[Piece]:
    """The pieces with those of one formula, which stand above and below each other, put together."""
    pieces: list[Piece] = []
    for piece in column:
        if pieces and pieces[-1].kind == piece.kind == "code":
            pieces[-1].lines.extend(piece.lines)
        else:
            pieces.append(piece)
    return pieces


def join(columns: Sequence[Sequence[Piece]]) -> None:
    """Mark the paragraphs that go on at the beginning of the next column or page, past notes, captions and tables."""
    open_: Piece | None = None
    for column in columns:
        for index, piece in enumerate(column):
            if piece.kind not in _FLOWING:
                continue
            if open_ is not None and _goes_on(open_, piece):
                piece.begun, piece.kind, piece.level = open_.begun or open_, open_.kind, open_.level
            last = not any(other.kind in _FLOWING for other in column[index + 1 :])
            open_ = piece if last and piece.kind != "heading" else None


def _goes_on(before: Piece, piece: Piece) -> bool:
    if piece.kind != "paragraph" or abs(piece.size - before.size) > 0.08 * before.size:
        return False
    first, text = piece.lines[0].text[0], before.text
    if text[-1] in "-\u2010\u00ad" and first.isalpha():
        return True
    return not ENDED.search(text) and (first.islower() or not first.isupper() or text[-1].isalnum() or text[-1] == ",")
