"""PDF files, read with PDFium, as documents of blocks: classification of the pieces of their pages, and their text.

Pieces are headings with their levels, items, captions, notes, code or formulas. They form the text as printed, and each
block has its positions in that text.

Words broken at line ends are joined; `longspan_documents.text.hyphens` decides whether the hyphen stays.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from longspan.characters import mend, mended_note
from longspan.errors import InputError
from longspan_documents.text.blocks import Block, Document, Kind, Traced, space_between
from longspan_documents.text.hyphens import HYPHENS, joined, words_of
from longspan_documents.text.pdf.blocks import (
    BULLET,
    CAPTION,
    ENDED,
    LARGER,
    NUMBERED,
    Piece,
    cell_starts,
    leadings,
    pieces_of,
    regions,
)
from longspan_documents.text.pdf.lines import Line, lines_of_pages
from longspan_documents.text.pdf.margins import common_size, lines_in_margins
from longspan_documents.text.pdf.recognition import recognised_pages
from longspan_documents.text.pdf.rows import notes_marked, plain, rows_of
from longspan_documents.text.plain_text import SECTIONS
from longspan_documents.text.titles import could_be_title

logger = logging.getLogger(f"longspan.{__name__}")

RECOGNISE = "read them by text recognition, with --ocr or ocr=True"

TITLE = 1.15
"""Relative to the common font size; a title is larger."""
SMALLER, SMALLEST = 0.93, 0.85
"""Relative to the common font size; notes at the foot of a page are smaller than the first, and no heading is smaller
than the second."""
LONGEST_HEADING = 200
"""In characters."""
DEEPEST = 6
WORDY = 0.4
"""The minimum share of words in the characters of a text; otherwise it is a formula."""

_FLOWING: frozenset[Kind] = frozenset({"heading", "paragraph", "item"})
"""Kinds after which a paragraph cannot continue; notes, captions, tables and formulas may be in between."""
_NUMBER = re.compile(r"(?:(\d{1,2}(?:\.\d{1,2}){0,4})\.?|[IVX]{1,5}\.|[A-Z]\.(?:\d+\.?)*|§\s?\d+)\s+(?=[^\W\d_])")
_NOTE = re.compile(r"(?:\d{1,3}|[*†‡§¶∗]{1,3})\s?[^\W\d_(]")
_WORD = re.compile(r"[^\W\d_]{3,}|[\u3040-\u9fff\uac00-\ud7af]+")


def document_from_pdf(data: bytes, name: str, *, ocr: bool = False) -> Document:
    """Returns the blocks of a PDF file in reading order; page headers and footers are boilerplate, notes are notes.

    Pages that are pictures are listed in `Document.pictures`, with a warning in the log; text recognition reads them if
    requested.

    Its text has the printed lines, except for words broken at line ends, which are whole at the end of their first
    line. Blank lines separate blocks; a block that continues after a note or on the next page has one body.

    Args:
        data: the whole file.
        name: its name in error messages.
        ocr: whether pages that are pictures are read by text recognition.

    Raises:
        InputError: the file is damaged, encrypted with a password, takes too much memory (`MEMORY` of
            `longspan_documents.text.pdf.lines`), or has images of text only and `ocr` is False, or finds none.
    """
    pages, pictures = lines_of_pages(data, name)
    pictures = pictures or ([] if any(pages) else list(range(len(pages))))  # drawn otherwise than as one image
    if ocr and pictures:
        for number, recognised in zip(pictures, recognised_pages(data, name, pictures), strict=True):
            pages[number] = recognised
    if not any(pages):
        remedy = "and text recognition found none" if ocr else f"likely scans; {RECOGNISE}"
        raise InputError(f"{name} holds no text on its {len(pages)} pages, {remedy}")
    return document_of_lines(pages, name, pictures, pictures if ocr else [])


def document_from_image(data: bytes, name: str) -> Document:
    """Returns the blocks of an image file, of one or more pages, by text recognition.

    Raises:
        InputError: as `longspan_documents.text.pdf.recognition.recognised_pages`, or no text is found.
    """
    pages = recognised_pages(data, name)
    if not any(pages):
        raise InputError(f"{name} is an image in which text recognition found no text")
    return document_of_lines(pages, name, range(len(pages)), range(len(pages)))


def document_of_lines(
    pages: list[list[Line]], name: str, pictures: Sequence[int], recognised: Sequence[int]
) -> Document:
    """Returns the document of lines with positions.

    Args:
        pages: the lines of each page.
        name: its name in messages.
        pictures: the pages, from 0, that are pictures.
        recognised: those of them that were read by text recognition.
    """
    halves = sum(mend(line.text)[1] for page in pages for line in page)
    if halves:  # a font with a broken table
        logger.warning("note: %s: %s", name, mended_note(halves))
        pages = [[replace(line, text=mend(line.text)[0]) for line in page] for page in pages]
    size = common_size(pages)
    frame = lines_in_margins(pages, size)
    columns = [_rows([line for line in page if id(line) not in frame], size) for page in pages]
    leading = leadings([column for page in columns for column in page])
    pieces = [[list(pieces_of(column, leading, size)) for column in page] for page in columns]
    classify([column for page in pieces for column in page], size)
    pieces = [[with_whole_formulas(column) for column in page] for page in pieces]
    flow = [column for page in pieces for column in page]
    join(flow)
    mend_words([piece for column in flow for piece in column])
    ordered = [list(_page(page, inside, frame)) for page, inside in zip(pages, pieces, strict=True)]
    text, blocks, starts = laid_out(ordered)
    titles = [piece for piece in ordered[0] if piece.kind == "heading" and piece.size > TITLE * size]
    titles = [piece for piece in titles if could_be_title(piece.text)]
    title = max(titles, key=lambda piece: piece.size).text if titles else None
    document = Document(
        text=text,
        blocks=tuple(blocks),
        pages=tuple(starts),
        title=title,
        name=name,
        pictures=tuple(number + 1 for number in pictures),
        recognised=tuple(number + 1 for number in recognised),
    )
    if document.note:
        logger.warning("note: %s: %s", name, document.note)
    return document


def _rows(page: Sequence[Line], size: float) -> list[list[Line]]:
    """Returns the rows of a page, by column, as plain text."""
    columns = [rows_of(column) for column in regions(page)]
    notes = notes_marked([row for column in columns for row in column], SMALLER * size)
    return [[row for line in column if (row := plain(line, notes)).text] for column in columns]


def _page(printed: Sequence[Line], columns: Sequence[Sequence[Piece]], frame: set[int]) -> Iterator[Piece]:
    """Yields the pieces of a page: its header, its columns, its footer and margins."""
    columns = [
        [piece for piece in column if piece.lines] for column in columns
    ]  # all words of some were joined to others
    first = min((piece.lines[0].base for column in columns for piece in column), default=float("inf"))
    around_it = [line for line in printed if id(line) in frame]
    above = [line for line in around_it if line.upright and line.base < first]
    yield from (Piece("boilerplate", [plain(line)]) for line in above)
    for column in columns:
        yield from column
    yield from (Piece("boilerplate", [plain(line)]) for line in around_it if not line.upright or line.base >= first)


def classify(columns: Sequence[Sequence[Piece]], size: float) -> None:
    """Classifies each piece in the columns; `size` is the common font size."""
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
    """Marks as notes the pieces between the title and the first real heading with the font size of headings."""
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
    """Assigns levels by size, then weight, then numbers: "2.1" is deeper than "2"."""

    def rank(piece: Piece) -> tuple[float, bool, int]:
        number = _NUMBER.match(piece.text)
        depth = number[1].count(".") if number and number[1] else 0
        return -round(2 * piece.size) / 2, not piece.lines[0].bold, depth

    ranks = sorted({rank(piece) for piece in headings})
    for piece in headings:
        piece.level = min(ranks.index(rank(piece)) + 1, DEEPEST)


def _depths(items: Sequence[Piece]) -> None:
    """Assigns the depth of items by the indentation of previous items on the page."""
    open_: list[tuple[float, int]] = []
    for piece in items:
        left, page = piece.lines[0].left, piece.lines[0].page
        while open_ and (open_[-1][1] != page or open_[-1][0] > left - piece.size / 2):
            open_.pop()
        open_.append((left, page))
        piece.level = len(open_)


def _notes(column: Sequence[Piece], size: float) -> None:
    """Marks as notes the small print at the foot of a column, from the first note mark on."""
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
    """Returns the pieces, joining those of one formula, which are above and below each other."""
    pieces: list[Piece] = []
    for piece in column:
        if pieces and pieces[-1].kind == piece.kind == "code":
            pieces[-1].lines.extend(piece.lines)
        else:
            pieces.append(piece)
    return pieces


def join(columns: Sequence[Sequence[Piece]]) -> None:
    """Marks paragraphs that continue in the next column or page, past notes, captions and tables."""
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


VERBATIM: frozenset[Kind] = frozenset({"table", "code"})
"""Kinds that keep their lines."""


def mend_words(pieces: Sequence[Piece]) -> None:
    """Joins words broken at line ends, within a piece and across continued pieces."""
    words = words_of(line.text for piece in pieces for line in piece.lines)
    last: dict[int, Piece] = {}
    for piece in pieces:
        before = last.get(id(piece.begun))
        last[id(piece.begun or piece)] = piece
        if piece.kind in VERBATIM:
            continue
        places = [(piece, at) for at in range(len(piece.lines))]
        if before is not None:
            places.insert(0, (before, len(before.lines) - 1))
        for (first, at), (second, below) in pairwise(places):
            line, following = first.lines[at], second.lines[below]
            mended = joined(line.text, following.text, words) if line.text[-1:] in HYPHENS else None
            if mended is not None:
                first.lines[at], second.lines[below] = (
                    replace(line, text=mended[0]),
                    replace(following, text=mended[1]),
                )
    for piece in pieces:
        piece.lines = [line for line in piece.lines if line.text]


def laid_out(pages: Iterable[Sequence[Piece]]) -> tuple[str, list[Block], list[int]]:
    """Returns the text of the pages, its blocks in order, and the start of each page in the text."""
    parts: list[str] = []
    starts: list[int] = []
    lines: dict[int, list[tuple[int, str]]] = {}
    begun: dict[int, Piece] = {}
    length, before = 0, None
    for page in pages:
        starts.append(length)
        for piece in page:
            owner = piece.begun or piece
            if before is not None:
                parts.append("\n" if before is owner else "\n\n")
                length += len(parts[-1])
            if piece is page[0]:
                starts[-1] = length
            begun[id(owner)], before = owner, owner
            shown = list(_shown(piece))
            for number, line in enumerate(shown):
                lines.setdefault(id(owner), []).append((length, line))
                parts.append(line if number == len(shown) - 1 else f"{line}\n")
                length += len(parts[-1])
    blocks = [
        Block(kind=owner.kind, body=_body(lines[key], owner.kind), level=owner.level, label=_label(owner))
        for key, owner in begun.items()
    ]
    return "".join(parts), blocks, starts


def _label(piece: Piece) -> str:
    """Returns the bold words at the beginning of a piece, after the mark of an item."""
    first = piece.lines[0]
    words = " ".join(first.text.split(" ")[: first.label])
    mark = (BULLET.match(words) or NUMBERED.match(words)) if piece.kind == "item" else None
    return words[mark.end() :] if mark else words


def _body(lines: Sequence[tuple[int, str]], kind: Kind) -> Traced:
    """Returns the lines of a block on one line, or as lines if they are meaningful, with their positions in the
    text."""
    anchors: list[tuple[int, int]] = []
    text = ""
    for number, (there, line) in enumerate(lines):
        if number:
            text += "\n" if kind in VERBATIM else space_between(text, line)
        if not anchors or there - len(text) != anchors[-1][1] - anchors[-1][0]:
            anchors.append((len(text), there))
        text += line
    body = Traced(text, tuple(anchors), lines[-1][0] + len(lines[-1][1]))
    mark = (BULLET.match(text) or NUMBERED.match(text)) if kind == "item" else None
    return body.part(mark.end(), len(text)) if mark else body


def _shown(piece: Piece) -> Iterator[str]:
    """Yields the lines of a piece for the text: rows of tables with bars, code with its indentation."""
    edge = min(line.left for line in piece.lines)
    for line in piece.lines:
        if piece.kind == "table":
            edges = [0, *cell_starts(line), len(line.text)]
            yield f"| {' | '.join(line.text[start:end].strip() for start, end in pairwise(edges))} |"
        elif piece.kind == "code" and line.fixed:
            width = (line.right - line.left) / max(len(line.text), 1)
            yield " " * min(round((line.left - edge) / max(width, 1.0)), 80) + line.text
        else:
            yield line.text
