"""Documents as strips: each sentence's score over its position, with the chosen ones listed below, for a summary; and
each passage's probability, with the words of the best ones, for an answer.

Needs the 'pictures' extra (matplotlib).
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from longspan.characters import counted
from longspan.errors import InputError
from longspan.imports import require
from longspan.pictures.patterns import INK, PAPER, QUIET, literal
from longspan_documents.inference.results import DocumentAnswer, ScoredSentence, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CHOSEN, OTHER = "#e07b28", "#1f5f99"
WIDTH = 11.0
"""In inches."""
LINE = 0.19
"""Height of a line of text, in inches."""
COLUMNS = 132
"""Characters in a line of text."""
LISTED = 20
FONTS = ("DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "PingFang SC", "Microsoft YaHei", "WenQuanYi Zen Hei")
FONTS += ("Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans Devanagari", "Arial Unicode MS")
"""Tried in this order for each character, if installed."""
CELLS = 1100


def draw_summary(summary: Summary, title: str = "") -> Figure:
    """Draws the scores along the document and lists the chosen sentences with their numbers.

    Args:
        summary: an extractive summary.
        title: the document's name.

    Raises:
        InputError: the summary has no sentence scores, or matplotlib is missing.
    """
    if not summary.document:
        raise InputError("this summary was written by a model, not picked; there are no sentence scores to draw")
    entries = [broken(str(sentence), 3) for sentence in summary.sentences[:LISTED]]
    below = LINE * (sum(len(entry) + 0.6 for entry in entries) + 0.5)
    height = below + 2.95
    figure, _ = scored_document(summary.document, summary.sentences, below, height)
    name = textwrap.shorten(title, 80, placeholder="…")
    fonts = installed_fonts()
    figure.text(0.06, 1 - 0.28 / height, name or "Summary", fontsize=13, weight="bold", color=INK, family=fonts)
    total = counted(len(summary.document), "sentence")
    counts = f"{len(summary.sentences)} of {total} · {counted(summary.tokens, 'token')} read"
    figure.text(0.06, 1 - 0.52 / height, counts, fontsize=9.5, color=QUIET)
    top = below / height
    for number, lines in enumerate(entries, 1):
        figure.text(0.052, top, str(number), fontsize=9, weight="bold", color=CHOSEN, ha="right", va="top")
        figure.text(0.06, top, "\n".join(lines), fontsize=9, color=INK, va="top", linespacing=1.25, family=fonts)
        top -= LINE * (len(lines) + 0.6) / height
    return literal(figure)


def scored_document(
    document: Sequence[ScoredSentence],
    chosen: Sequence[ScoredSentence],
    below: float,
    height: float,
    label: str = "score",
) -> tuple[Figure, Axes]:
    """Returns a figure with the scores along a document over a strip of their shades, and the axes of the scores.

    Args:
        document: all pieces in order, with positions and scores.
        chosen: the highlighted ones, in order.
        below: free space below, in inches.
        height: height of the figure, in inches.
        label: meaning of the scores.
    """
    figures = require("matplotlib.figure", extra="pictures", purpose="drawing a picture")
    figure = figures.Figure(figsize=(WIDTH, height), facecolor="white")
    axes = figure.add_axes((0.06, (below + 0.75) / height, 0.91, 1.45 / height))
    strip = figure.add_axes((0.06, (below + 0.45) / height, 0.91, 0.26 / height))
    _draw_scores(axes, document, chosen)
    axes.set_ylabel(label, fontsize=9, color=QUIET)
    _draw_strip(strip, document, chosen)
    for drawn in (axes, strip):
        drawn.tick_params(labelsize=8, colors=QUIET, length=2)
        drawn.spines[:].set_visible(False)
    return figure, axes


def _draw_scores(axes: Axes, document: Sequence[ScoredSentence], chosen: Sequence[ScoredSentence]) -> None:
    """Draws one bar per piece of the document, as wide as its text; chosen ones in colour, with their numbers on
    top."""
    start = np.array([piece.start for piece in document], dtype=float)
    end = np.array([piece.end for piece in document], dtype=float)
    scores = np.array([piece.score for piece in document], dtype=float)
    total = end[-1]
    # Down to 0 at both sides of a piece: text in between, such as code, has no score.
    edges, heights = np.repeat([start, end], 2, axis=0).T.ravel(), np.outer(scores, [0, 1, 1, 0]).ravel()
    axes.fill_between(edges, heights, color=OTHER, alpha=0.55, linewidth=0)
    top = max(float(scores.max()), 0.05)
    last = -np.inf
    for number, piece in enumerate(chosen, 1):
        first, last_character = piece.place
        middle = (first + last_character) / 2
        width = max(last_character - first, total / 400)
        score = piece.score or 0.0
        axes.bar(middle, score, width=width, color=CHOSEN, linewidth=0)
        # Numbers of neighbours alternate between two heights, so that they are readable.
        raised = 0.13 * top if middle - last < total / 60 else 0.0
        axes.text(middle, score + 0.03 * top + raised, str(number), ha="center", fontsize=8.5, color=INK)
        last = middle if not raised else -np.inf
    axes.set_xlim(start[0], total)
    axes.set_ylim(0, top * 1.3)
    axes.set_xticks([])
    axes.set_facecolor(PAPER)


def _draw_strip(axes: Axes, document: Sequence[ScoredSentence], chosen: Sequence[ScoredSentence]) -> None:
    """Draws the document as a strip of shades: the best score within each cell."""
    total = document[-1].end or 1
    first = document[0].start or 0
    cells = np.zeros(CELLS)
    scale = CELLS / max(total - first, 1)
    for piece in document:
        low, high = (int((place - first) * scale) for place in piece.place)
        span = slice(low, max(high, low + 1))
        cells[span] = np.maximum(cells[span], piece.score or 0.0)
    axes.imshow(cells[None], aspect="auto", cmap="Blues", vmin=0, extent=(0, 100, 0, 1))
    for piece in chosen:
        middle = sum(piece.place) / 2
        axes.axvline(100 * (middle - first) / max(total - first, 1), color=CHOSEN, linewidth=1.6)
    axes.set_yticks([])
    axes.set_xticks([0, 25, 50, 75, 100], ["start", "25 %", "50 %", "75 %", "end"])


def broken(text: str, most: int) -> list[str]:
    """Wraps a text to the width of the picture, up to `most` lines."""
    return textwrap.wrap(" ".join(text.split()), COLUMNS, max_lines=most, placeholder=" …") or [""]


def installed_fonts() -> list[str]:
    """Returns the installed ones of `FONTS`; matplotlib's own comes first and is always available."""
    manager = require("matplotlib.font_manager", extra="pictures", purpose="drawing a picture").fontManager
    installed = {font.name for font in manager.ttflist}
    return [name for name in FONTS if name in installed]


