"""The lines of plain text: marks of items taken off, paragraphs that were wrapped made one line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from longspan.data.text.blocks import SPOKEN, Block
from longspan.data.text.plain_text import BULLET, NUMBER, on_one_line

_PARAGRAPH_NUMBER = re.compile(r"\s*(?:\[\d{4}\]|¶\s*\d{0,3}|§\s*\d{0,3}\s)\s+")
_WORD = re.compile(r"\w")


def with_items(blocks: Sequence[Block]) -> list[Block]:
    """Paragraphs that begin with the mark of a list are items, without the mark."""
    return [_item(block) if block.kind == "paragraph" else block for block in blocks]


def _item(block: Block) -> Block:
    found = BULLET.match(block.text) or NUMBER.match(block.text)
    if not found or len(block.text) == found.end():
        return block
    indent = len(block.text) - len(block.text.lstrip())
    return replace(block, kind="item", body=block.body.part(found.end(), len(block.text)), level=1 + indent // 2)


def without_paragraph_numbers(blocks: Sequence[Block]) -> list[Block]:
    """ "[0012]", with which patents begin a paragraph, is no part of its words."""
    return [
        replace(block, body=block.body.part(found.end(), len(block.text)))
        if block.kind == "paragraph" and (found := _PARAGRAPH_NUMBER.match(block.text))
        else block
        for block in blocks
    ]


def without_rules(blocks: Sequence[Block]) -> list[Block]:
    """Lines of dashes and stars hold no words."""
    return [block if _WORD.search(block.text) else replace(block, kind="boilerplate", level=0) for block in blocks]


def with_joined_lines(blocks: Sequence[Block]) -> list[Block]:
    """Everything but code and tables on one line, with single spaces."""
    whole = {*SPOKEN, "heading", "caption", "references"}
    return [replace(block, body=on_one_line(block.body)) if block.kind in whole else block for block in blocks]
