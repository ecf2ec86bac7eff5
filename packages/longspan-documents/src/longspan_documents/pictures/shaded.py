"""The web page of a text with words shaded by importance, next to a legend."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from longspan.characters import counted
from longspan.pictures.frame import as_line, as_text, page_frame
from longspan_documents.inference.importance import Weighed
from longspan_documents.pictures.pages import SHADES, page_style


@dataclass(frozen=True)
class Shaded:
    """A part of a text, from `start` to `end` in characters, its shade from 0 to `SHADES`, and its tooltip."""

    start: int
    end: int
    shade: int
    title: str


def _paragraphs(text: str, parts: Iterable[Shaded]) -> Iterator[str]:
    """Yields the lines of the text; neighbours with equal tooltips share a mark."""
    start, left = 0, deque(parts)
    for line in text.splitlines(keepends=True):
        end, inside = start + len(line), list[Shaded]()
        while left and left[0].start < end:
            inside.append(left.popleft())
        if line.strip():
            yield f'<p dir="auto">{"".join(_marked(text, inside, start, end))}</p>\n'
        start = end


def _marked(text: str, parts: list[Shaded], start: int, end: int) -> Iterator[str]:
    done = start
    for (shade, title), group in groupby(parts, key=lambda part: (part.shade, part.title)):
        members = list(group)
        first, last = max(members[0].start, done), min(members[-1].end, end)
        yield as_text(text[done:first])
        yield f'<span class="s{shade}" title="{as_line(title)}">{as_text(text[first:last])}</span>'
        done = max(done, last)
    yield as_text(text[done:end].rstrip())


HEADINGS = {
    "tagger": "Words by probability of importance",
    "reference": "Words that the reference names",
    "summary": "Words that the bundled model's summary names",
}
"""Meaning of the shades, by their source."""


def importance_page(weighed: Weighed, title: str = "Importance") -> str:
    """Returns the page: the text, and the number of words of each importance."""
    counts = Counter(shade_of_importance(word.importance) for word in weighed.words)
    entries = [(shade, f"about {shade / SHADES:.2f}", counts[shade]) for shade in reversed(range(SHADES + 1))]
    if weighed.by != "tagger":  # a summary names a word or does not
        entries = [(SHADES, "important", counts[SHADES]), (0, "others", counts[0])]
    parts = (
        Shaded(each.start, each.end, shade_of_importance(each.importance), f"{each.importance:.2f}")
        for each in weighed.words
    )
    facts = [counted(len(weighed.words), "word"), f"{weighed.important:,} important"]
    heading = HEADINGS[weighed.by]
    rows = (
        f'<p class="legend"><span class="scale" aria-hidden="true"><i class="s{shade}"></i></span>'
        f'<span>{as_line(meaning)}</span><span class="key">{count:,}</span></p>\n'
        for shade, meaning, count in entries
    )
    pieces = [
        f'<header>\n<h1 dir="auto">{as_line(title)}</h1>\n<ul class="counts">',
        *(f"<li>{as_line(fact)}</li>" for fact in facts),
        f'</ul>\n</header>\n<main>\n<nav aria-label="{as_line(heading)}">\n<h2>{as_line(heading)}</h2>\n',
        *rows,
        '</nav>\n<article aria-label="Text" dir="auto">\n',
        *_paragraphs(weighed.text, parts),
        "</article>\n</main>\n",
    ]
    return page_frame(title, page_style(), pieces)


def shade_of_importance(importance: float) -> int:
    return round(SHADES * importance)
