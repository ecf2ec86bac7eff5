"""What is done to the blocks of a document before its sentences are found: a list of steps, each a pure function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from longspan.data.text.blocks import SPOKEN, Block
from longspan.data.text.tidying import apparatus, structure, turns

Step = Callable[[Sequence[Block]], list[Block]]

STEPS: tuple[Step, ...] = (
    apparatus.without_gutenberg_frame,
    turns.with_turns,
    turns.without_tags,
    structure.without_paragraph_numbers,
    apparatus.with_code,
    apparatus.with_tables,
    apparatus.with_captions,
    structure.with_headings,
    structure.with_items,
    structure.with_joined_lines,
    apparatus.without_credits,
    apparatus.without_licences,
    apparatus.without_banners,
    structure.without_rules,
    apparatus.without_contents,
    apparatus.with_references,
    structure.without_repeated_headings,
    structure.with_abstract,
)
"""In this order."""

GUESSES: frozenset[Step] = frozenset(
    {
        structure.without_paragraph_numbers,
        apparatus.with_code,
        apparatus.with_tables,
        structure.with_headings,
        structure.with_items,
    }
)
"""Those that guess from its form what a text is; formats with a structure of their own need them not."""


def tidied(blocks: Sequence[Block], *, guess: bool = True) -> list[Block]:
    """The blocks after every step; without `GUESSES` where the document's format has told its structure.

    A document of which nothing would be left is left as it is.
    """
    tidy = list(blocks)
    for step in STEPS:
        tidy = step(tidy) if guess or step not in GUESSES else tidy
    return tidy if any(block.kind in SPOKEN for block in tidy) else as_they_are(blocks)


def as_they_are(blocks: Sequence[Block]) -> list[Block]:
    """Every block as a paragraph; nothing is left out."""
    return [Block(kind="paragraph", body=block.body) for block in blocks]
