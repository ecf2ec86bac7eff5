"""Summarises a document section by section, by the scores of its sentences in the whole document."""

from __future__ import annotations

import textwrap
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from longspan_documents.inference.results import ScoredSentence, Summary
from longspan_documents.text.blocks import Document

PART = 20
"""Approximate number of sentences of a part of a document without headings."""
FEWEST, MOST = 2, 10
"""Number of parts of a document without headings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section with its best sentences.

    Attributes:
        heading: its heading, or the name of a part of a document without headings.
        level: of the heading, from 1.
        sentences: one to three sentences in order; none if only its subsections have sentences.
        start: the character of the document at which it begins.
        page: in a PDF file, from 1.
    """

    heading: str
    level: int
    sentences: tuple[ScoredSentence, ...]
    start: int
    page: int | None = None

    def __str__(self) -> str:
        return "\n".join([f"{'#' * self.level} {self.heading}", *map(str, self.sentences)])


def outline(document: Document, summary: Summary) -> tuple[Section, ...]:
    """Returns the sections of a document, or equal parts if fewer than two sections have sentences.

    Args:
        document: the document that was summarised.
        summary: an extractive summary of it; for an abstractive one, there are no sections.
    """
    headings = [block for block in document.blocks if block.kind == "heading" and block.text.strip()]
    starts = [block.body.start for block in headings]
    # The first group precedes the first heading.
    groups: list[list[ScoredSentence]] = [[] for _ in range(len(headings) + 1)]
    for sentence in summary.document:
        groups[bisect_right(starts, sentence.start or 0)].append(sentence)
    if sum(map(bool, groups[1:])) < 2:
        return tuple(_parts(document, summary.document))
    sections = [
        _section(document, " ".join(block.text.split()), block.level or 1, block.body.start, group)
        for block, group in zip(headings, groups[1:], strict=True)
    ]
    if groups[0]:
        sections.insert(0, _section(document, _beginning(groups[0]), 1, groups[0][0].start or 0, groups[0]))
    # Sections that have sentences, or a subsection that has some.
    shown: list[Section] = []
    next_level = 0  # of the following section among the shown ones
    for section in reversed(sections):
        if section.sentences or next_level > section.level:
            shown.append(section)
            next_level = section.level
    return tuple(reversed(shown))


def _parts(document: Document, sentences: Sequence[ScoredSentence]) -> Iterator[Section]:
    """Yield parts with equal numbers of sentences, named by their positions and, unless they have speakers, their first
    words."""
    if not sentences:
        return
    count = min(max(FEWEST, min(MOST, round(len(sentences) / PART))), len(sentences))
    edges = [round(len(sentences) * number / count) for number in range(count + 1)]
    for number, (first, last) in enumerate(pairwise(edges), 1):
        group = sentences[first:last]
        start = group[0].start or 0
        name = f"Part {number} of {count}"
        if page := document.page(start):
            name += f", from page {page}"
        elif not any(sentence.speaker for sentence in group):
            name += f": {_beginning(group)}"
        yield _section(document, name, 1, start, group)


def _beginning(group: Sequence[ScoredSentence]) -> str:
    return textwrap.shorten(group[0].text[:400], 60, placeholder=" …")


def _section(document: Document, heading: str, level: int, start: int, group: Sequence[ScoredSentence]) -> Section:
    from longspan_documents.summaries.selection import choose

    count = 1 + (len(group) >= 8) + (len(group) >= 25)
    picked = choose([sentence.text for sentence in group], [sentence.score or 0.0 for sentence in group], count)
    sentences = tuple(group[index] for index in picked)
    return Section(heading=heading, level=level, sentences=sentences, start=start, page=document.page(start))
