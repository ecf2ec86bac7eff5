"""A picture of an answer: how likely each passage of a document is to hold it, and the words of the best ones.

Needs the 'pictures' extra (matplotlib).
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from longspan.characters import counted
from longspan.errors import InputError
from longspan.inference.results import DocumentAnswer, Quote, RankedPassage, ScoredSentence
from longspan.pictures.patterns import INK, QUIET, literal
from longspan.pictures.summaries import CHOSEN, LINE, broken, installed_fonts, scored_document

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LISTED, LINES = 5, 5
"""Passages whose words are shown, and lines of each."""


def draw_answer(answer: DocumentAnswer, title: str = "") -> Figure:
    """Draw the probability of every passage along the document, number the best ones, and show their words below.

    Args:
        answer: of `longspan.answer`, about one document.
        title: the document's name.

    Raises:
        InputError: the answer is about several documents, or matplotlib is missing.
    """
    if len(answer.scores) != 1:
        raise InputError(f"this answer is about {len(answer.scores)} documents; a picture shows one, so ask one")
    listed = answer.passages[:LISTED]
    entries = [broken(_words(passage), LINES) for passage in listed]
    below = LINE * sum(len(lines) + 1.9 for lines in entries) + 0.1
    height = below + 3.25
    chosen = [
        ScoredSentence(passage.text, passage.quote.start, passage.quote.end, passage.probability) for passage in listed
    ]
    figure, axes = scored_document(answer.scores[0], chosen, below, height, "probability")
    axes.set_ylim(0, 1.3 * max(0.2, *(piece.score or 0.0 for piece in answer.scores[0])))
    if answer.short is not None:
        quote = answer.short.quote
        axes.plot([(quote.start + quote.end) / 2], [0.02], marker="^", color=INK, markersize=6)

    fonts = installed_fonts()
    asked = _line(answer.question, 100)
    figure.text(0.06, 1 - 0.28 / height, asked, fontsize=13, weight="bold", color=INK, family=fonts)
    words = answer.text if answer.short is not None or not answer.answered else str(answer.passages[0].sentence)
    figure.text(0.06, 1 - 0.58 / height, _line(words, 115), fontsize=12, color=CHOSEN, family=fonts)
    sure = f"{counted(len(answer.scores[0]), 'passage')} · an answer is among the first three with probability"
    line = f"{_line(title, 60)} · {sure} {answer.probability:.2f}".removeprefix(" · ")
    figure.text(0.06, 1 - 0.8 / height, line, fontsize=9.5, color=QUIET, family=fonts)

    write: dict[str, Any] = {"va": "top", "family": fonts}
    top = below / height
    for number, (passage, lines) in enumerate(zip(listed, entries, strict=True), 1):
        parts = [place_in_words(passage.quote), passage.heading, ", ".join(passage.speakers)]
        head = " · ".join(_line(part, 60) for part in parts if part) + f" · probability {passage.probability:.2f}"
        figure.text(0.052, top, str(number), fontsize=9, weight="bold", color=CHOSEN, ha="right", **write)
        figure.text(0.06, top, head, fontsize=8.5, color=QUIET, **write)
        below_head = top - LINE * 1.05 / height
        figure.text(0.06, below_head, "\n".join(lines), fontsize=9, color=INK, linespacing=1.25, **write)
        top -= LINE * (len(lines) + 1.9) / height
    return literal(figure)


def _words(passage: RankedPassage) -> str:
    """The passage from the sentence that matters on, where it would else not be seen."""
    start = passage.mark[0]
    return passage.text if start < 400 else f"… {passage.text[start:]}"


def place_in_words(quote: Quote) -> str:
    """ "page 3, lines 12–15" """
    page = f"page {quote.page}, " if quote.page else ""
    same = quote.first_line == quote.last_line
    return page + (f"line {quote.first_line:,}" if same else f"lines {quote.first_line:,}–{quote.last_line:,}")


def _line(text: str, columns: int) -> str:
    return textwrap.shorten(text, columns, placeholder="…")
