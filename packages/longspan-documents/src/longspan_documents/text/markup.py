"""Layout of a tree of HTML elements as text, for saved pages and rendered Markdown.

Blocks are separated by blank lines. A list item is a line with its mark ("- ", "3. "), a table row a line of cells
between bars, and code keeps its lines and indentation. The elements of trafilatura (`head`, `item`, `cell` and so on)
are supported in addition to those of HTML. `blocks_of_pieces` converts the lines to blocks, with positions in the text
of the lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from longspan.data.text.scripts import LEVEL, LOWERED, RAISED, with_scripts
from longspan_documents.text.blocks import UNSPACED_LINE_END, Block, Kind, Traced
from longspan_documents.text.plain_text import ENDED

NOT_TEXT = frozenset(
    {"script", "style", "template", "noscript", "nav", "footer", "aside", "form", "button", "select", "textarea"}
    | {"svg", "math", "iframe", "object", "title"}
)
PLACE = "data-place"
"""An attribute with the position of an element in its source; `Line.place` has that of the innermost element."""

_INLINE = frozenset(
    {"a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i", "ins"}
    | {"kbd", "label", "mark", "nobr", "output", "q", "rp", "rt", "ruby", "s", "samp", "small", "span", "strike"}
    | {"strong", "sub", "sup", "time", "tt", "u", "var", "wbr", "img", "hi", "ref", "graphic"}
)
_LISTS, _ITEMS = frozenset({"ul", "ol", "menu", "dir", "list"}), frozenset({"li", "item"})
_ROWS, _CELLS = frozenset({"tr", "row", "thead", "tbody", "tfoot"}), frozenset({"td", "th", "cell"})
_BREAKS = frozenset({"br", "lb"})
_BIG = frozenset(
    {"div", "table", "ul", "ol", "dl", "pre", "blockquote", "section", "h1", "h2", "h3", "h4", "head", "list"}
)
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_SCRIPTS = {"sup": (RAISED, LEVEL), "sub": (LOWERED, LEVEL)}
_CAPTIONS = frozenset({"figcaption", "caption"})

# Private-use characters, which no page uses as text, mark separators of the layout, and the beginning and end of links.
# After the end of a block or a line follows the state of the next one, counted from `_STATES`.
_BLOCK, _LINE, _CELL, _SPACE, _ITEM, _LINK, _LINKED, _BOLD, _LIGHT = map(chr, range(0xE000, 0xE009))
_STATES, _LAST_STATE = 0xF0000, 0x10FFFD
_STATE = re.compile(f"[{chr(_STATES)}-{chr(_LAST_STATE)}]")
_MARKS = re.compile(f"[{_BLOCK}-{_LIGHT}{chr(_STATES)}-{chr(_LAST_STATE)}]")
_LINKS = re.compile(f"{_LINK}([^{_LINK}{_LINKED}]*){_LINKED}")
_LABEL = re.compile(f"[{_LINK}\\s]*{_BOLD}([^{_BOLD}{_LIGHT}{_CELL}]*){_LIGHT}")
_STRONG = re.compile(r"(?:^|;)\s*font-weight\s*:\s*(?:bold(?:er)?|[6-9]00)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class State:
    """The context of a line: kind of block, heading level or item depth, position of its element."""

    kind: Kind = "paragraph"
    level: int = 0
    place: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the layout.

    Attributes:
        text: the text, including the mark of an item.
        state: its context.
        mark: length of an item's mark at its beginning; 0 if no item begins.
        linked: number of its characters in links or descriptions of pictures.
        label: the bold words at its beginning, after the mark.
    """

    text: str
    state: State
    mark: int = 0
    linked: int = 0
    label: str = ""


def without_marks(page: str) -> str:
    """Replaces the private-use characters that `laid_out` uses, such as icons of web fonts."""
    return _MARKS.sub(" ", page)


def text_of_tree(root: Any, skip: Callable[[Any], bool] | None = None) -> str:
    """Returns the text of an lxml element; arguments as in `laid_out`."""
    return text_of_lines(laid_out(root, skip))


def text_of_lines(blocks: list[list[Line]]) -> str:
    """Returns the text of laid-out lines: blocks separated by blank lines."""
    return "\n\n".join("\n".join(line.text for line in block) for block in blocks)


def laid_out(root: Any, skip: Callable[[Any], bool] | None = None) -> list[list[Line]]:
    """Returns the blocks of an lxml element, each with one or more lines.

    Args:
        root: the element, from a source after `without_marks`.
        skip: selects elements to leave out.
    """
    states = _States()
    text = "".join(_walk(root, skip or (lambda element: element.tag in NOT_TEXT), states))
    state = State()
    blocks: list[list[Line]] = []
    for marked_block in text.split(_BLOCK):
        lines: list[Line] = []
        for marked in marked_block.split(_LINE):
            if numbers := _STATE.findall(marked):
                state = states.known[ord(numbers[-1]) - _STATES]
            if (line := _line(_STATE.sub("", marked), state)).text.strip():
                lines.append(line)
        if lines:
            blocks.append(lines)
    return blocks


