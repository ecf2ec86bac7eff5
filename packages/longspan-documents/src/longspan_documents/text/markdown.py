"""A Markdown file as blocks of the visible text of the rendered page, with positions in the file itself.

The rendered page is laid out like any page; each element has the range of lines in the file that it comes from. Within
these lines its words are located in order.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from typing import Any

from longspan.characters import without_half_entities
from longspan.imports import require
from longspan_documents.text.blocks import Block, Traced, simplified
from longspan_documents.text.markup import PLACE, Piece, blocks_of_pieces, laid_out, pieces_of, without_marks
from longspan_documents.text.web_pages import parsed

_FRONT_MATTER = re.compile(
    r"\A(---|\+\+\+)[ \t]*\n(?:(?!\1[ \t]*$|\.\.\.[ \t]*$).*\n){0,500}(?:\1|\.\.\.)[ \t]*(?:\n|\Z)", re.MULTILINE
)
_DEFINED = re.compile(r"^(?= {0,3}\[\^[^\]\s]{1,60}\]:)", re.MULTILINE)
_FOOTNOTE = re.compile(r"\[\^[^\]\s]{1,60}\]:?")
_SPECIAL = re.compile(r"[\[\]*_`<&!|~>\n\\]")
_HIDDEN = re.compile(
    r"(?<=\])\((?:[^()\n]|\([^()\n]*\))*\)|(?<=\])\[[^\]\n]*\]|\[\^[^\]\s]{1,60}\]|</?[A-Za-z][\w-]*(?:\s[^<>]*)?/?>"
)
FEW, SHARE = 100_000, 5
"""A source with more characters than the first number, of which more than one in the second is markup or a line end, is
read as plain text: it is not prose, and the parser takes ten microseconds for each of them."""
REACH, NEAR = 4_000, 40
"""Number of characters searched for a word, or for a character that is written differently."""


def is_made_of_marks(source: str) -> bool:
    """Whether a file consists of Markdown's markup rather than of words."""
    marks = sum(1 for _ in _SPECIAL.finditer(source))
    return marks > FEW and marks * SHARE > len(source)


def blocks_of_markdown(source: str) -> list[Block]:
    r"""Returns the blocks of a Markdown file, without front matter, comments, link targets and style markup.

    Tables become lines of cells between bars, pictures their description, footnotes their text in place; raw HTML is
    read as HTML. Lines end with "\\n".
    """
    source = without_marks(source)
    front = _FRONT_MATTER.match(source)
    before = [Block(kind="boilerplate", body=Traced.whole(front[0].rstrip()))] if front else []
    body = re.sub(r"[^\n]", " ", front[0]) + source[front.end() :] if front else source
    tree = parsed(_rendered(body))
    pieces = [] if tree is None else pieces_of(laid_out(tree))
    return [*before, *blocks_of_pieces(pieces, _bodies(pieces, _visible(source)))] if pieces else []


def _rendered(source: str) -> str:
    """Returns the rendered page, whose elements have the source range that they come from."""
    breaks = [match.start() for match in _DEFINED.finditer(source)]  # a footnote begins a paragraph
    spaced = _DEFINED.sub("\n", source)
    moved = [place + number for number, place in enumerate(breaks)]
    line_starts = [0, *accumulate(len(line) + 1 for line in spaced.split("\n"))]
    offsets = [place - bisect_left(moved, place) for place in line_starts]
    parser, notes = _parser(), {}
    tokens = parser.parse(spaced, notes)
    for token in tokens:
        if token.map and token.nesting >= 0 and token.type not in {"inline", "html_block"}:
            first, last = (offsets[min(line, len(offsets) - 1)] for line in token.map)
            token.attrSet(PLACE, f"{first} {last}")
    return without_half_entities(parser.renderer.render(tokens, parser.options, notes))[0]


def _visible(source: str) -> str:
    """Returns the source with spaces for what is invisible: link targets, tags, comments."""
    pieces: list[str] = []
    done = 0
    while (start := source.find("<!--", done)) >= 0 and (end := source.find("-->", start)) >= 0:
        pieces += [source[done:start], " " * (end + 3 - start)]
        done = end + 3
    return _HIDDEN.sub(lambda match: " " * len(match[0]), "".join([*pieces, source[done:]]))


def _bodies(pieces: list[Piece], rendered: str) -> Iterator[Traced]:
    done = 0
    for piece in pieces:
        offsets = [tuple(map(int, line.state.place.split())) for line in piece.lines if line.state.place]
        start = max(done, offsets[0][0]) if offsets else done
        end = min(max(offsets[-1][1], start), len(rendered)) if offsets else len(rendered)
        start = min(start, end)
        body = _placed(piece.text, rendered, start, end)
        done = max(done, body.end)
        yield body


def _placed(text: str, rendered: str, start: int, end: int) -> Traced:
    """Locates the words of a text between two positions of a source, in order, with markup among them."""
    anchors: list[tuple[int, int]] = []
    done = start
    for word in re.finditer(r"\S+", text):
        place = rendered.find(word[0], done, min(end, done + REACH))
        if place >= 0:
            anchors.append((word.start(), place))
            done = place + len(word[0])
            continue
        for index, character in enumerate(word[0], word.start()):  # an entity, an escape, or markup inside the word
            place = rendered.find(character, done, min(end, done + NEAR))
            anchors.append((index, max(place, done)))
            done = max(place + 1, done)
    first = anchors[0][1] if anchors else start
    return Traced(text, tuple(simplified([(0, first), *(anchor for anchor in anchors if anchor[0] > 0)])), done)


@lru_cache(maxsize=1)
def _parser() -> Any:
    library = require("markdown_it", extra="documents", purpose="reading Markdown")
    parser = library.MarkdownIt("commonmark").enable(["table", "strikethrough"])
    reference = next(rule.fn for rule in parser.block.ruler.__rules__ if rule.name == "reference")

    def unless_footnote(state: Any, start: int, end: int, silent: bool) -> bool:
        begin = state.bMarks[start] + state.tShift[start]
        return not state.src.startswith("[^", begin) and reference(state, start, end, silent)

    def without_footnote_marks(state: Any) -> None:
        for block in state.tokens:
            for token in block.children or ():
                if token.type == "text":
                    token.content = _FOOTNOTE.sub("", token.content)

    parser.block.ruler.at("reference", unless_footnote)
    parser.core.ruler.push("footnote_marks", without_footnote_marks)
    return parser
