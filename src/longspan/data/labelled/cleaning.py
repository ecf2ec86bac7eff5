"""What is taken out of news articles before they are classified: addresses, and what is repeated for effect."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"(?:\b[a-z][a-z0-9+.-]{1,20}://|\bwww\.)[^\s<>\"”’)\]]+", re.IGNORECASE)
_SAME_MARK = re.compile(r"([^\w\s])(?:\s*\1)+")
_SAME_LETTER = re.compile(r"([^\W\d_])\1{3,}")


def clean(text: str) -> str:
    """The text as Longformer's experiment on Hyperpartisan has it: no addresses, nothing repeated, single spaces.

    Web addresses go. The same punctuation mark several times, with or without spaces between, becomes one; a letter
    that stands four times or more becomes one ("soooo" → "so"); digits stay, since 10000 is a number. Every run of
    white space is one space.
    """
    text = _ADDRESS.sub(" ", text)
    text = _SAME_LETTER.sub(r"\1", _SAME_MARK.sub(r"\1", text))
    return " ".join(text.split())
