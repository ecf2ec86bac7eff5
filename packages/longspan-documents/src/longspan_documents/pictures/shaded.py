"""Web pages of a text whose words are shaded, with the shades explained at its side.

The shades say how important each word is (`importance_page`), or how many steps a model took over it (`ponder_page`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from os import PathLike
from typing import Any

from longspan.characters import counted
from longspan.pictures.frame import as_line, as_text, page_frame
from longspan_documents.inference.importance import Weighed
from longspan_documents.inference.ponder import Pondered, ponder_times
from longspan_documents.pictures.pages import SHADES, check_page, page_style, save_page


@dataclass(frozen=True)
class Shaded:
    """A part of a text, from `start` to `end` in characters, its shade from 0 to `SHADES`, and what it says of it."""

    start: int
    end: int
    shade: int
    title: str


def shaded_page(
    title: str,
    text: str,
    parts: Iterable[Shaded],
    *,
    facts: Sequence[str],
    legend: tuple[str, list[tuple[int, str, int]]],
) -> str:
    """The page: the text on one side and the legend on the other; all text is escaped.

    Args:
        title: what stands above.
        text: the text.
        parts: what is shaded of it, in order.
        facts: what is counted under the title.
        legend: its heading, and of each line the shade, what it means, and how many parts have it.
    """
    heading, entries = legend
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
        *_paragraphs(text, parts),
        "</article>\n</main>\n",
    ]
    return page_frame(title, page_style(), pieces)


def _paragraphs(text: str, parts: Iterable[Shaded]) -> Iterator[str]:
    """The lines of the text; neighbours that say the same share a mark."""
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


SAID = {
    "tagger": "Words by probability of importance",
    "reference": "Words that the reference names",
    "summary": "Words that the bundled model's summary names",
}
"""What the shades are, by where they come from."""


def importance_page(weighed: Weighed, title: str = "Importance") -> str:
    """The page: the text on one side, and how many words have which importance on the other."""
    counts = Counter(shade_of_importance(word.importance) for word in weighed.words)
    entries = [(shade, f"about {shade / SHADES:.2f}", counts[shade]) for shade in reversed(range(SHADES + 1))]
    if weighed.by != "tagger":  # a summary names a word or does not
        entries = [(SHADES, "important", counts[SHADES]), (0, "others", counts[0])]
    return shaded_page(
        title,
        weighed.text,
        (
            Shaded(each.start, each.end, shade_of_importance(each.importance), f"{each.importance:.2f}")
            for each in weighed.words
        ),
        facts=[counted(len(weighed.words), "word"), f"{weighed.important:,} important"],
        legend=(SAID[weighed.by], entries),
    )


def shade_of_importance(importance: float) -> int:
    """The shade, 0 to `SHADES`, of an importance between 0 and 1."""
    return round(SHADES * importance)


def ponder(
    model: Any,
    text: str,
    *,
    tokenizer: Any = None,
    html: str | PathLike[str] | None = None,
    title: str = "Ponder times",
) -> Pondered:
    """How many steps a model takes over each token of a text, and, with `html`, a page that shades the text by them.

    Args:
        model: a folder that `longspan train` wrote, or a model; its stack is universal with `halting: adaptive`.
        text: what is read.
        tokenizer: of the model, where that is no folder.
        html: file of the page; an existing one is replaced.
        title: of the page.

    Raises:
        InputError: the model's tokens all take the same steps; no tokenizer; a text too long; a file that cannot be
            written.
    """
    if html is not None:
        check_page(html)
    pondered = ponder_times(model, text, tokenizer)
    if html is not None:
        save_page(ponder_page(pondered, title), html)
    return pondered


def ponder_page(pondered: Pondered, title: str = "Ponder times") -> str:
    """The page: the text on one side, and how many tokens took how many steps on the other."""
    counts, most = Counter(piece.steps for piece in pondered.pieces), pondered.most
    return shaded_page(
        title,
        pondered.text,
        (
            Shaded(each.start, each.end, shade_of_steps(each.steps, most), counted(each.steps, "step"))
            for each in pondered.pieces
        ),
        facts=[counted(len(pondered.pieces), "token"), f"{pondered.mean:.2f} steps on average, at most {most}"],
        legend=(
            "Tokens by steps",
            [(shade_of_steps(steps, most), counted(steps, "step"), counts[steps]) for steps in range(1, most + 1)],
        ),
    )


def shade_of_steps(steps: int, most: int) -> int:
    """From 0, one step, to `SHADES`, the most that there can be."""
    return round(SHADES * (steps - 1) / max(most - 1, 1))
