"""Plain text as blocks: what blank lines, marks at the beginning of lines and the lengths of lines tell."""

from __future__ import annotations

import re
from collections.abc import Iterator

from longspan.data.text.blocks import Block
from longspan.data.text.sentences import WRAPPED_LINE
from longspan.data.text.traced import Traced

_GROUP = re.compile(r"[^\S\n\f]*\S[^\n\f]*(?:\n[^\S\n\f]*\S[^\n\f]*)*")
_ITEM = re.compile(r"(?P<indent>\s*)(?:[-*+•‣◦▪–●■○·]|\(?\d{1,3}[.)]|\(?[a-z][.)])\s+(?=\S)")
_ATX = re.compile(r"\s{0,3}(?P<marks>#{1,6})\s+(?=\S)")
_SPACE = re.compile(r"\s+")


def paragraphs_of(text: str) -> list[Block]:
    """The text's paragraphs as they are: what stands between blank lines, with its line ends."""
    return [Block(kind="paragraph", body=Traced.whole(found[0], found.start())) for found in _GROUP.finditer(text)]


def blocks_of_text(text: str) -> list[Block]:
    """The text's paragraphs, items and headings of Markdown's kind, with their line ends."""
    return [block for group in paragraphs_of(text) for block in _pieces(group)]


def _pieces(group: Block) -> Iterator[Block]:
    """A group of lines cut before items, around headings, and beside lines that are too long to be wrapped."""
    text, start, first = group.text, 0, True
    lines = text.split("\n")
    place, before = 0, ""
    for line in lines:
        cut = _ITEM.match(line) or _ATX.match(line) or _ATX.match(before)
        if not first and (cut or max(len(line), len(before)) > WRAPPED_LINE):
            yield _piece(group.body.part(start, place - 1))
            start = place
        place, before, first = place + len(line) + 1, line, False
    yield _piece(group.body.part(start, len(text)))


def _piece(body: Traced) -> Block:
    if heading := _ATX.match(body.text):
        return Block(kind="heading", body=body.part(heading.end(), len(body.text)), level=len(heading["marks"]))
    if item := _ITEM.match(body.text):
        return Block(kind="item", body=body.part(item.end(), len(body.text)), level=1 + len(item["indent"]) // 2)
    return Block(kind="paragraph", body=body)


def on_one_line(body: Traced) -> Traced:
    """The words with single spaces between them."""
    found = [one for one in _SPACE.finditer(body.text) if one[0] != " "]
    if not found:
        return body
    if all(one[0] == "\n" for one in found):  # one character for one: every place stays
        return Traced(body.text.replace("\n", " "), body.anchors, body.end)
    edits = [(one.start(), one.end(), " " if one.start() > 0 and one.end() < len(body.text) else "") for one in found]
    return body.edited(edits)
