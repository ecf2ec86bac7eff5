"""The text of a document out of its pieces, and its blocks with their places in that text.

A word that the end of a line breaks is made whole; the rest of the document decides where it can whether its hyphen
stays. It does where the hyphenated form occurs elsewhere and the joined one does not. Where neither occurs, habits
decide: "-based" and "self-" keep it, two words of the document that are no halves of a common closed compound
("there|fore", "net|work") keep it, everything else is joined.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from longspan.data.text.blocks import Block, Kind, Traced
from longspan.data.text.pdf.blocks import BULLET, NUMBERED, Piece, cell_starts
from longspan.data.text.pdf.lines import Line

HYPHENS = frozenset("-\u2010\u00ad")

_WORD = re.compile(r"[^\W_]+(?:[-\u2010][^\W_]+)*")
_HEAD = re.compile(r"(?:^|[^\W_][-\u2010]|[^\w])([^\W\d_]+)[-\u2010\u00ad]$")
_TAIL = re.compile(r"[^\W_]+(?:[-\u2010][^\W_]+)*")
_KEPT_TAILS = re.compile(
    r"(?:independent|dependent|based|like|free|specific|related|aware|oriented|driven|invariant|agnostic|only|wide|scale"
    r"|level|term|time|known|defined|shaped|sized|dimensional|trained|supervised|sensitive|friendly|rich|poor|first|art|party|orientation|separated)"
)
_KEPT_HEADS = frozenset(["self", "well", "non", "cross", "quasi", "pseudo", "semi", "half", "all", "ill", "ex", "vice"])
_OPEN_HEADS = frozenset(["two", "one", "six", "ten", "low", "big", "old", "new", "end", "top", "raw"])
_CLOSED_HEADS = re.compile(
    r"some|any|every|no|t?here|where|how|wh(?:at|en|o|ich)|with|under|over|out|up|down|in|on|through|to|for|fore|back|may"
    r"|can|al|be|per|pro|com|con|form|inter|trans|su[bp]|super|counter|after|before|[md]is|note|book|hand"
)
_CLOSED_TAILS = re.compile(
    r"(?:work|base|ware|line|shop|light|ground|word|man|men|ship|hood|ful|fully|side|wise|wards?|ever|fore|self|selves|point"
    r"|able|less|most|age|stand|standing|stood|taken?|come|view|book|house|day|room|land|mark|board|load|set|field|down|off"
    r"|put|flow|map|one|body|thing|where|what|how|times|ness|ment|form|formed|forms|tion|ally|over|look|write|writing"
    r"|play|back|keeper|holder|stone|fall|rise|break|out|through|port|ports|pose|posed|act|action|ring|ling|ties)s?"
)


def words_of(lines: Iterable[str]) -> set[str]:
    """The words of lines in small letters, with and without hyphens, less both parts of those that line ends break."""
    known: set[str] = set()
    broken = False
    for line in lines:
        words = _WORD.findall(line.casefold())
        known.update(words[broken : len(words) - (line[-1:] in HYPHENS)])
        broken = line[-1:] in HYPHENS
    return known


def joined(line: str, following: str, known: set[str]) -> tuple[str, str] | None:
    """The two lines with a broken word whole at the end of the first; None where no word is broken."""
    broken = _HEAD.search(line)
    tail = _TAIL.match(following)
    if broken is None or tail is None:
        return None
    place = following.find(" ")
    rest = following if place < 0 else following[:place]
    compound = broken.start(1) > 0 and line[broken.start(1) - 1] in HYPHENS
    stays = line[-1] != "\u00ad" and _stays(broken[1], tail[0], known, compound)
    return line[:-1] + ("-" if stays else "") + rest, "" if place < 0 else following[place + 1 :]


def _stays(head: str, tail: str, known: set[str], compound: bool) -> bool:
    """Whether the hyphen between two parts of a word belongs to it; `compound` where another one stands before them."""
    together = f"{head}{tail}".casefold() in known
    if together or not tail[0].islower():
        return not together
    if compound or f"{head}-{tail}".casefold() in known:
        return True
    head, (tail, *more) = head.casefold(), tail.casefold().split("-")
    if _KEPT_TAILS.fullmatch(tail) and (head in known or len(head) > 4):
        return True
    if more and tail in {"to", "of", "and", "in", "the", "or", "by", "on", "for"}:
        return True
    if head in _KEPT_HEADS:
        return tail in known
    both = head in known and tail in known and len(tail) > 3
    return both and (len(head) > 3 or head in _OPEN_HEADS) and not _closes(head, tail)


def _closes(head: str, tail: str) -> bool:
    """Whether two words make a common compound without hyphen: "therefore", "network"."""
    return bool(_CLOSED_HEADS.fullmatch(head) or _CLOSED_TAILS.fullmatch(tail))


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
