"""Paragraphs that were wrapped by hand become one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from longspan.data.text.blocks import SPOKEN, Block
from longspan.data.text.plain_text import on_one_line


def with_joined_lines(blocks: Sequence[Block]) -> list[Block]:
    """Everything but code and tables on one line, with single spaces."""
    whole = {*SPOKEN, "heading", "caption"}
    return [replace(block, body=on_one_line(block.body)) if block.kind in whole else block for block in blocks]