class _States:
    """Numbers the states of a tree, up to the number of available characters."""

    def __init__(self) -> None:
        self.known: list[State] = []
        self.numbers: dict[State, int] = {}

    def mark(self, state: State) -> str:
        """Returns the character of a state; "" if none are left."""
        if state not in self.numbers:
            if _STATES + len(self.known) > _LAST_STATE:
                return ""  # more elements than numbers: the line gets the state of the previous one
            self.numbers[state] = len(self.known)
            self.known.append(state)
        return chr(_STATES + self.numbers[state])


def _line(marked: str, state: State) -> Line:
    """Returns a line with single spaces, and bars between several cells."""
    linked = 0
    if _LINK in marked or _LINKED in marked:  # a link over several lines ends in another one than it begins in
        linked = sum(len(" ".join(words.split())) for words in _LINKS.findall(marked))
    label = _LABEL.match(marked, marked.rfind(_ITEM) + 1) if _BOLD in marked else None
    for mark in (_LINK, _LINKED, _BOLD, _LIGHT):
        if mark in marked:
            marked = marked.replace(mark, "")
    mark, is_item, rest = with_scripts(marked).rpartition(_ITEM)
    before, *cells = (" ".join(cell.split()) for cell in rest.split(_CELL))
    row = f"| {' | '.join(cells)} |" if len(cells) > 1 and any(cells) else "".join(cells)
    text = f"{before} {row}".strip().replace(_SPACE, " ")
    mark = mark.strip().replace(_SPACE, " ").replace(_ITEM, "") if is_item else ""
    words = " ".join(re.sub(f"[{_LINK}{_LINKED}]", "", label[1]).replace(_SPACE, " ").split()) if label else ""
    return Line(f"{mark}{text}", state, len(mark), linked, words)


def _walk(root: Any, skip: Callable[[Any], bool], states: _States) -> Iterator[str]:
    """Yields texts and marks in reading order, without recursion, since unclosed tags may be nested thousands deep."""
    # Pending: a finished string, or an element, whether it is verbatim, its list depth, its item mark, and its context.
    waiting: list[tuple[Any, bool, int, str, State]] = [(root, False, 0, "", State())]
    while waiting:
        element, verbatim, depth, item, outer = waiting.pop()
        if isinstance(element, str):
            yield element
            continue
        if not isinstance(element.tag, str) or skip(element):  # not a string: a comment or a processing instruction
            continue
        verbatim = verbatim or element.tag == "pre" or (element.tag == "code" and "\n" in (element.text or ""))
        state = _state(element, verbatim, depth, outer)
        before, after = _around(element, verbatim, depth)
        depth += element.tag in _LISTS
        text = _text(element.text, verbatim)
        begin = states.mark(state) if before[-1:] in {_BLOCK, _LINE} else ""
        end = states.mark(outer) if after[-1:] in {_BLOCK, _LINE} else ""
        waiting.append((after + end, False, 0, "", outer))
        children = [
            part
            for child, mark in zip(element, _item_marks(element, depth), strict=False)
            for part in ((child, verbatim, depth, mark, state), (_text(child.tail, verbatim), False, 0, "", state))
        ]
        waiting.extend(reversed(children))
        yield before + begin + item + (text.lstrip() if item else text)


def _state(element: Any, verbatim: bool, depth: int, outer: State) -> State:
    """Returns the context of an element's lines."""
    tag, place = element.tag, element.get(PLACE) or outer.place
    if tag in _INLINE and not (tag == "code" and verbatim):
        return outer
    if tag in _HEADINGS or tag == "head":
        return State("heading", _HEADINGS.get(tag) or _HEADINGS.get(element.get("rend") or "", 2), place)
    if tag in _ITEMS:
        return State("item", max(depth, 1), place)
    if tag in _CAPTIONS:
        return State("caption", 0, place)
    if tag == "note":
        return State("note", 0, place)
    if verbatim:
        return State("code", 0, place)
    if tag in _ROWS or (tag in _CELLS and outer.kind == "table" and _is_data(element)):
        return State("table", 0, place)
    if tag in _CELLS or tag == "table" or (tag in _LISTS and outer.kind != "item"):
        return State("paragraph", 0, place)
    return State(outer.kind, outer.level, place)


def _item_marks(parent: Any, depth: int) -> Iterator[str]:
    """Yields the item marks of a list's children: "- ", or numbers, which may start elsewhere than at 1."""
    ordered = parent.tag == "ol" or parent.get("rend") == "ol"
    start = parent.get("start") or "1"
    number = int(start) if re.fullmatch(r"[0-9]{1,6}", start) else 1
    for child in parent:
        is_item = child.tag in _ITEMS
        indent = _SPACE * 2 * max(depth - 1, 0)
        mark = f"{number}." if ordered else "-"
        yield f"{indent}{mark}{_SPACE}{_ITEM}" if is_item else ""
        number += is_item


