"""Lines that were laid out from markup as blocks, with their places in the text that the lines make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from longspan.data.text.blocks import Block, Kind
from longspan.data.text.markup import Line
from longspan.data.text.plain_text import ENDED
from longspan.data.text.traced import Traced

LINKED = 0.8
"""Share of a block's characters in links from which on it is navigation, or a row of badges."""
FEWEST = 3
"""Items with nothing but links in a row that are a list of links."""


@dataclass(slots=True)
class Piece:
    """A block before its places are known.

    Attributes:
        lines: that it consists of.
        start: where the first one begins in the text of all lines, without an item's mark.
    """

    lines: list[Line]
    start: int

    @property
    def kind(self) -> Kind:
        return self.lines[0].state.kind

    @property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)[self.lines[0].mark :]

    @property
    def links_only(self) -> bool:
        """Whether links and pictures make it up, and no sentence."""
        text = self.text.strip()
        return bool(text) and sum(line.linked for line in self.lines) >= LINKED * len(text) and not ENDED.search(text)


def pieces_of(blocks: list[list[Line]]) -> list[Piece]:
    """What belongs together: an item with its further lines, the rows of a table, the lines of a paragraph."""
    found: list[Piece] = []
    place = 0
    for lines in blocks:
        before: Line | None = None
        for line in lines:
            if before is None or _begins(before, line):
                found.append(Piece([line], place + line.mark))
            else:
                found[-1].lines.append(line)
            before = line
            place += len(line.text) + 1
        place += 1
    return found


def _begins(before: Line, line: Line) -> bool:
    if line.mark or line.state.kind != before.state.kind or line.state.level != before.state.level:
        return True
    return line.state.kind == "paragraph" and bool(ENDED.search(before.text))


def blocks_of_pieces(pieces: list[Piece], bodies: Iterator[Traced] | None = None) -> list[Block]:
    """The blocks; places are in the lines' own text, unless `bodies` has them."""
    bodies = bodies or (Traced.whole(piece.text, piece.start) for piece in pieces)
    lists = _lists_of_links(pieces)
    return [
        Block(kind="boilerplate", body=body)
        if index in lists or (piece.kind == "paragraph" and piece.links_only)
        else Block(kind=piece.kind, body=body, level=piece.lines[0].state.level)
        for index, (piece, body) in enumerate(zip(pieces, bodies, strict=True))
    ]


def _lists_of_links(pieces: list[Piece]) -> set[int]:
    """Items with nothing but links, where there are several in a row."""
    found: set[int] = set()
    run: list[int] = []
    for index, piece in enumerate([*pieces, None]):
        if piece is not None and piece.kind == "item" and piece.links_only:
            run.append(index)
            continue
        if len(run) >= FEWEST:
            found.update(run)
        run = []
    return found
