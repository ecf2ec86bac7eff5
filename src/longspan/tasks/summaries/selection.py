"""From scores to a summary: which sentences to take, without saying the same thing twice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from longspan.data.text.words import split_words

_WORD = re.compile(r"[^\W_]+")
_END = re.compile("[.!?…。！？｡।॥؟۔።။།៕][\"'”’»›)\\]）」』*_]*$")
FEWEST_WORDS = 4
"""Shorter pieces are headings, page numbers or cries; they are taken only where there is nothing else."""


def default_count(sentences: int) -> int:
    """How many sentences summarise a document of so many: half the square root, between 3 and 20."""
    return min(sentences, max(3, min(20, round(sentences**0.5 / 2))))


def ranking(scores: Sequence[float] | np.ndarray) -> list[int]:
    """Indices from the best to the worst; equal scores keep the document's order."""
    return np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable").tolist()


def choose(
    sentences: Sequence[str], scores: Sequence[float] | np.ndarray, count: int, *, block_repeats: bool = True
) -> list[int]:
    """The `count` best sentences, as indices in the document's order.

    Args:
        sentences: the document's sentences.
        scores: one number for each; higher is better.
        count: how many to take; fewer are returned only where the document has fewer.
        block_repeats: pass over a sentence when half of its runs of three words, or more, were already taken, as long
            as others are left. (Trigram blocking, Paulus et al. 2018, passes over it for a single one; that cost 2
            points of ROUGE-2 on biomedical papers, which repeat their terms.)
    """
    return sorted(islice(preferred(sentences, scores, block_repeats=block_repeats), count))


def preferred(
    sentences: Sequence[str], scores: Sequence[float] | np.ndarray, *, block_repeats: bool = True
) -> Iterator[int]:
    """All sentences, those first that `choose` takes first; arguments as there."""
    words = [split_words(sentence) for sentence in sentences]
    order = ranking(scores)
    taken: set[int] = set()
    seen: set[tuple[str, ...]] = set()
    # Whole, new sentences first; where the summary is still too short then, new pieces of any kind, then any at all.
    for wants_whole, wants_new in ((True, block_repeats), (False, block_repeats), (False, False)):
        for index in order:
            if index in taken or (wants_whole and not is_whole(sentences[index], words[index])):
                continue
            triples = _triples(words[index])
            if wants_new and _repeats(triples, seen):
                continue
            taken.add(index)
            seen |= triples
            yield index


def is_whole(sentence: str, words: Sequence[str]) -> bool:
    """Whether a piece reads as a sentence of prose, not as a heading, a row of a table or a line of code."""
    solid = "".join(sentence.split())
    letters = sum(map(str.isalpha, solid))
    return len(words) >= FEWEST_WORDS and letters >= 0.7 * len(solid) and bool(_END.search(solid))


def fill(sentences: Sequence[str], order: Sequence[int], words: int, *, block_repeats: bool = False) -> list[str]:
    """Take sentences in `order` until there are exactly `words` words, cutting the last one; in the document's order.

    So every method that is compared gets the same length to say something in.
    """
    left = words
    taken: dict[int, str] = {}
    seen: set[tuple[str, ...]] = set()
    for index in order:
        if left <= 0:
            break
        triples = _triples(split_words(sentences[index])) if block_repeats else set()
        if _repeats(triples, seen):
            continue
        seen |= triples
        spans = list(_WORD.finditer(sentences[index]))
        if not spans:
            continue
        taken[index] = sentences[index] if len(spans) <= left else sentences[index][: spans[left - 1].end()]
        left -= len(spans)
    return [taken[index] for index in sorted(taken)]


def _triples(words: list[str]) -> set[tuple[str, ...]]:
    return set(zip(words, words[1:], words[2:], strict=False))


def _repeats(triples: set[tuple[str, ...]], seen: set[tuple[str, ...]]) -> bool:
    return bool(triples) and 2 * len(triples & seen) >= len(triples)