def _text(text: str | None, verbatim: bool) -> str:
    if not text:
        return ""
    if verbatim:
        return text.expandtabs(4).replace("\n", _LINE).replace(" ", _SPACE)
    return text if text.isascii() else UNSPACED_LINE_END.sub("", text)


def _around(element: Any, verbatim: bool, depth: int) -> tuple[str, str]:
    """Returns the separators before and after an element; unknown elements are blocks."""
    tag = element.tag
    if tag == "a":
        return _LINK, _LINKED
    if tag == "img":
        return f" {_LINK}{element.get('alt', '')}{_LINKED} ", ""
    if not verbatim and (tag in {"b", "strong"} or (tag == "span" and _STRONG.search(element.get("style") or ""))):
        return _BOLD, _LIGHT
    if tag in _SCRIPTS and not verbatim:
        return _SCRIPTS[tag]
    if tag in _BREAKS:
        return _LINE, ""
    if tag in _ITEMS or tag in _ROWS:
        return _LINE, _LINE
    if tag in _CELLS and _is_data(element):
        return _CELL, ""
    parent = element.getparent()
    if tag == "p" and parent is not None and parent.tag in _ITEMS:
        return "" if element.getprevious() is None else f"{_LINE}{_SPACE * 2 * depth}", _LINE
    if tag == "p" and parent is not None and parent.tag in _CELLS and len(parent) == 1:
        return "", ""
    if depth and (tag in _LISTS or tag == "pre"):  # within an item: more lines of the same block
        return _LINE, _LINE
    inline = tag in _INLINE and not (tag == "code" and verbatim)
    return ("", "") if inline else (_BLOCK, _BLOCK)


def _is_data(cell: Any) -> bool:
    """Whether a cell is a line of text; old pages lay out whole columns of paragraphs in cells."""
    inside = [child.tag for child in cell]
    return inside.count("p") < 2 and not _BIG.intersection(inside)


LINKED = 0.8
"""Minimum share of a block's characters in links for navigation, or a row of badges."""
FEWEST = 3
"""Minimum number of consecutive items with only links in a list of links."""


@dataclass(slots=True)
class Piece:
    """A block before its positions are known.

    Attributes:
        lines: its lines.
        start: start of the first one in the text of all lines, without an item's mark.
    """

    lines: list[Line]
    start: int

    @property
    def kind(self) -> Kind:
        """The kind of its first line."""
        return self.lines[0].state.kind

    @property
    def text(self) -> str:
        """Its lines, without the mark of an item."""
        return "\n".join(line.text for line in self.lines)[self.lines[0].mark :]

    @property
    def links_only(self) -> bool:
        """Whether it consists of links and pictures, without a sentence."""
        text = self.text.strip()
        return bool(text) and sum(line.linked for line in self.lines) >= LINKED * len(text) and not ENDED.search(text)


def pieces_of(blocks: list[list[Line]]) -> list[Piece]:
    """Groups lines: an item with its further lines, the rows of a table, the lines of a paragraph."""
    pieces: list[Piece] = []
    place = 0
    for lines in blocks:
        before: Line | None = None
        for line in lines:
            if before is None or _begins_piece(before, line):
                pieces.append(Piece([line], place + line.mark))
            else:
                pieces[-1].lines.append(line)
            before = line
            place += len(line.text) + 1
        place += 1
    return pieces


def _begins_piece(before: Line, line: Line) -> bool:
    if line.mark or line.state.kind != before.state.kind or line.state.level != before.state.level:
        return True
    return line.state.kind == "paragraph" and bool(ENDED.search(before.text))


def blocks_of_pieces(pieces: list[Piece], bodies: Iterator[Traced] | None = None) -> list[Block]:
    """Returns the blocks; positions refer to the lines' own text, unless `bodies` is passed."""
    bodies = bodies or (Traced.whole(piece.text, piece.start) for piece in pieces)
    lists = _lists_of_links(pieces)
    return [
        Block(kind="boilerplate", body=body)
        if index in lists or (piece.kind == "paragraph" and piece.links_only)
        else Block(kind=piece.kind, body=body, level=piece.lines[0].state.level, label=piece.lines[0].label)
        for index, (piece, body) in enumerate(zip(pieces, bodies, strict=True))
    ]


def _lists_of_links(pieces: list[Piece]) -> set[int]:
    """Returns items with only links, if several are consecutive."""
    indices: set[int] = set()
    run: list[int] = []
    for index, piece in enumerate([*pieces, None]):
        if piece is not None and piece.kind == "item" and piece.links_only:
            run.append(index)
            continue
        if len(run) >= FEWEST:
            indices.update(run)
        run = []
    return indices
