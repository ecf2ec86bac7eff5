"""A web page of a document whose words are shaded by how important they are."""

from __future__ import annotations

from collections import Counter

from longspan.counting import counted
from longspan.inference.importance import Weighed
from longspan.pictures.pages import SHADES
from longspan.pictures.shaded import Shaded, shaded_page

SAID = {
    "tagger": "Words by probability of importance",
    "reference": "Words that the reference names",
    "summary": "Words that the bundled model's summary names",
}
"""What the shades are, by where they come from."""


def importance_page(found: Weighed, title: str = "Importance") -> str:
    """The page: the text on one side, and how many words have which importance on the other."""
    counts = Counter(shade_of(word.importance) for word in found.words)
    several = found.by == "tagger"
    entries = [(shade, _meaning(shade, several), counts[shade]) for shade in reversed(range(SHADES + 1))]
    return shaded_page(
        title,
        found.text,
        (Shaded(each.start, each.end, shade_of(each.importance), f"{each.importance:.2f}") for each in found.words),
        facts=[counted(len(found.words), "word"), f"{found.important:,} important"],
        legend=(SAID[found.by], entries if several else [entries[0], entries[-1]]),
    )


def shade_of(importance: float) -> int:
    """From 0 to `SHADES`."""
    return round(SHADES * importance)


def _meaning(shade: int, several: bool) -> str:
    if not several:
        return "important" if shade else "others"
    return f"about {shade / SHADES:.2f}"
