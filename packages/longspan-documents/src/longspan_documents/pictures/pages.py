"""The web page of a summary.

`summary_page` shows the whole document, with sentences shaded by score, next to the summary; navigation uses links
within the page only.
"""

from __future__ import annotations

import os
import textwrap
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path

from longspan.characters import counted
from longspan.data.text.sentences import guess_language
from longspan.errors import InputError
from longspan.files import output_file, write_whole
from longspan.pictures.frame import as_line, as_text, page_frame
from longspan.settings import check_kind, show
from longspan_documents.inference.outline import Section
from longspan_documents.inference.results import ScoredSentence, Summary
from longspan_documents.text.blocks import SPOKEN, Block, Document, Kind


@cache
def page_style() -> str:
    """Returns the CSS of pages that show a text."""
    return Path(__file__).with_name("page.css").read_text(encoding="utf-8")


FOLDED: dict[Kind, str] = {
    "boilerplate": "Boilerplate",
    "references": "References",
    "caption": "Caption",
    "note": "Note",
}
"""Kinds of blocks that are not summarised; they are folded, under these labels."""
SHADES = 9
CELLS = 240
"""Cells of the strip that shows the whole document."""
LARGEST_LEVEL = 6

Insertion = tuple[int, str]
"""A position in a block's words, and the markup inserted there."""


def check_page(path: str | os.PathLike[str], reads: Iterable[str | os.PathLike[str] | None] = ()) -> Path:
    """Returns the path if a page can be written there; call it before long work that ends in a page.

    Args:
        path: path of the page.
        reads: as in `output_file`.

    Raises:
        InputError: the name does not end with .html or .htm, the folder is missing or not writable, or the file is an
            input.
    """
    path = os.fspath(path) if isinstance(path, os.PathLike) else path
    check_kind(path, "html", str, "the path of a page")
    if Path(path).suffix.lower() not in {".html", ".htm"}:
        raise InputError(f"html {show(path)} is no name of a page; let it end with .html")
    return output_file(path, "html", reads)


def save_page(page: str, path: str | os.PathLike[str]) -> None:
    """Writes a page atomically; an existing file is replaced. Errors as in `check_page`."""
    write_whole({check_page(path): page})


def summary_page(document: Document, summary: Summary, title: str = "", sections: Sequence[Section] = ()) -> str:
    """Returns the page, in time and size linear in the document.

    All text is escaped, control and direction characters become U+FFFD, and the page's content security policy blocks
    all loading and scripts.

    Args:
        document: the summarised document.
        summary: its summary. For abstractive summaries there are no scores, and no sentence is shaded.
        title: the heading; by default the document's own title, otherwise its name.
        sections: the result of `longspan_documents.inference.outline.outline`, shown below the summary.

    Raises:
        InputError: the summary belongs to another document.
    """
    title = title or document.title or document.name
    layout = _Layout(document, summary, title, sections)
    language = guess_language(document.text)
    # The script distinguishes Chinese from Arabic, but not languages with Latin letters.
    spoken = "" if language == "en" else f' lang="{as_text(language)}"'
    pieces = [
        '<a class="skip" href="#document">Skip to the document</a>\n',
        f'<header>\n<h1 dir="auto"{spoken}>{as_line(title)}</h1>\n{_counts(document, summary, title)}</header>\n',
        f'<main>\n<nav id="summary" aria-label="Summary">\n{_panel(summary, layout, spoken)}',
        f"{_outline(sections, layout)}</nav>\n",
        f'<article id="document" aria-label="Document" dir="auto"{spoken}>\n',
        *layout.document_markup(),
        '<a class="up" href="#summary">↑ Summary</a>\n</article>\n</main>\n',
    ]
    return page_frame(f"{title}: summary", page_style(), pieces)


# The frame -----------------------------------------------------------------------------------------------------------


def _counts(document: Document, summary: Summary, title: str) -> str:
    counts = [as_line(document.name)] if document.name != title else []
    if summary.document:
        counts.append(f"{len(summary.sentences)} of {counted(len(summary.document), 'sentence')}")
    counts.append(f"{counted(summary.tokens, 'token')} read")
    if len(document.pages) > 1:
        counts.append(f"{len(document.pages)} pages")
    parts = "".join(f'<li dir="auto">{part}</li>' for part in counts)
    note = f'<p class="note">{as_text(summary.note)}</p>\n' if summary.note else ""
    return f'<ul class="counts">{parts}</ul>\n{note}'


