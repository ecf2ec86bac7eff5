"""Headings of plain text, told by their form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from longspan.data.text.blocks import Block

LONGEST = 100
_NUMBERED = re.compile(r"(?P<number>\d{1,2}(?:\.\d{1,2}){0,4})\.?\s+[A-Z][^.!?]*")
_CHAPTER = re.compile(r"(?:chapter|part|book|section|appendix|act|scene)\s+(?:\d{1,3}|[ivxlc]{1,8}|[a-z])\b.*", re.I)


def with_headings(blocks: Sequence[Block]) -> list[Block]:
    """Paragraphs of one short line that are numbered, in capitals, or named like chapters become headings."""
    return [_as_heading(block) for block in blocks]


def _as_heading(block: Block) -> Block:
    text = block.text.strip()
    if block.kind != "paragraph" or len(text) > LONGEST or "\n" in text:
        return block
    if found := _NUMBERED.fullmatch(text):
        return replace(block, kind="heading", level=1 + found["number"].count("."))
    letters = [letter for letter in text if letter.isalpha()]
    if _CHAPTER.fullmatch(text) or (len(letters) > 2 and text.isupper() and text[-1] not in ",;:"):
        return replace(block, kind="heading", level=1)
    return block
