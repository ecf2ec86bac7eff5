"""What sentences and words are to a query, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from longspan.data.text.sentences import contents_of
from longspan_documents.summaries.clues import Sentences
from longspan_documents.summaries.query import (
    WORD,
    Relevance,
    chances_about,
    named_speakers,
    query_features,
    relevance_of,
)
from longspan_documents.summaries.selection import word_table


def document(*texts: str, vectors: np.ndarray | None = None, speakers: tuple[str, ...] = ()) -> Sentences:
    count = len(texts)
    return Sentences(
        texts=texts,
        contents=[contents_of(text) for text in texts],
        vectors=np.zeros((count, 2), np.float32) if vectors is None else vectors,
        paragraphs=np.arange(count),
        sections=np.zeros(count, int),
        spoken=np.full(count, bool(speakers)),
        speakers=speakers,
    )


NOTHING = np.zeros(2, np.float32)
FILLER = ["The marmots sleep.", "The kettle boils.", "A train departs.", "Rivers rise in spring.", "Bread is baked."]


def test_rare_shared_words_count_and_what_asks_does_not() -> None:
    found = document(*FILLER, "The budget was cut.", *FILLER, "The discussion went on.", *FILLER)
    near = relevance_of(found, "Summarize the discussion about the budget.", NOTHING).near
    assert near.argmax() == 5
    # Beside it is nearer than far from it, on both sides alike.
    assert near[4] == near[6] > near[1]


def test_meaning_counts_where_no_word_is_shared() -> None:
    vectors = np.tile(np.array([[1, 0]], np.float32), (11, 1))
    vectors[7] = (0, 1)
    found = document(*FILLER, *FILLER, "Salt is white.", vectors=vectors)
    assert relevance_of(found, "money", np.array([0, 1], np.float32)).near.argmax() == 7


def test_a_query_that_says_nothing_tells_nothing() -> None:
    assert relevance_of(document(*FILLER), "the of", NOTHING).near.tolist() == [0.0] * 5


def test_who_is_named_is_looked_for_where_he_speaks_and_not_where_he_is_spoken_of() -> None:
    texts = ["We hear the Industrial Designer now.", *FILLER, *FILLER, "Rubber is soft.", "Steel lasts."]
    speakers = (*("Marketing",) * 11, *("Industrial Designer",) * 2)
    query = "What did the Industrial Designer think?"
    assert relevance_of(document(*texts, speakers=speakers), query, NOTHING).near.argmax() >= 11
    without = query_features(document(*texts), query, NOTHING)
    assert without["words"].argmax() == 0
    assert not without["speaker around"].any()


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("What did the Project Manager say?", {"Project Manager"}),
        ("What did Julie Morgan think of it?", {"Julie Morgan AM"}),
        ("What did PhD C say?", {"PhD C"}),
        ("What was decided?", set()),
    ],
)
def test_speakers_are_named_by_what_others_lack(query: str, named: set[str]) -> None:
    speakers = ["Project Manager", None, "Julie Morgan AM", "Eluned Morgan AM", "PhD C", "PhD D", "Suzy Davies AM"]
    assert named_speakers(query, speakers) == named


def test_words_of_the_query_and_of_its_places_become_likelier() -> None:
    table = word_table(document("Rubber is soft.", *FILLER))
    chances = np.tile([0.2, 0.1, 0.05, 0.01], (len(table.words), 1))
    place = np.array([3.0, *[0.0] * 5])
    after = chances_about(table, chances, Relevance(place, place, frozenset({"rubber"})))
    rubber, soft, marmots = (table.words.index(word) for word in ("rubber", "soft", "marmot"))
    assert after[rubber, 0] > after[soft, 0] > after[marmots, 0]
    assert (np.diff(after, axis=1) < 0).all()
    # All four chances of a word move by as much, in log odds: here by that of being asked.
    odds = np.log(after / (1 - after))
    np.testing.assert_allclose(odds[rubber] - odds[soft], WORD["asked"], atol=1e-9)
    assert math.isclose(odds[soft, 0] - odds[soft, 1], math.log(0.25) - math.log(0.1 / 0.9), abs_tol=1e-9)