PASSAGES, LINES = 5, 5
"""Number of passages whose words are shown, and lines of each."""


def draw_answer(answer: DocumentAnswer, title: str = "") -> Figure:
    """Draws the probability of every passage along the document, with the best ones numbered and their words below.

    Args:
        answer: result of `longspan.answer` for one document.
        title: the document's name.

    Raises:
        InputError: the answer is about several documents, or matplotlib is missing.
    """
    if len(answer.scores) != 1:
        raise InputError(f"this answer is about {len(answer.scores)} documents; a picture shows one, so ask one")
    listed = answer.passages[:PASSAGES]
    # From the relevant sentence on, if it would not be visible otherwise.
    shown = [one.text if one.mark[0] < 400 else f"… {one.text[one.mark[0] :]}" for one in listed]
    entries = [broken(words, LINES) for words in shown]
    below = LINE * sum(len(lines) + 1.9 for lines in entries) + 0.1
    height = below + 3.25
    scores = {passage.start: passage.score for passage in answer.scores[0]}
    heights = [scores[one.quote.start] if one.probability is None else one.probability for one in listed]
    chosen = [
        ScoredSentence(passage.text, passage.quote.start, passage.quote.end, height)
        for passage, height in zip(listed, heights, strict=True)
    ]
    chance = answer.probability
    label = "probability" if chance is not None else "score, as a share of the best"
    figure, axes = scored_document(answer.scores[0], chosen, below, height, label)
    axes.set_ylim(0, 1.3 * max(0.2, *(piece.score or 0.0 for piece in answer.scores[0])))
    if answer.short is not None:
        quote = answer.short.quote
        axes.plot([(quote.start + quote.end) / 2], [0.02], marker="^", color=INK, markersize=6)

    fonts = installed_fonts()
    asked = _line(answer.question, 100)
    figure.text(0.06, 1 - 0.28 / height, asked, fontsize=13, weight="bold", color=INK, family=fonts)
    words = answer.text if answer.short is not None or not answer.answered else str(answer.passages[0].sentence)
    figure.text(0.06, 1 - 0.58 / height, _line(words, 115), fontsize=12, color=CHOSEN, family=fonts)
    sure = "" if chance is None else f" · an answer is among the first three with probability {chance:.2f}"
    line = f"{_line(title, 60)} · {counted(len(answer.scores[0]), 'passage')}{sure}".removeprefix(" · ")
    figure.text(0.06, 1 - 0.8 / height, line, fontsize=9.5, color=QUIET, family=fonts)

    write: dict[str, Any] = {"va": "top", "family": fonts}
    top = below / height
    for number, (passage, lines) in enumerate(zip(listed, entries, strict=True), 1):
        parts = [passage.quote.place, passage.heading, ", ".join(passage.speakers)]
        parts += [] if passage.probability is None else [f"probability {passage.probability:.2f}"]
        head = " · ".join(_line(part, 60) for part in parts if part)
        figure.text(0.052, top, str(number), fontsize=9, weight="bold", color=CHOSEN, ha="right", **write)
        figure.text(0.06, top, head, fontsize=8.5, color=QUIET, **write)
        below_head = top - LINE * 1.05 / height
        figure.text(0.06, below_head, "\n".join(lines), fontsize=9, color=INK, linespacing=1.25, **write)
        top -= LINE * (len(lines) + 1.9) / height
    return literal(figure)


def _line(text: str, columns: int) -> str:
    return textwrap.shorten(text, columns, placeholder="…")
