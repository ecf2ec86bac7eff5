"""Words of texts in any script: what metrics count, labels compare and summaries are measured in; and, by their
dictionary forms, which of a document's words its summary names, in whatever form.

Dictionary forms need the 'lemmas' extra (simplemma, dictionaries of some fifty languages).
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from typing import Any

from longspan.data.text.sentences import guess_language
from longspan.errors import InputError
from longspan.imports import require

# Chinese, Japanese and Yi characters, and the South-East Asian scripts that are written without spaces.
_UNSPACED = (
    "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua48f\uf900-\ufaff\U00020000-\U0003ffff"
    "\u0e00-\u0e3a\u0e40-\u0e5b\u0e80-\u0edf\u1000-\u109f\u1780-\u17ff"
)

_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")
_ASCII_WORD = re.compile(r"[a-z0-9]+")

_FUNCTION_WORDS = """
a about above after again against all also am an and any anybody anyone anything are as at be because been
before being below between both but by can could d did do does doing done down during each either else ever
every few for from further give had has have having he her here hers herself him himself his how however i if in
into is it its itself just let like ll m many may me might more most much must my myself no nor not of off on
once only or other ought our ours ourselves out over own please re s same say says shall she should so some
somebody someone something such t tell than that the their theirs them themselves then there these they this
those through thus to too under until up upon us ve very was we were what when where whether which while who
whom whose why will with would you your yours yourself yourselves
"""
STEM = 6
"""Letters of a word that tell it from others."""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
"""English words that say nothing of what a text is about."""


def split_words(text: str) -> list[str]:
    """Lower-case words in order, in normal form NFKC; characters of scripts written without spaces count singly."""
    if text.isascii():  # the same words, found ten times faster
        return _ASCII_WORD.findall(text.lower())
    # The Arabic tatweel only stretches a word on paper.
    return _pattern().findall(unicodedata.normalize("NFKC", text).lower().replace("\u0640", ""))


def placed_words(text: str) -> Iterator[tuple[int, int, str]]:
    """Where each word of a text begins and ends, in characters, and the word, lower-case and in normal form NFKC;
    characters of scripts written without spaces count singly."""
    for match in _pattern().finditer(text):
        yield match.start(), match.end(), unicodedata.normalize("NFKC", match[0]).lower()


def contents_of(text: str) -> list[str]:
    """What a text is about: its words without English function words and numbers, cut to `STEM` letters.

    Words that share their first letters are taken for forms of one word: as good as a stemmer where words are counted,
    for every language, and without a dependency. Characters of scripts without spaces count in pairs of neighbours.
    """
    contents: list[str] = []
    before = ""
    for word in split_words(text):
        if is_unspaced(word):
            if before:
                contents.append(before + word)
            before = word
            continue
        before = ""
        if len(word) > 1 and not word.isdigit() and word not in FUNCTION_WORDS:
            contents.append(word[:STEM])
    return contents


def holders_of(texts: Iterable[Iterable[str]]) -> Counter[str]:
    """How many of some texts, each given by its words, have each word; words in the order of their first places."""
    return Counter(word for words in texts for word in dict.fromkeys(words))


def is_unspaced(word: str) -> bool:
    """Whether a word that `split_words` gave is a character of a script that is written without spaces."""
    return not word.isascii() and _UNSPACED_CHARACTER.match(word) is not None


@cache
def _pattern() -> re.Pattern[str]:
    """One character of an unspaced script, or a run of others; each with its combining marks, which `\\w` lacks."""
    codes = [code for code in range(0x300, sys.maxunicode) if unicodedata.category(chr(code)).startswith("M")]
    marks = "".join(f"\\U{code:08x}" for code in codes)
    return re.compile(rf"[{_UNSPACED}][{marks}]*|(?:(?![{_UNSPACED}])[^\W_][{marks}\u200c\u200d]*)+")


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
