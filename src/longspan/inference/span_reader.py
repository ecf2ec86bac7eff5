"""What models of questions have in common: they read passages and give the words that answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from longspan.data.text.blocks import Document
from longspan.inference.results import RankedPassage, ShortAnswer, quote_of

# Not in scripts that put no spaces between words: Thai and its neighbours, Chinese, Japanese.
_INSIDE_WORD = re.compile(r"(?:(?![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\uffff])[^\W_]){2}")


class Words(NamedTuple):
    """Characters `start … end − 1` of a text that answer, and how likely they are."""

    start: int
    end: int
    probability: float
    yes_no: str = "none"


class SpanReader(Protocol):
    """What `load_reader` gives: a model that is ready to read."""

    def best(
        self, question: str, documents: Sequence[Document], passages: Sequence[RankedPassage]
    ) -> ShortAnswer | None:
        """The words that answer, of those passages and what stands around them; None where the model finds none.

        Raises:
            InputError: the question leaves no room for a document.
        """
        ...


def short_answer(documents: Sequence[Document], number: int, words: Words, offset: int) -> ShortAnswer:
    """Words that were found `offset` characters into a document, made whole, with their place."""
    start, end = whole_words(documents[number].text, words.start + offset, words.end + offset)
    quote = quote_of(documents[number], start, end)
    return ShortAnswer(document=number, quote=quote, probability=words.probability, yes_no=words.yes_no)


def whole_words(text: str, start: int, end: int) -> tuple[int, int]:
    """The span made longer so that it neither begins nor ends inside a word."""
    while start > 0 and _INSIDE_WORD.fullmatch(text, start - 1, start + 1):
        start -= 1
    while end < len(text) and _INSIDE_WORD.fullmatch(text, end - 1, end + 1):
        end += 1
    return start, end
