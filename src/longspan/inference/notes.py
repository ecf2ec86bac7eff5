"""What the reader of a result should know: characters that were mended, a language that a model was not trained on."""

from __future__ import annotations

import re

from longspan.characters import mended_note
from longspan.data.text.sentences import guess_language


def notes(*found: str | None, halves: int = 0) -> str | None:
    """Warnings as one text, with a word on `halves` of characters that were mended; None where there are none."""
    return "; ".join(filter(None, (*found, mended_note(halves) if halves else None))) or None


def reads_english(text: str) -> bool:
    """Whether a text is English, so far as samples of it tell; texts under 40 words of Latin letters pass.

    Prose tells at once: the commonest English words make up a tenth of it. Where they do not (code, tables, lists of
    references, other languages), langdetect decides, where the 'documents' extra brings it; it takes a while to load.
    """
    if guess_language(text) != "en":  # another script
        return False
    step = max(1, len(text) // 8)
    pieces = (text[start : start + 2_500] for start in range(0, len(text), step))
    sample = "\n".join(pieces) if len(text) > 20_000 else text
    words = sample.lower().split()
    if len(words) < 40:
        return True
    common = {"the", "of", "and", "to", "that", "for", "with", "this", "are", "from", "by", "which", "it", "you", "we"}
    return sum(word in common for word in words) >= len(words) / 10 or _detected(sample) == "en"


def _detected(sample: str) -> str | None:
    """The language that langdetect finds in a sample's words; None without it, or without anything to go by."""
    from importlib.util import find_spec

    if find_spec("langdetect") is None:
        return None
    from langdetect import DetectorFactory, LangDetectException, detect

    DetectorFactory.seed = 0  # it draws at random what it looks at
    try:
        return detect(" ".join(re.findall(r"\b[^\W\d_]{2,}\b", sample))[:5_000])
    except LangDetectException:
        return None
