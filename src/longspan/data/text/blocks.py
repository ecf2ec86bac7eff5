"""A document as a person sees it: headings, paragraphs, items, turns of speakers, in order and with their places."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from longspan.data.text.traced import Traced

Kind = Literal["paragraph", "heading", "item", "turn", "code", "table", "caption", "references", "boilerplate"]
"""What a block is."""

SPOKEN: frozenset[Kind] = frozenset({"paragraph", "item", "turn"})
"""Kinds that sentences are found in; the others are kept for their places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A stretch of a document that is one thing, on one line (code and tables keep their lines).

    Attributes:
        kind: what it is.
        body: its words as they are to be read, and where in the document's text they came from.
        level: of a heading, from 1; of an item, how deep it stands; else 0.
        speaker: who says a turn, else None; the name is no part of the body.
        abstract: whether it belongs to the document's own abstract or executive summary.
    """

    kind: Kind
    body: Traced
    level: int = 0
    speaker: str | None = None
    abstract: bool = False

    @property
    def text(self) -> str:
        """The words."""
        return self.body.text


@dataclass(frozen=True, kw_only=True)
class Document:
    """A document that has been read.

    Attributes:
        text: what places count in: of .txt and .md files the file's own text, else the text as it was extracted.
        blocks: in order; their places rise.
        pages: the characters at which the pages of a PDF file begin; empty where there are no pages.
        title: the document's own title, where it tells one.
        name: what messages call it.
    """

    text: str
    blocks: tuple[Block, ...]
    pages: tuple[int, ...] = ()
    title: str | None = None
    name: str = "the document"

    @property
    def words(self) -> str:
        """What is to be read, block after block: without boilerplate and lists of references."""
        kept = (block for block in self.blocks if block.kind not in {"boilerplate", "references"})
        return "\n\n".join(f"{block.speaker}: {block.text}" if block.speaker else block.text for block in kept)

    def line(self, place: int) -> int:
        """The line of a character of `text`, from 1."""
        return bisect_right(self._line_starts, place)

    def page(self, place: int) -> int | None:
        """The page of a character of `text`, from 1; None where there are no pages."""
        return bisect_right(self.pages, place) or None

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(place + 1 for place, character in enumerate(self.text) if character == "\n")]
