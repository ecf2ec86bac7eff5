"""The text of a tree of HTML elements, laid out for reading: one walk for saved pages and for rendered Markdown.

Blocks are separated by blank lines. An item of a list is a line with its mark ("- ", "3. "), a row of a table a line
of cells between bars, code keeps its lines and indentation. The elements that trafilatura makes (`head`, `item`, `cell`
and so on) are known beside those of HTML.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

NOT_TEXT = frozenset(
    {"script", "style", "template", "noscript", "nav", "footer", "aside", "form", "button", "select", "textarea"}
    | {"svg", "math", "iframe", "object", "title"}
)
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

# Private-use characters, which no page means as text, stand for what the layout puts between words.
_BLOCK, _LINE, _CELL, _SPACE = "\ue000", "\ue001", "\ue002", "\ue003"
_MARKS = re.compile(f"[{_BLOCK}-{_SPACE}]")


def without_marks(page: str) -> str:
    """The page without the private-use characters that `text_of_tree` works with: icons of web fonts."""
    return _MARKS.sub(" ", page)


def text_of_tree(root: Any, skip: Callable[[Any], bool] | None = None) -> str:
    """The text of an lxml element, laid out.

    Args:
        root: the element; `without_marks` has been over its source.
        skip: tells elements to leave out.
    """
    text = "".join(_walk(root, skip or (lambda element: element.tag in NOT_TEXT)))
    blocks = (_block(block) for block in text.split(_BLOCK))
    return "\n\n".join(block for block in blocks if block)


def _block(marked: str) -> str:
    lines = (_line(line) for line in marked.split(_LINE))
    return "\n".join(line for line in lines if line.strip())


def _line(marked: str) -> str:
    """A line with single spaces; cells between bars, where there is more than one."""
    before, *cells = (" ".join(cell.split()) for cell in marked.split(_CELL))
    row = f"| {' | '.join(cells)} |" if len(cells) > 1 and any(cells) else "".join(cells)
    return f"{before} {row}".strip().replace(_SPACE, " ")


def _walk(root: Any, skip: Callable[[Any], bool]) -> Iterator[str]:
    """Texts and marks in reading order; without recursion, since unclosed tags nest thousands deep."""
    # What waits: a string that is ready, or an element, whether it is verbatim, how deep in lists, its mark as an item.
    waiting: list[tuple[Any, bool, int, str]] = [(root, False, 0, "")]
    while waiting:
        element, verbatim, depth, item = waiting.pop()
        if isinstance(element, str):
            yield element
            continue
        if not isinstance(element.tag, str) or skip(element):  # not a string: a comment or an instruction
            continue
        verbatim = verbatim or element.tag == "pre" or (element.tag == "code" and "\n" in (element.text or ""))
        before, after = _around(element, verbatim, depth)
        depth += element.tag in _LISTS
        text = _text(element.text, verbatim)
        waiting.append((after, False, 0, ""))
        children = [
            part
            for child, mark in zip(element, _item_marks(element, depth), strict=False)
            for part in ((child, verbatim, depth, mark), (_text(child.tail, verbatim), False, 0, ""))
        ]
        waiting.extend(reversed(children))
        yield before + item + (text.lstrip() if item else text)


def _item_marks(parent: Any, depth: int) -> Iterator[str]:
    """The marks of a parent's children: of a list's items "- ", or numbers, which may begin elsewhere than at 1."""
    ordered = parent.tag == "ol" or parent.get("rend") == "ol"
    start = parent.get("start") or "1"
    number = int(start) if re.fullmatch(r"[0-9]{1,6}", start) else 1
    for child in parent:
        is_item = child.tag in _ITEMS
        indent = _SPACE * 2 * max(depth - 1, 0)
        yield f"{indent}{number}.{_SPACE}" if is_item and ordered else f"{indent}-{_SPACE}" if is_item else ""
        number += is_item


def _text(text: str | None, verbatim: bool) -> str:
    if not text:
        return ""
    return text.expandtabs(4).replace("\n", _LINE).replace(" ", _SPACE) if verbatim else text


def _around(element: Any, verbatim: bool, depth: int) -> tuple[str, str]:
    """What stands before and after an element; what is not known to stand inside a line is a block of its own."""
    tag = element.tag
    if tag == "img":
        return f" {element.get('alt', '')} ", ""
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
    """Whether a cell holds a line of text; old pages lay out whole columns of paragraphs in cells."""
    inside = [child.tag for child in cell]
    return inside.count("p") < 2 and not _BIG.intersection(inside)