def _panel(summary: Summary, layout: _Layout, spoken: str) -> str:
    """Returns the summary, each sentence a link to its position, with the strip and the legend."""
    items = (
        f'<li id="pick-{number}"{spoken}>{layout.link(sentence)}</li>\n'
        for number, sentence in enumerate(summary.sentences, 1)
    )
    shades = "".join(f'<i class="s{shade}"></i>' for shade in range(SHADES + 1))
    legend = (
        f'<p class="legend"><span>low score</span><span class="scale" aria-hidden="true">{shades}</span>'
        '<span>high</span><span class="key"><b class="number">1</b> in the summary</span></p>\n'
    )
    legend = legend if summary.document else ""  # abstractive models give no scores
    return f"<h2>Summary</h2>\n{layout.strip()}{legend}<ol>\n{''.join(items)}</ol>\n"


def _outline(sections: Sequence[Section], layout: _Layout) -> str:
    """Returns the sections with their best sentences, each a link to its position."""
    if not sections:
        return ""
    items = "".join(
        f'<li class="o{min(section.level, LARGEST_LEVEL)}"><b dir="auto">{as_line(section.heading)}</b>'
        f"{''.join(layout.link(sentence) for sentence in section.sentences)}</li>\n"
        for section in sections
    )
    return f'<h2 class="outline">Outline</h2>\n<ul class="outline">\n{items}</ul>\n'


# The document --------------------------------------------------------------------------------------------------------


