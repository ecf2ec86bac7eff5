"""Ranking passages: columns, order and probabilities, against numbers worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from longspan.errors import InputError
from longspan_documents.inference.ranking import (
    Evidence,
    PassageIndex,
    Weights,
    best_sentence,
    load_weights,
    query_stems,
    stems_of,
)
from longspan_documents.inference.verbs import ANSWERABLE
from longspan_documents.text.reading import document_of

ONE = "# Homes\n\nMarmots live in deep burrows.\n\n# Enemies\n\nEagles hunt them. Nothing else does."
TWO = "Snow fell in winter."


class Meanings:
    """Three directions of meaning: homes, enemies, weather. Texts lie along the words that they hold."""

    words = (("burrow", "live", "dwell"), ("eagle", "hunt", "foe"), ("snow", "winter", "cold"))

    def embed(self, texts: list[str]) -> np.ndarray:
        raw = np.array([[0.1 + sum(w in text.lower() for w in group) for group in self.words] for text in texts])
        return raw / np.linalg.norm(raw, axis=1, keepdims=True)

    def embed_document(self, sentences: list[str], firsts: Sequence[int] = ()) -> np.ndarray:
        ends = [*firsts[1:], len(sentences)]
        passages = [" ".join(sentences[first:end]) for first, end in zip(firsts, ends, strict=True)]
        return np.concatenate([self.embed(sentences), self.embed(passages)]) if passages else self.embed(sentences)


def index(encoder: Meanings | None = None) -> PassageIndex:
    return PassageIndex([document_of(ONE), document_of(TWO)], "en", encoder)


def test_passages_of_all_documents_compete() -> None:
    found = index()
    assert [passage.text for passage in found.passages] == [
        "Marmots live in deep burrows.",
        "Eagles hunt them. Nothing else does.",
        "Snow fell in winter.",
    ]
    assert found.owners == [0, 0, 1]


def test_words_find_what_shares_words_and_headings_count() -> None:
    evidence = index().evidence("Which enemies hunt marmots?")
    assert evidence.names == ("words", "names")
    words = evidence.column("words")
    assert words.argmax() == 1  # "Enemies" stands in its heading alone
    assert words[2] == 0


def test_words_count_as_a_share_of_what_they_can_bring() -> None:
    """BM25 of a word that stands once in a passage of mean length is its rarity / (1 + k1), with k1 = 1.5."""
    found = PassageIndex([document_of("# A\n\nEagles hunt.\n\n# B\n\nMarmots sleep.")], "en")
    assert found.evidence("Eagles?").column("words").tolist() == pytest.approx([1 / 2.5, 0], rel=1e-5)
    # One of two words, which are equally rare; a word that stands nowhere is the rarest: log(1 + 2.5 / 0.5).
    assert found.evidence("Marmots, eagles?").column("words").tolist() == pytest.approx([0.2, 0.2], rel=1e-5)
    share = np.log(2) / (np.log(2) + np.log(6))
    assert found.evidence("Eagles, penguins?").column("words").tolist() == pytest.approx([share / 2.5, 0], rel=1e-5)
    assert found.evidence("Penguins?").column("words").tolist() == [0, 0]


def test_a_passage_lies_where_the_encoder_puts_it() -> None:
    found = index(Meanings()).evidence("Winter?").column("passage")
    texts = ["Marmots live in deep burrows.", "Eagles hunt them. Nothing else does.", "Snow fell in winter."]
    (question,) = Meanings().embed(["Winter?"])
    assert found == pytest.approx(Meanings().embed(texts) @ question, rel=1e-5)


def test_meaning_finds_what_shares_none() -> None:
    evidence = index(Meanings()).evidence("Who is their foe?")
    assert evidence.column("words").max() == 0
    assert evidence.column("nearest").argmax() == evidence.column("passage").argmax() == 1
    assert index(Meanings()).sentence("Who is their foe?", 1) == 0
    assert index().sentence("Does nothing else hunt?", 0) == 0
    assert index().sentence("Is there nothing else?", 1) == 1


def test_scores_order_and_probabilities_by_hand() -> None:
    table = np.array([[0.25, 0.0, 0.5], [0.5, 0.5, 0.0], [0.0, 1.0, 0.5], [0.05, 0.0, 1.0]])
    evidence = Evidence(("words", "passage", "names"), table)
    there = {"bias": -1.0, "overlap": 3.0, "names": 1.0, "near": -2.0, "apart": 0.5}
    weights = Weights({"words": 4.0}, there, {"bias": 0.5, "shared": 1.0}, {"bias": -1.0, "behind": 1.0})
    ranking = weights.ranking(evidence, 0.5)
    assert ranking.order == (1, 0, 3, 2)
    assert ranking.scores == pytest.approx([1.0, 2.0, 0.0, 0.2])
    # Of the first three, the second has most words, 0.5, and the fourth all names. The similarities 0, 0.5, 1 and 0
    # have the mean 0.375 and the variance (2 · 0.375² + 0.125² + 0.625²) / 4.
    spread = ((2 * 0.375**2 + 0.125**2 + 0.625**2) / 4) ** 0.5
    odds = -1 + 3 * 0.5**0.5 + 1 - 2 * 1.0 + 0.5 * 0.625 / (spread + 0.02)
    assert ranking.there == pytest.approx(1 / (1 + np.exp(-odds)))
    found = 1 / (1 + np.exp(-(0.5 + 1)))  # all three are also the best by words
    assert ranking.probability == pytest.approx(ranking.there * found)
    expected = [ranking.there / (1 + np.exp(1 - behind)) for behind in (-1, 0, -2, -1.8)]
    assert ranking.passage_probabilities.tolist() == pytest.approx(expected)


def test_the_share_of_answerable_questions_multiplies_the_odds() -> None:
    """With evidence of 2 to 1, one answerable question in three leaves 1 to 1, and nine in ten give 18 to 1."""
    evidence = Evidence(("words",), np.array([[0.5], [0.2]]))
    weights = Weights({"words": 1.0}, {"bias": float(np.log(2))}, {"bias": 0.0}, {"bias": 0.0, "behind": 0.0})
    for share, there in ((1 / 3, 1 / 2), (1 / 2, 2 / 3), (2 / 3, 4 / 5), (0.9, 18 / 19)):
        ranking = weights.ranking(evidence, share)
        assert ranking.there == pytest.approx(there)
        assert ranking.probability == pytest.approx(there / 2)
        assert ranking.passage_probabilities.tolist() == pytest.approx([there / 2, there / 2])
    assert weights.ranking(evidence).there == weights.ranking(evidence, ANSWERABLE).there


def test_no_evidence_counts_more_than_twelve_to_one() -> None:
    evidence = Evidence(("words",), np.array([[0.5], [0.2]]))
    for bias, odds in ((50.0, np.exp(2.5)), (-50.0, np.exp(-2.5))):
        weights = Weights({"words": 1.0}, {"bias": bias}, {"bias": 0.0}, {"bias": 0.0})
        assert weights.ranking(evidence, 0.5).there == pytest.approx(odds / (1 + odds))
    # Where nine in ten are answerable, the least odds are 9 / 12.2, a probability of 0.42, which is not below 0.35.
    ranking = weights.ranking(evidence, 0.9)
    assert ranking.there == pytest.approx(9 / (9 + np.exp(2.5)))
    assert ranking.may_answer(None)
    assert not weights.ranking(evidence, 0.67).may_answer(None)
    assert weights.ranking(evidence, 0.67).may_answer(0.01)
    assert not ranking.may_answer(0.9)


def test_what_stands_apart_does_so_on_every_scale() -> None:
    there = {"bias": 0.0, "apart": 0.5}
    weights = Weights({"words": 1.0}, there, {"bias": 0.0}, {"bias": 0.0})
    similar, words = np.array([0.1, 0.2, 0.9, 0.3]), np.array([0.0, 0.1, 0.2, 0.3])
    wide = [Evidence(("words", "passage"), np.column_stack([words, scale * similar])) for scale in (1e3, 1e6)]
    assert weights.ranking(wide[0]).there == pytest.approx(weights.ranking(wide[1]).there, rel=1e-4)
    # Without an encoder nothing stands apart, and noise of the last digit does not either.
    flat = [weights.ranking(Evidence(("words",), words[:, None]), 0.5)]
    flat.append(weights.ranking(Evidence(("words", "passage"), np.column_stack([words, 1 + 1e-9 * similar])), 0.5))
    assert [ranking.there for ranking in flat] == pytest.approx([0.5, 0.5], abs=1e-6)


def test_a_number_that_is_asked_for_comes_before_all_words() -> None:
    texts = ["The marmot was first described by Carl Hill in 1801.", "Anna Weber gave her own account in 1817."]
    near = np.array([1.9, 0.0])
    assert best_sentence("Who first described the marmot in 1817?", texts, near) == 1
    assert best_sentence("Who first described the marmot in 1801?", texts, near) == 0
    assert best_sentence("Who first described the marmot?", texts, near) == 0
    # Of two that are as near, the one that holds a time answers when.
    texts = ["The marmot was described by Carl Hill.", "The marmot was described in 1801."]
    assert best_sentence("When was the marmot described?", texts, np.array([1.2, 1.0])) == 1
    assert best_sentence("Who described the marmot?", texts, np.array([1.0, 1.2])) == 0


def test_a_sentence_that_repeats_a_question_for_a_reason_is_not_marked() -> None:
    texts = ["Marmots whistle.", "Eagles are near, and the young ones are in danger.", "They eat grass all day."]
    # The first has 1.9 − 1 = 0.9, and the second inherits 0.8 · 1.9 + 0.2 · 0.1 = 1.54.
    near = np.array([1.9, 0.1, 0.2])
    assert best_sentence("Why do marmots whistle?", texts, near) == 1
    assert best_sentence("Where do marmots whistle?", texts, near) == 0
    texts[0] = "Marmots whistle on mornings."  # it adds a word
    assert best_sentence("Why do marmots whistle?", texts, near) == 0


def test_a_reason_comes_before_a_nearer_sentence_without_one() -> None:
    texts = ["Marmots whistle loudly at dawn.", "Because eagles hunt at that hour, marmots warn their young."]
    # The marker counts 0.5, and the second begins with a word that refers back: 0.8 · 1.2 + 0.2 · 0.6 = 1.08.
    assert best_sentence("Why do marmots whistle?", texts, np.array([1.2, 0.6])) == 1
    assert best_sentence("Do marmots whistle?", texts, np.array([1.2, 0.6])) == 0
    texts[1] = "Marmots warn their young because eagles hunt."
    assert best_sentence("Why do marmots whistle?", texts, np.array([1.2, 0.6])) == 0  # 0.6 + 0.5 < 1.2
    assert best_sentence("Why do marmots whistle?", texts, np.array([1.2, 0.8])) == 1


def test_a_question_in_the_document_passes_its_similarity_to_the_next_sentence() -> None:
    texts = ["Nothing happens.", "Does it rain in May?", "Rarely.", "The sun shines."]
    for question in ("Does it rain in May?", "When does it rain?", "Why does it rain in May?"):
        assert best_sentence(question, texts, np.array([0.1, 1.9, 0.0, 0.3])) == 2
    assert best_sentence("Rain?", ["Does it rain?"], np.array([1.0])) == 0


def test_what_is_not_read_again_counts_as_the_least_that_is() -> None:
    evidence = Evidence(("words",), np.array([[0.1], [0.2], [0.3], [0.4]])).read_again([3, 1], np.array([0.2, 0.7]))
    assert evidence.names == ("words", "read")
    assert evidence.column("read").tolist() == [0.2, 0.7, 0.2, 0.2]
    ranking = Weights({"words": 1.0, "read": 1.0}, {"bias": 0.0}, {"bias": 0.0}, {"bias": 0.0}).ranking(evidence)
    assert ranking.order == (1, 3, 2, 0)


def test_signs_of_an_answer_by_hand() -> None:
    """Scores log 1, 2, 3, 4 and 10 have the softmax 1, 2, 3, 4 and 10 of 20."""
    evidence = Evidence(("words",), np.log([[4.0], [1.0], [10.0], [3.0], [2.0]]))
    weights = Weights({"words": 1.0}, {"bias": 0.0}, {"bias": 0.0, "chance": 2.0}, {"bias": 0.0})
    assert weights.ranking(evidence, 0.5).probability == pytest.approx(0.5 / (1 + np.exp(-2 * 17 / 20)))
    again = evidence.read_again([0, 2, 3], np.array([0.9, 0.3, 0.5]))
    weights = Weights({"words": 1.0}, {"bias": 0.0, "apart": 0.5}, {"bias": 0.0}, {"bias": 0.0})
    # 0.9, 0.5 and, three times, 0.3 have the mean 0.46 and the variance (0.44² + 0.04² + 3 · 0.16²) / 5.
    apart = 0.44 / (((0.44**2 + 0.04**2 + 3 * 0.16**2) / 5) ** 0.5 + 0.02)
    assert weights.ranking(again, 0.5).there == pytest.approx(1 / (1 + np.exp(-0.5 * apart)))


def test_one_passage_that_shares_nothing() -> None:
    evidence = Evidence(("words",), np.array([[0.0]]))
    signs = {"bias": 0.0, "overlap": 1.0, "apart": 1.0}
    ranking = Weights({"words": 1.0}, signs, {"bias": 50.0}, {"bias": 50.0, "behind": 1.0}).ranking(evidence, 0.5)
    assert ranking.there == ranking.probability == 0.5
    assert ranking.passage_probabilities.tolist() == [0.5]
    assert not ranking.may_answer(None)  # no word is shared
    assert ranking.may_answer(0.5)


def test_the_weights_of_the_package_are_whole() -> None:
    assert set(load_weights()) == {"words", "meaning", "read", "encoder", "index"}
    for weights in load_weights().values():
        assert weights.rank["words"] > 0
        assert {"bias", "overlap", "names"} <= set(weights.there)
        assert "behind" in weights.passage
        # What speaks for an answer raises its probability.
        assert all(weight > 0 for name, weight in weights.there.items() if name != "bias")


def test_damaged_weights_are_one_sentence(tmp_path: Path) -> None:
    for number, text in enumerate(("", "[]", json.dumps({"weights": {"words": {"rank": {}}}}))):
        path = tmp_path / f"{number}.json"
        path.write_text(text)
        with pytest.raises(InputError, match="install the package again"):
            load_weights(path)
    with pytest.raises(InputError, match="install the package again"):
        load_weights(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("asked", "written"),
    [
        ("1920", "1,920 mills"),
        ("1,920", "1920 mills"),
        ("12,500,000", "12\u00a0500\u202f000"),
        ("12500000", "12.500.000"),
        ("1920", "the 1920s"),
    ],
)
def test_numbers_are_found_in_their_other_spelling(asked, written):
    assert set(query_stems(asked, "en")) & set(stems_of(written, "en")) - {"1", "12", "500", "920", "000"}


def test_lists_of_numbers_and_decimals_are_no_other_number():
    for text in ("1, 920", "11.920", "3.14,159", "1,920,5"):
        assert "1920" not in stems_of(text, "en")
