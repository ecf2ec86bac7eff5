"""Which words are common in English, by the vocabulary of the bundled encoder, which has them by frequency."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

VOCABULARY = Path(__file__).parents[2] / "bundled" / "encoder" / "tokenizer.json"


@cache
def common_words() -> dict[str, int]:
    """The whole words of the vocabulary in small letters, each with its rank; about 27,000."""
    vocabulary: dict[str, int] = json.loads(VOCABULARY.read_text("utf-8"))["model"]["vocab"]
    return {word: rank for word, rank in vocabulary.items() if word.isalpha()}