@dataclass
class _Layout:
    """The layout of a document on its page.

    Attributes:
        linked: start positions of the sentences that the outline links to.
        numbers: numbers of the summary's sentences, by their start in the document.
        sentences: the scored sentences of each block, by the block's index.
        pages: the pages that begin in or before each block, with their positions.
    """

    document: Document
    summary: Summary
    title: str
    sections: Sequence[Section] = ()
    linked: set[int | None] = field(init=False)
    numbers: dict[int | None, int] = field(init=False)
    sentences: dict[int, list[ScoredSentence]] = field(init=False)
    pages: dict[int, list[tuple[int, int]]] = field(init=False)
    lowest: float = field(init=False)
    best: float = field(init=False)

    def __post_init__(self) -> None:
        """Assigns sentences and pages to blocks."""
        blocks, scored = self.document.blocks, self.summary.document
        spoken = [index for index, block in enumerate(blocks) if block.kind in SPOKEN and block.text]
        starts = [blocks[index].body.start for index in spoken]
        spans = [sentence.place for sentence in scored]
        if spans and (not starts or spans[0][0] < starts[0] or spans[-1][1] > blocks[spoken[-1]].body.end):
            raise InputError(f"the summary is not of {self.document.name}; give the document that was summarised")
        self.numbers = {s.start: number for number, s in enumerate(self.summary.sentences, 1) if s.start is not None}
        self.linked = {sentence.start for section in self.sections for sentence in section.sentences}
        scores = [sentence.score or 0.0 for sentence in scored] or [0.0]
        self.lowest, self.best = min(scores), max(scores)
        self.sentences = defaultdict(list)
        for sentence, (start, _) in zip(scored, spans, strict=True):
            self.sentences[spoken[bisect_right(starts, start) - 1]].append(sentence)
        self.pages = defaultdict(list)
        ends = [block.body.end for block in blocks]
        for number, place in enumerate(self.document.pages, 1) if len(self.document.pages) > 1 else ():
            self.pages[bisect_right(ends, place)].append((number, place))

    def link(self, sentence: ScoredSentence) -> str:
        """Returns a sentence of the summary as a link to its position, if it has one."""
        who = f'<b class="speaker">{as_line(sentence.speaker)}</b> ' if sentence.speaker else ""
        words = f'<span dir="auto">{who}{as_line(sentence.text)}</span>'
        return words if sentence.start is None else f'<a href="#at-{sentence.start}">{words}</a>'

    def shade(self, score: float | None) -> int:
        """Returns the shade of a score, from 0 to `SHADES`; squared, so that the best stand out."""
        between = ((score or 0.0) - self.lowest) / (self.best - self.lowest) if self.best > self.lowest else 0.0
        return round(SHADES * between**2)

    def strip(self) -> str:
        """Returns the document from left to right, with the shade of the best sentence in each cell, which links
        there."""
        scored = self.summary.document
        if not scored:
            return ""
        first, last = scored[0].place[0], scored[-1].place[1]
        scale = CELLS / max(last - first, 1)
        cells = [0] * CELLS
        for sentence in scored:
            low, high = (min(int((place - first) * scale), CELLS - 1) for place in sentence.place)
            for cell in range(low, high + 1):
                cells[cell] = max(cells[cell], self.shade(sentence.score))
        drawn = "".join(f'<rect class="f{shade}" x="{x}" width="1" height="10"/>' for x, shade in enumerate(cells))
        picked = (sentence for sentence in self.summary.sentences if sentence.start is not None)
        marks = "".join(
            f'<a href="#at-{sentence.start}" tabindex="-1"><rect class="mark" '
            f'x="{min(int((sentence.place[0] - first) * scale), CELLS - 2)}" width="2" height="10"/></a>'
            for sentence in picked
        )
        return (
            f'<svg class="strip" viewBox="0 0 {CELLS} 10" preserveAspectRatio="none" aria-hidden="true">'
            f"{drawn}{marks}</svg>\n"
        )

    def document_markup(self) -> Iterator[str]:
        """Yields the blocks in order: folded blocks and items in groups, each with the pages that begin before it."""
        blocks = enumerate(self.document.blocks)
        for kind, group in groupby(blocks, key=lambda pair: pair[1].kind):
            members = list(group)
            if kind in FOLDED:
                yield from self._folded(kind, members)
            elif kind == "item":
                yield '<div role="list">\n'
                yield from (self._block(index, block) for index, block in members)
                yield "</div>\n"
            else:
                yield from (self._block(index, block) for index, block in members)

    def _folded(self, kind: Kind, members: Sequence[tuple[int, Block]]) -> Iterator[str]:
        words = " ".join(members[0][1].text.split())
        yield from (self._marks(index, block) for index, block in members)
        beginning = as_text(textwrap.shorten(words[:400], 70, placeholder="…"))
        yield f'<details><summary>{FOLDED[kind]} <span dir="auto">{beginning}</span></summary>\n'
        yield from (f'<p dir="auto">{as_text(block.text)}</p>\n' for _, block in members)
        yield "</details>\n"

    def _block(self, index: int, block: Block) -> str:
        before = self._marks(index, block)
        abstract = " abstract" if block.abstract else ""
        if block.kind == "heading":
            if index == 0 and block.text == self.title:
                return before  # it is shown above already
            level = min(max(block.level, 1) + 1, LARGEST_LEVEL)
            return f'{before}<h{level} dir="auto">{as_text(block.text)}</h{level}>\n'
        if block.kind in {"code", "table"}:
            # The first line end after the tag is not part of the text.
            return f'{before}<pre tabindex="0" class="{block.kind}">\n{as_text(block.text)}</pre>\n'
        words = self._spoken(index, block)
        if block.kind == "item":
            return f'{before}<p role="listitem" class="item l{min(block.level, 5)}{abstract}" dir="auto">{words}</p>\n'
        who = f'<b class="speaker">{as_line(block.speaker)}</b> ' if block.speaker else ""
        return f'{before}<p class="{block.kind}{abstract}" dir="auto">{who}{words}</p>\n'

    def _marks(self, index: int, block: Block) -> str:
        """Returns the pages that begin before a block, or within it if nothing can be inserted between its words."""
        early = (n for n, place in self.pages[index] if place <= block.body.start or block.kind not in SPOKEN)
        return "".join(f'<div class="page">page {number}</div>\n' for number in early)

    def _spoken(self, index: int, block: Block) -> str:
        """Returns the words of a block with its sentences and the pages that begin among them."""
        insertions: list[Insertion] = []
        for sentence in self.sentences[index]:
            start, end = (block.body.place(origin) for origin in sentence.place)
            number = self.numbers.get(sentence.start)
            target = f' id="at-{sentence.start}"' if number or sentence.start in self.linked else ""
            classes = f"s{self.shade(sentence.score)}{' picked' if number else ''}"
            opening = f'<span class="{classes}" title="score {sentence.score or 0:.2f}"{target}>'
            label = f"Sentence {number} of the summary"
            link = f'<a class="number" href="#pick-{number}" aria-label="{label}">{number}</a>' if number else ""
            insertions += [(start, opening), (end, f"{link}</span>")]
        late = [(n, place) for n, place in self.pages[index] if place > block.body.start]
        insertions += [(block.body.place(place), f'<span class="page">page {n}</span>') for n, place in late]
        pieces, done = [], 0
        for place, markup in sorted(insertions, key=lambda insertion: insertion[0]):
            pieces += [as_text(block.text[done:place]), markup]
            done = place
        return "".join([*pieces, as_text(block.text[done:])])
