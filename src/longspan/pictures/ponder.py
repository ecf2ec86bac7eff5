"""A web page of a text whose words are shaded by how long a model thought about them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from itertools import groupby
from os import PathLike
from typing import Any

from longspan.inference.ponder import Piece, Pondered, ponder_times
from longspan.pictures.frame import as_line, as_text, page_frame, page_style
from longspan.pictures.pages import SHADES, check_page, save_page


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
    found = ponder_times(model, text, tokenizer)
    if html is not None:
        save_page(ponder_page(found, title), html)
    return found


def ponder_page(pondered: Pondered, title: str = "Ponder times") -> str:
    """The page: the text on one side, and how many tokens took how many steps on the other."""
    counts = Counter(piece.steps for piece in pondered.pieces)
    facts = [f"{len(pondered.pieces):,} tokens", f"{pondered.mean:.2f} steps on average, at most {pondered.most}"]
    rows = (
        f'<p class="legend"><span class="scale" aria-hidden="true"><i class="s{shade_of(steps, pondered.most)}"></i>'
        f'</span><span>{in_words(steps)}</span><span class="key">{counts[steps]:,}</span></p>\n'
        for steps in range(1, pondered.most + 1)
    )
    pieces = [
        f'<header>\n<h1 dir="auto">{as_line(title)}</h1>\n<ul class="counts">',
        *(f"<li>{fact}</li>" for fact in facts),
        '</ul>\n</header>\n<main>\n<nav aria-label="Tokens by steps">\n<h2>Tokens by steps</h2>\n',
        *rows,
        '</nav>\n<article aria-label="Text" dir="auto">\n',
        *_paragraphs(pondered),
        "</article>\n</main>\n",
    ]
    return page_frame(title, page_style(), pieces)


def shade_of(steps: int, most: int) -> int:
    """From 0, one step, to `SHADES`, the most that there can be."""
    return round(SHADES * (steps - 1) / max(most - 1, 1))


def in_words(steps: int) -> str:
    """ "1 step" """
    return f"{steps} {'step' if steps == 1 else 'steps'}"


def _paragraphs(pondered: Pondered) -> Iterator[str]:
    """The lines of the text; neighbours that took equally many steps share a mark."""
    start, pieces = 0, deque(pondered.pieces)
    for line in pondered.text.splitlines(keepends=True):
        end, inside = start + len(line), list[Piece]()
        while pieces and pieces[0].start < end:
            inside.append(pieces.popleft())
        if line.strip():
            yield f'<p dir="auto">{"".join(_marked(pondered, inside, start, end))}</p>\n'
        start = end


def _marked(pondered: Pondered, pieces: list[Piece], start: int, end: int) -> Iterator[str]:
    done = start
    for steps, group in groupby(pieces, key=lambda piece: piece.steps):
        members = list(group)
        first, last = max(members[0].start, done), min(members[-1].end, end)
        yield as_text(pondered.text[done:first])
        words = as_text(pondered.text[first:last])
        yield f'<span class="s{shade_of(steps, pondered.most)}" title="{in_words(steps)}">{words}</span>'
        done = max(done, last)
    yield as_text(pondered.text[done:end].rstrip())
