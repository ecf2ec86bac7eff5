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
    is_absent,
    named_speakers,
    query_features,
    relevance_of,
    shortness,
    strength_of,
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


BETWEEN = math.log2(200 / 141)
"""How short 141 sentences are, between 100 and 200."""


@pytest.mark.parametrize(("count", "short"), [(0, 1), (1, 1), (100, 1), (141, BETWEEN), (200, 0), (10**6, 0)])
def test_a_document_is_short_long_or_between_on_a_logarithmic_scale(count: int, short: float) -> None:
    assert shortness(count) == pytest.approx(short)


@pytest.mark.parametrize(
    ("count", "spoken", "strength"),
    [
        *[(5, True, 1), (5, False, 1), (500, False, 0.3), (500, True, 0)],
        *[(141, True, BETWEEN), (141, False, BETWEEN + (1 - BETWEEN) * 0.3)],
    ],
)
def test_relevance_is_strong_in_short_documents_and_nothing_in_long_conversations(
    count: int, spoken: bool, strength: float
) -> None:
    texts = [FILLER[index % len(FILLER)] for index in range(count)]
    found = document(*texts, speakers=("A",) * count if spoken else ())
    assert strength_of(found) == pytest.approx(strength)
    assert relevance_of(found, "bread", NOTHING).strength == pytest.approx(strength)


def test_a_long_story_is_told_by_quotations_and_persons() -> None:
    """Of its six sentences, which are repeated, one is a quotation (0.167), and one of 21 words is "she" (0.048)."""
    quotation, person = 'A voice cried, "Bread is baked."', "She departs."
    for texts, strength in (
        ([quotation, person, *FILLER[:4]], 0),
        ([quotation, "Ann departs.", *FILLER[:4]], 0.3),
        (["A voice cried.", person, *FILLER[:4]], 0.3),
    ):
        assert strength_of(document(*texts * 50)) == pytest.approx(strength)


def test_a_short_document_is_not_searched_for_places() -> None:
    """A word three sentences away makes a sentence relevant in a long document, and hardly in a short one."""

    def rise(count: int) -> float:
        texts = [FILLER[0]] * count
        texts[count // 2] = "The budget was cut."
        near = relevance_of(document(*texts), "budget", NOTHING).near
        return float((near[count // 2 + 3] - near.min()) / (near.max() - near.min()))

    assert rise(60) < 0.1 < rise(500)


@pytest.mark.parametrize(("cosine", "absent"), [(0.20, True), (0.21, False)])
def test_what_is_far_in_meaning_and_shares_few_rare_words_is_absent(cosine: float, absent: bool) -> None:
    """Of "copper" and "price", one of six sentences has the first and none the second: the share is ln 7 / (ln 7 + ln
    13) = 0.4314, of which 0.3 make 0.1294, so that a cosine of 0.2006 is missing to 0.33."""
    vectors = np.tile(np.array([[1, 0]], np.float32), (6, 1))
    found = document("Copper is soft.", *FILLER, vectors=vectors)
    assert is_absent(found, "the price of copper", np.array([cosine, 0], np.float32)) is absent


def test_what_asks_for_any_summary_or_names_a_speaker_is_never_absent() -> None:
    found = document(*FILLER, speakers=("Marketing", "Chair", "Chair", "Chair", "Chair"))
    assert is_absent(found, "What about rubber?", NOTHING)
    assert not is_absent(found, "Summarize the whole meeting.", NOTHING)
    assert not is_absent(found, "What did Marketing think of rubber?", NOTHING)


def test_a_number_is_a_word_of_a_query() -> None:
    vectors = np.tile(np.array([[1, 0]], np.float32), (6, 1))
    found = document("It was built in 1990.", *FILLER, vectors=vectors)
    assert is_absent(found, "1991", NOTHING)
    assert not is_absent(found, "1990", np.array([0.04, 0], np.float32))  # 0.04 + 0.3 · 1
