"""How near sentences are to a query, by hand."""

from __future__ import annotations

import numpy as np

from longspan.data.text.words import contents_of
from longspan.tasks.summaries.clues import Sentences
from longspan.tasks.summaries.query import relevance


def document(*texts: str, vectors: np.ndarray | None = None) -> Sentences:
    count = len(texts)
    return Sentences(
        texts=texts,
        contents=[contents_of(text) for text in texts],
        vectors=np.zeros((count, 2), np.float32) if vectors is None else vectors,
        paragraphs=np.arange(count),
        sections=np.zeros(count, int),
        spoken=np.zeros(count, bool),
    )


FILLER = ["The marmots sleep.", "The kettle boils.", "A train departs.", "Rivers rise in spring.", "Bread is baked."]


def test_rare_shared_words_count_and_what_asks_does_not() -> None:
    found = document(*FILLER, "The budget was cut.", *FILLER, "The discussion went on.", *FILLER)
    near = relevance(found, "Summarize the discussion about the budget.", np.zeros(2, np.float32))
    assert near.argmax() == 5
    # Beside it is nearer than far from it, on both sides alike.
    assert near[4] == near[6] > near[1]


def test_meaning_counts_where_no_word_is_shared() -> None:
    vectors = np.tile(np.array([[1, 0]], np.float32), (11, 1))
    vectors[7] = (0, 1)
    found = document(*FILLER, *FILLER, "Salt is white.", vectors=vectors)
    assert relevance(found, "money", np.array([0, 1], np.float32)).argmax() == 7


def test_a_query_that_says_nothing_tells_nothing() -> None:
    assert relevance(document(*FILLER), "the of", np.zeros(2, np.float32)).tolist() == [0.0] * 5
