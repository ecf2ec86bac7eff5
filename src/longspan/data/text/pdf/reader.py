"""A PDF file, read with PDFium, as a document of blocks."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from longspan.characters import mend, mended_note
from longspan.data.text.blocks import Document
from longspan.data.text.pdf import lines
from longspan.data.text.pdf.blocks import Piece, leadings, pieces_of, regions, rows_of
from longspan.data.text.pdf.lines import Line, common_size, lines_in_margins
from longspan.data.text.pdf.structure import classify, join, laid_out, mend_words, with_whole_formulas
from longspan.errors import InputError
from longspan.imports import require

logger = logging.getLogger(__name__)

MEMORY = 1 << 30
"""Bytes that the process may take which lays a file out, besides the file itself."""
PASSWORD = 4
"""PDFium's number for a file that asks for one."""

TITLE = 1.15
"""Of the common size of letters; a title is larger."""


def document_from_pdf(data: bytes, name: str) -> Document:
    """The blocks of a PDF file in reading order; heads and feet of pages are boilerplate, notes are notes.

    Its text has the lines as they were printed, but for words broken at line ends, which stand whole at the end of
    their first line. Blank lines separate blocks; a block that goes on behind a note or on the next page has one body.

    Args:
        data: the whole file.
        name: what error messages call it.

    Raises:
        InputError: the file is damaged, encrypted with a password, draws more than fits into `MEMORY`, or holds images
            of text only.
    """
    pages = _pages(data, name)
    if not any(pages):
        raise InputError(f"{name} holds no text on its {len(pages)} pages, likely scans; run text recognition first")
    halves = sum(mend(line.text)[1] for page in pages for line in page)
    if halves:  # of a font with a broken table
        logger.warning("note: %s: %s", name, mended_note(halves))
        pages = [[replace(line, text=mend(line.text)[0]) for line in page] for page in pages]
    size = common_size(pages)
    frame = lines_in_margins(pages, size)
    columns = [
        [rows_of(column) for column in regions([line for line in page if id(line) not in frame])] for page in pages
    ]
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
    title = max(titles, key=lambda piece: piece.size).text if titles else None
    return Document(text=text, blocks=tuple(blocks), pages=tuple(starts), title=title, name=name)


def _pages(data: bytes, name: str) -> list[list[Line]]:
    """The lines of each page, which another process finds: see `longspan.data.text.pdf.lines.main`."""
    require("pypdfium2", extra="documents", purpose="reading PDF")
    limit = MEMORY + 2 * len(data)
    # -P: no module of the folder in which the user happens to stand.
    command = [sys.executable, "-P", "-c", f"from {lines.__name__} import main; main()", str(limit)]
    path = os.pathsep.join(place or os.getcwd() for place in sys.path)
    done = subprocess.run(command, input=data, capture_output=True, check=False, env={**os.environ, "PYTHONPATH": path})
    if done.returncode < 0 or done.returncode == lines.TOO_MUCH:
        raise InputError(
            f"{name} needs more than {limit >> 20} MiB of memory to be laid out, or is damaged in a way that PDFium "
            "does not survive; print it to a new PDF, or convert it to text"
        )
    if done.returncode:
        raise RuntimeError(done.stderr.decode("utf-8", "replace"))
    answer = json.loads(done.stdout)
    if "pages" in answer:
        return [list(map(lines.line_of, page)) for page in answer["pages"]]
    if answer["number"] == PASSWORD:
        raise InputError(f"{name} is encrypted; save a copy without a password")
    reason = " ".join(answer["reason"].split()).rstrip(".")
    raise InputError(f"{name} cannot be read as PDF ({reason}); save it again, or convert it to text")


def _page(printed: Sequence[Line], columns: Sequence[Sequence[Piece]], frame: set[int]) -> Iterator[Piece]:
    """The pieces of a page: its head, its columns, its foot and margins."""
    columns = [[piece for piece in column if piece.lines] for column in columns]  # all words of some were joined
    first = min((piece.lines[0].base for column in columns for piece in column), default=float("inf"))
    around_it = [line for line in printed if id(line) in frame]
    above = [line for line in around_it if line.upright and line.base < first]
    yield from (Piece("boilerplate", [line]) for line in above)
    for column in columns:
        yield from column
    yield from (Piece("boilerplate", [line]) for line in around_it if not line.upright or line.base >= first)
