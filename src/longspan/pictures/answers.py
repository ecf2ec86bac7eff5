"""A picture of an answer: how likely each passage of the document is to hold it, and the passage that was chosen.

Needs the 'pictures' extra (matplotlib).
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from longspan.inference.results import DocumentAnswer, Quote
from longspan.pictures.patterns import INK, QUIET, literal
from longspan.pictures.summaries import CHOSEN, LINE, broken, installed_fonts, scored_document

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINES = 14
"""Lines of the passage that are shown."""


def draw_answer(answer: DocumentAnswer, title: str = "") -> Figure:
    """Draw the probability of every passage along the document, mark the chosen one and its short answer, show both.

    Args:
        answer: of `longspan.answer`.
        title: the document's name.

    Raises:
        InputError: matplotlib is missing.
    """
    lines = broken(str(answer.passage), LINES)
    text_top = LINE * (len(lines) + 0.5) + 0.15
    height = text_top + 3.25
    chosen = [piece for piece in answer.passages if piece.start == answer.passage.start and answer.answered]
    figure, axes = scored_document(answer.passages, chosen, text_top, height, "probability")
    axes.set_ylim(0, 1.15 * max(0.2, *(piece.score or 0.0 for piece in answer.passages)))
    if answer.short is not None:
        axes.plot([(answer.short.start + answer.short.end) / 2], [0.02], marker="^", color=INK, markersize=6)
    fonts = installed_fonts()
    write: dict[str, Any] = {"color": INK, "family": fonts}
    figure.text(0.06, 1 - 0.28 / height, _line(answer.question, 100), fontsize=13, weight="bold", **write)
    found = answer.text if answer.short is not None or not answer.answered else "the passage below answers"
    figure.text(0.06, 1 - 0.58 / height, _line(found, 110), fontsize=12, color=CHOSEN, family=fonts)
    counts = f"{_line(title, 60)} · {place_in_words(answer.passage)} · probability {answer.probability:.2f}"
    counts = f"{counts.removeprefix(' · ')} · {len(answer.passages):,} passages, {answer.tokens:,} tokens read"
    figure.text(0.06, 1 - 0.8 / height, counts, fontsize=9.5, color=QUIET, family=fonts)
    figure.text(0.06, text_top / height, "\n".join(lines), fontsize=9, va="top", linespacing=1.25, **write)
    return literal(figure)


def place_in_words(quote: Quote) -> str:
    """ "page 3, lines 12–15" """
    page = f"page {quote.page}, " if quote.page else ""
    same = quote.first_line == quote.last_line
    return page + (f"line {quote.first_line:,}" if same else f"lines {quote.first_line:,}–{quote.last_line:,}")


def _line(text: str, columns: int) -> str:
    return textwrap.shorten(text, columns, placeholder="…")
