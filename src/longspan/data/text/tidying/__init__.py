"""What is done to the blocks of a document before its sentences are found: a list of steps, each a pure function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from longspan.data.text.blocks import Block
from longspan.data.text.tidying.headings import with_headings
from longspan.data.text.tidying.lines import with_joined_lines
from longspan.data.text.tidying.turns import with_turns

Step = Callable[[Sequence[Block]], list[Block]]

STEPS: tuple[Step, ...] = (
    with_turns,
    with_headings,
    with_joined_lines,
)
"""In this order."""


def tidied(blocks: Sequence[Block]) -> list[Block]:
    """The blocks after every step."""
    for step in STEPS:
        blocks = step(blocks)
    return list(blocks)
