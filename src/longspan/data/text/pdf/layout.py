"""The text of a document out of its pieces, and its blocks with their places in that text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from longspan.data.text.blocks import Block, Kind
from longspan.data.text.pdf.blocks import BULLET, NUMBERED, Piece, cell_starts
from longspan.data.text.pdf.hyphens import HYPHENS, joined, words_of
from longspan.data.text.pdf.lines import Line
from longspan.data.text.traced import Traced

VERBATIM: frozenset[Kind] = frozenset({"table", "code"})
"""Kinds that keep their lines."""


def mend_words(pieces: Sequence[Piece]) -> None:
    """Put together the words that line ends break, within a piece and from a piece to the one that goes on with it."""
    known = words_of(line.text for piece in pieces for line in piece.lines)
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
            mended = joined(line.text, following.text, known) if line.text[-1:] in HYPHENS else None
            if mended is not None:
                first.lines[at], second.lines[below] = (
                    replace(line, text=mended[0]),
                    replace(following, text=mended[1]),
                )
    for piece in pieces:
        piece.lines = [line for line in piece.lines if line.text]


def laid_out(pages: Iterable[Sequence[Piece]]) -> tuple[str, list[Block], list[int]]:
    """The text of the pages, its blocks in order, and where each page begins in the text."""
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
        Block(kind=owner.kind, body=_body(lines[key], owner.kind), level=owner.level) for key, owner in begun.items()
    ]
    return "".join(parts), blocks, starts


def _body(lines: Sequence[tuple[int, str]], kind: Kind) -> Traced:
    """The lines of a block on one line, or as lines where they have a meaning, with their places in the text."""
    text = ("\n" if kind in VERBATIM else " ").join(line for _, line in lines)
    anchors: list[tuple[int, int]] = []
    here = 0
    for there, line in lines:
        if not anchors or there - here != anchors[-1][1] - anchors[-1][0]:
            anchors.append((here, there))
        here += len(line) + 1
    body = Traced(text, tuple(anchors), lines[-1][0] + len(lines[-1][1]))
    mark = (BULLET.match(text) or NUMBERED.match(text)) if kind == "item" else None
    return body.part(mark.end(), len(text)) if mark else body


def _shown(piece: Piece) -> Iterator[str]:
    """The lines of a piece as the text has them: rows of tables with bars, code with its indentation."""
    edge = min(line.left for line in piece.lines)
    for line in piece.lines:
        if piece.kind == "table":
            yield _row(line)
        elif piece.kind == "code" and line.fixed:
            width = (line.right - line.left) / max(len(line.text), 1)
            yield " " * min(round((line.left - edge) / max(width, 1.0)), 80) + line.text
        else:
            yield line.text


def _row(line: Line) -> str:
    edges = [0, *cell_starts(line), len(line.text)]
    return f"| {' | '.join(line.text[start:end].strip() for start, end in pairwise(edges))} |"
