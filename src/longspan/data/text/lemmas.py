"""Words of a text by their dictionary forms: which of a document's words its summary names, in whatever form.

Needs the 'lemmas' extra (simplemma, dictionaries of some fifty languages).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from longspan.data.text.sentences import guess_language
from longspan.data.text.words import FUNCTION_WORDS, placed_words
from longspan.errors import InputError
from longspan.extras import require


def important_words(text: str, reference: str, language: str | None = None) -> list[tuple[int, int]]:
    """The words of a text whose lemma is in the reference, and that are not English function words, as places in
    characters (Pang et al. 2022, arXiv 2203.07586, section 2.3).

    Args:
        text: the document.
        reference: its summary.
        language: of both, as ISO 639-1 code; None guesses it by the script. Words of a language without a dictionary,
            and unknown words, are their own lemmas.
    """
    lemma_of = lemmatizer(guess_language(text) if language is None else language)
    named = {lemma_of(word) for _, _, word in placed_words(reference)} - {None}
    return [(start, end) for start, end, word in placed_words(text) if lemma_of(word) in named]


@lru_cache(maxsize=4)
def lemmatizer(language: str) -> Any:
    """A function from a word to its lemma; `None` for words that say nothing of what a text is about.

    Raises:
        InputError: the 'lemmas' extra is not installed.
    """
    simplemma = require("simplemma", extra="lemmas", purpose="telling which words a summary names")
    known = language
    try:
        simplemma.lemmatize("a", lang=language)
    except ValueError:  # a language that it has no dictionary for
        known = None

    @lru_cache(maxsize=100_000)
    def lemma_of(word: str) -> str | None:
        lemma = word if known is None else simplemma.lemmatize(word, lang=known).lower()
        return None if word in FUNCTION_WORDS or lemma in FUNCTION_WORDS else lemma

    return lemma_of


def check_reference(reference: str) -> None:
    """Raise `InputError` for a reference without a word."""
    if next(iter(placed_words(reference)), None) is None:
        raise InputError("the reference holds no words; give the summary that tells what is important")
