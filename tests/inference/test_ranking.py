"""Ranking passages: columns, order and probabilities, against numbers worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from longspan.data.text.reading import document_of
from longspan.errors import InputError
from longspan.inference.ranking import Evidence, PassageIndex, Weights, load_weights

ONE = "# Homes\n\nMarmots live in deep burrows.\n\n# Enemies\n\nEagles hunt them. Nothing else does."
TWO = "Snow fell in winter."


class Meanings:
    """Three directions of meaning: homes, enemies, weather. Texts lie along the words that they hold."""

    words = (("burrow", "live", "dwell"), ("eagle", "hunt", "foe"), ("snow", "winter", "cold"))

    def embed(self, texts: list[str]) -> np.ndarray:
        raw = np.array([[0.1 + sum(w in text.lower() for w in group) for group in self.words] for text in texts])
        return raw / np.linalg.norm(raw, axis=1, keepdims=True)

    embed_document = embed


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
    assert evidence.names == ("words", "covered")
    words, covered = evidence.column("words"), evidence.column("covered")
    assert words.argmax() == 1  # "Enemies" stands in its heading alone
    assert words.max() == 1
    assert covered[2] == 0
    assert covered[1] == pytest.approx(2 * covered[0])  # two of three words, each in one passage


def test_meaning_finds_what_shares_none() -> None:
    evidence = index(Meanings()).evidence("Who is their foe?")
    assert evidence.column("covered").max() == 0
    assert evidence.column("nearest").argmax() == evidence.column("passage").argmax() == 1
    assert index(Meanings()).sentence("Who is their foe?", 1) == 0
    assert index().sentence("Does nothing else hunt?", 0) == 0
    assert index().sentence("Is there nothing else?", 1) == 1


def test_scores_order_and_probabilities_by_hand() -> None:
    evidence = Evidence(("words", "covered"), np.array([[0.5, 0.0], [1.0, 0.5], [0.0, 1.0]]))
    answer = {"bias": 0.0, "best covered": 2.0, "lead": 1.0, "share": 3.0}
    weights = Weights({"words": 2.0}, {"bias": -1.0, "behind": 1.0}, answer, 0.3)
    ranking = weights.ranking(evidence)
    assert ranking.order == (1, 0, 2)
    assert ranking.scores.tolist() == [1.0, 2.0, 0.0]
    expected = [1 / (1 + np.exp(-(behind - 1))) for behind in (-1.0, 0.0, -2.0)]
    assert ranking.passage_probabilities.tolist() == pytest.approx(expected)
    # One of the three covers all words; the first is 1 above the next; the three have all of the shares.
    assert ranking.probability == pytest.approx(1 / (1 + np.exp(-(2 * 1.0 + 1 + 3 * 0.0))))


def test_one_passage_has_no_next() -> None:
    evidence = Evidence(("words", "covered"), np.array([[1.0, 1.0]]))
    weights = Weights({"words": 1.0}, {"bias": 0.0, "share": 1.0}, {"bias": 0.0, "lead": 1.0}, 0.3)
    ranking = weights.ranking(evidence)
    assert ranking.probability == 0.5
    assert ranking.passage_probabilities.tolist() == [0.5]


def test_the_weights_of_the_package_are_whole() -> None:
    for name, weights in load_weights().items():
        assert name in {"words", "meaning"}
        assert 0 <= weights.threshold < 0.5
        assert weights.rank["words"] > 0
        assert "bias" in weights.passage
        assert "bias" in weights.answer


def test_damaged_weights_are_one_sentence(tmp_path: Path) -> None:
    for number, text in enumerate(("", "[]", json.dumps({"weights": {"words": {"rank": {}}}}))):
        path = tmp_path / f"{number}.json"
        path.write_text(text)
        with pytest.raises(InputError, match="install the package again"):
            load_weights(path)
    with pytest.raises(InputError, match="install the package again"):
        load_weights(tmp_path / "missing.json")
