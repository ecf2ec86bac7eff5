"""The order in which sentences enter a summary, by hand."""

from __future__ import annotations

import numpy as np

from longspan_documents.summaries.selection import ALIKE, FADING, OFFSET, WordTable, cover


def table(*sentences: str) -> tuple[WordTable, np.ndarray]:
    """Words of sentences that are made of them, and the sentences' lengths."""
    places: dict[str, list[int]] = {}
    for index, sentence in enumerate(sentences):
        for word in sentence.split():
            places.setdefault(word, []).append(index)
    arrays = tuple(np.array(found) for found in places.values())
    found = WordTable(words=tuple(places), sentences=arrays, numbers=np.zeros((len(places), 1), np.float32))
    return found, np.array([len(sentence.split()) for sentence in sentences], float)


def chances(words: WordTable, **of: float) -> np.ndarray:
    """The chance of each word to be named once; never twice."""
    return np.array([[of.get(word, 0.0), 0, 0, 0] for word in words.words], float)


def order(
    *sentences: str,
    own: tuple[float, ...] = (),
    needs: dict[int, tuple[int, ...]] | None = None,
    words: int = 99,
    **of: float,
) -> list[int]:
    found, lengths = table(*sentences)
    count = len(sentences)
    before = [(needs or {}).get(index, ()) for index in range(count)]
    worth = np.array(own or [0.0] * count)
    return cover(found, chances(found, **of), worth, lengths, before, np.eye(count, dtype=np.float32), words)


def test_the_words_that_a_summary_names_come_first_and_once() -> None:
    # (0.9 + 0.5) / (2 + 6) > 0.9 / (1 + 6) > 0.5 / (1 + 6); after it "apple" alone adds nothing, "cherry" 0.3 / 7.
    assert order("apple", "apple bean", "cherry", apple=0.9, bean=0.5, cherry=0.3) == [1, 2, 0]


def test_length_is_charged() -> None:
    assert OFFSET == 6.0
    # 0.8 / (1 + 6) = 0.1143 against 0.9 / (2 + 6) = 0.1125
    assert order("bean stuff", "apple", apple=0.8, bean=0.9) == [1, 0]


def test_what_a_sentence_is_worth_for_itself_counts() -> None:
    assert order("apple", "bean", apple=0.4, bean=0.3) == [0, 1]
    assert order("apple", "bean", own=(0.0, 0.03), apple=0.4, bean=0.3) == [1, 0]  # 0.4 / 7 against 0.3 / 7 + 0.03


def test_a_word_is_named_again_as_often_as_a_summary_would() -> None:
    found, lengths = table("apple", "apple", "bean")
    of = np.array([[0.9, 0.8, 0, 0], [0.7, 0, 0, 0]])
    vectors = np.eye(3, dtype=np.float32)
    assert cover(found, of, np.zeros(3), lengths, [()] * 3, vectors, 99) == [0, 1, 2]  # 0.9, then 0.8 before 0.7
    of[0, 1] = 0.6
    assert cover(found, of, np.zeros(3), lengths, [()] * 3, vectors, 99) == [0, 2, 1]
    assert 0 < FADING < 1


def test_a_sentence_enters_after_those_that_it_needs() -> None:
    # 0.9 / 7 alone, 0.9 / 8 with the one before it; "cherry" is worth 0.6 / 7.
    assert order("stuff", "apple", "cherry", needs={1: (0,)}, apple=0.9, cherry=0.6) == [0, 1, 2]
    # 0.65 / 8 with the one before it is less than 0.6 / 7.
    assert order("stuff", "apple", "cherry", needs={1: (0,)}, apple=0.65, cherry=0.6) == [2, 0, 1]


def test_where_there_is_no_room_for_what_it_needs_another_is_taken() -> None:
    assert order("stuff", "apple", "cherry", needs={1: (0,)}, words=1, apple=0.9, cherry=0.6)[0] == 2


def test_what_was_said_in_other_words_comes_last() -> None:
    found, lengths = table("apple", "bean", "cherry")
    of = chances(found, apple=0.9, bean=0.8, cherry=0.1)
    near = np.array([[1, 0], [ALIKE + 0.01, (1 - (ALIKE + 0.01) ** 2) ** 0.5], [0, 1]], np.float32)
    assert cover(found, of, np.zeros(3), lengths, [()] * 3, near, 99) == [0, 2, 1]


def test_what_must_come_first_is_said_first() -> None:
    found, lengths = table("apple stuff", "apple", "bean")
    of = chances(found, apple=0.9, bean=0.5)
    given = cover(found, of, np.zeros(3), lengths, [()] * 3, np.eye(3, dtype=np.float32), 99, [0])
    assert given == [0, 2, 1]  # apples were said
