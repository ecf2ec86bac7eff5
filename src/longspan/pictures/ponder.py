"""A web page of a text whose words are shaded by how long a model thought about them."""

from __future__ import annotations

from collections import Counter
from os import PathLike
from typing import Any

from longspan.counting import counted
from longspan.inference.ponder import Pondered, ponder_times
from longspan.pictures.pages import SHADES, check_page, save_page
from longspan.pictures.shaded import Shaded, shaded_page


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
    counts, most = Counter(piece.steps for piece in pondered.pieces), pondered.most
    return shaded_page(
        title,
        pondered.text,
        (
            Shaded(each.start, each.end, shade_of(each.steps, most), counted(each.steps, "step"))
            for each in pondered.pieces
        ),
        facts=[counted(len(pondered.pieces), "token"), f"{pondered.mean:.2f} steps on average, at most {most}"],
        legend=(
            "Tokens by steps",
            [(shade_of(steps, most), counted(steps, "step"), counts[steps]) for steps in range(1, most + 1)],
        ),
    )


def shade_of(steps: int, most: int) -> int:
    """From 0, one step, to `SHADES`, the most that there can be."""
    return round(SHADES * (steps - 1) / max(most - 1, 1))
