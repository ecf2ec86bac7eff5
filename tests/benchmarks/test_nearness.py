"""What finds a text among others: places by hand, orders as scipy has them, means of sentences and of words."""

from __future__ import annotations

import numpy as np
import pytest

from held_out import HeldOut
from nearness import AsOneText, BySentence, SharedWords, place, rank_correlation

SENTENCES = ["The cat sleeps.", "Cats like milk.", "Ships sail.", "A ship sank at sea."]
DOCUMENT = HeldOut(kind="stories", sentences=SENTENCES, parts=[(0, 2), (2, 4)])


class Letters:
    """A vector for each text: how often c and s stand in it, of length 1; a document's know of their neighbours."""

    def embed(self, texts: list[str]) -> np.ndarray:
        counts = np.array([[text.lower().count(letter) for letter in "cs"] for text in texts], dtype=np.float32)
        return counts / np.linalg.norm(counts, axis=1, keepdims=True)

    def embed_document(self, sentences: list[str]) -> np.ndarray:
        return self.embed([" ".join(sentences[: number + 1]) for number in range(len(sentences))])


def test_the_place_of_the_best_right_one() -> None:
    assert place(np.array([3.0, 1, 2]), [0]) == (1, 1)
    assert place(np.array([3.0, 1, 2]), [1]) == (1 / 3, 0)
    assert place(np.array([3.0, 1, 2]), [1, 2]) == (1 / 2, 0)


def test_equal_ones_stand_in_random_order() -> None:
    assert place(np.zeros(4), [2]) == (1 / 2.5, 1 / 4)  # three wrong ones, half of them before it
    assert place(np.zeros(4), [0, 3]) == (1 / (1 + 2 / 3), 1 / 2)
    assert place(np.array([5.0, 1, 1]), [2]) == (1 / 2.5, 0)


def test_the_correlation_of_ranks() -> None:
    # 1 − 6 Σ d² / (n (n² − 1)) with d of 0, 1, −1, 1, −1.
    assert rank_correlation(np.array([10, 20, 30, 40, 50]), np.array([1, 3, 2, 5, 4])) == pytest.approx(1 - 24 / 120)


def test_parts_are_searched_by_the_mean_of_sentences_read_in_their_document() -> None:
    read = np.array([[1.0, 2], [2, 3], [2, 6], [2, 9]])  # letters c and s of each sentence with all before it
    read /= np.linalg.norm(read, axis=1, keepdims=True)
    means = np.stack([read[:2].sum(0), read[2:].sum(0)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    assert BySentence(Letters()).parts(DOCUMENT)(["cs"]) == pytest.approx(means @ np.array([0.5, 0.5]) ** 0.5)


def test_texts_as_wholes_and_shared_words() -> None:
    other = HeldOut(kind="stories", sentences=["Nothing here but rain."])
    assert AsOneText(Letters().embed).parts(DOCUMENT)(["c"]) == pytest.approx([2 / 13**0.5, 0])
    scores = SharedWords().parts(DOCUMENT)(["Where is", "the ship?"])
    assert scores[1] > scores[0] == 0
    assert SharedWords().documents([other, DOCUMENT])(["sleeping cat"]).argmax() == 1
