"""Texts that open with a summary of themselves, made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from longspan.data.text.sentences import contents_of
from longspan_documents.summaries.picker import BETWEEN, STRETCH, abstract_features, end_of_opening

TOPICS = ["marmots", "burrows", "eagles", "whistles", "winter", "snow", "meadow", "herbs", "moulds", "families"]


def stretch(topic: str) -> list[str]:
    """Fifteen sentences of ten words on one thing, with a citation."""
    return [f"The {topic} of valley number{index} were counted (Smith, 1999) by us." for index in range(15)]


def signs(beginning: list[str]) -> np.ndarray:
    texts = [*beginning, *(sentence for topic in TOPICS for sentence in stretch(topic))]
    found = abstract_features(texts, [contents_of(text) for text in texts])
    assert found is not None
    return found


def test_what_an_abstract_looks_like() -> None:
    abstract = [f"In this paper we present what {one} and {two} do." for one in TOPICS for two in TOPICS[::3]][:15]
    common, _, _, presents, cites, _, _ = signs(abstract)
    # It names many topics where other stretches name one, and presents without citing.
    assert common > 0
    assert presents > 0
    assert cites < 0
    plain = signs(stretch("trains"))
    assert plain[3] == pytest.approx(0, abs=1e-9)
    assert plain[4] == pytest.approx(0, abs=1e-9)
    assert plain[0] < common


def test_short_texts_have_no_abstract() -> None:
    texts = stretch("marmots") * 2
    assert abstract_features(texts, [contents_of(text) for text in texts]) is None
    assert abstract_features([], []) is None


def test_where_an_opening_ends() -> None:
    texts = ["ten words are in this sentence and no more here"] * 60
    flat, none = np.zeros(60, int), np.zeros(60, int)
    assert end_of_opening(texts, flat, none) == STRETCH // 10
    # At the end of the first paragraph from 80 words on; later than 300 words it is no opening's end.
    assert BETWEEN == (80, 300)
    paragraphs = np.repeat(np.arange(6), 10)
    assert end_of_opening(texts, paragraphs, none) == 10
    assert end_of_opening(texts, (np.arange(60) >= 5).astype(int), none) == STRETCH // 10
    assert end_of_opening(texts, (np.arange(60) >= 40).astype(int), none) == STRETCH // 10
    # A heading ends it wherever it stands.
    assert end_of_opening(texts, flat, (np.arange(60) >= 3).astype(int)) == 3
