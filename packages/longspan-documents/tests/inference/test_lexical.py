"""Words that a question and a passage share: stems, function words, BM25 and the share that is covered."""

from __future__ import annotations

import math

import pytest

from longspan_documents.inference.ranking import WordIndex, query_stems, stems_of


def test_stems_of_english_agree() -> None:
    assert stems_of("Nominated, nominating; NOMINATE!", "en") == ["nomin"] * 3


def test_a_question_is_about_its_content_words() -> None:
    assert query_stems("Where do the marmots live, and why?", "en") == ["marmot", "live"]
    assert query_stems("Who are you?", "en") == ["who", "are", "you"]  # nothing else is left


def test_words_of_scripts_without_spaces_are_characters_and_pairs() -> None:
    assert stems_of("土拨鼠", "zh") == ["土", "拨", "鼠", "土拨", "拨鼠"]


def test_russian_has_a_stemmer_of_its_own() -> None:
    assert len(set(stems_of("книга книги книгу", "ru"))) == 1


def test_scores_are_those_of_bm25() -> None:
    """Lucene's form of Robertson and Zaragoza 2009, equation 3.15, with k1 = 1.5 and b = 0.75."""
    texts = ["marmot eagle eagle", "marmot snow", "snow rain wind storm"]
    index = WordIndex(texts, "en")
    lengths = [3, 2, 4]
    count = [2, 0, 0]
    rarity = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    expected = [
        rarity * tf / (tf + 1.5 * (1 - 0.75 + 0.75 * length / 3)) for tf, length in zip(count, lengths, strict=True)
    ]
    assert index.scores(["eagl"]) == pytest.approx(expected, rel=1e-5)
    assert index.scores(["unknown"]).tolist() == [0, 0, 0]


def test_the_share_counts_by_rarity() -> None:
    index = WordIndex(["marmot eagle", "marmot", "snow"], "en")
    common, rare = index.rarity("marmot"), index.rarity("eagl")
    assert rare > common > 0
    shares = [index.share(["marmot", "eagl"], known) for known in ({"marmot", "eagl"}, {"marmot"}, {"snow"})]
    assert shares == pytest.approx([1, common / (common + rare), 0])
    assert index.share([], {"marmot"}) == 0
