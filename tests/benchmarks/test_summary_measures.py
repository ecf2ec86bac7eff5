"""What the benchmark of summaries counts, against numbers worked out by hand."""

import numpy as np
import pytest

import kept
import summary_measures as measures
from longspan_documents.text.reading import document_of, sentences_of
from summary_sets import SETS, Case

TEXT = "Rivers flood the valley. However, the dams hold. We saw 12 dams in Section 4. nothing was said here"


def case_of(text, words, references=("Dams hold the flood.",)):
    document = document_of(text)
    found = tuple(sentences_of(document, "en"))
    texts = tuple(sentence.text for sentence in found)
    return Case(id="1", document=document, found=found, texts=texts, references=references, words=words)


def test_content_words_are_stems_without_function_words_and_numbers():
    assert measures.content_words("The 3 rivers were flooding all of the bridges") == ["river", "flood", "bridg"]


def test_content_f1_counts_a_word_as_often_as_both_have_it_and_takes_the_best_reference():
    # river, river, dam against river, flood: one of them in common.
    assert measures.content_f1("Rivers, rivers and a dam", ["the river floods"]) == pytest.approx(100 * 2 * 1 / (3 + 2))
    assert measures.content_f1("Rivers, rivers and a dam", ["the river floods", "dams"]) == pytest.approx(50.0)
    assert measures.content_f1("of the", ["and so"]) == 0


def test_a_summary_has_the_words_of_the_case_in_the_order_of_the_document():
    case = case_of(TEXT, words=5)
    scores = [1.0, 0.0, 3.0, 2.0]
    assert measures.summary_of(case, scores) == "We saw 12 dams in"
    assert measures.picked(case, scores) == [2]
    longer = case_of(TEXT, words=10)
    assert measures.summary_of(longer, scores) == "We saw 12 dams in Section 4.\nnothing was said"
    assert measures.picked(longer, scores) == [2, 3]


def test_values_are_those_of_rouge_and_content_words(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "FOLDER", tmp_path)
    case = case_of(TEXT, words=5)
    # Against "Dams hold the flood": 3 of 3 and 4 words, 2 of 2 and 3 pairs, 2 of 2 and 3 content words.
    for _ in range(2):
        found = measures.values_of([case], ["Dams hold the"])
        assert found.shape == (1, 3)
    np.testing.assert_allclose(found, [[100 * 2 * 3 / 7, 100 * 2 * 2 / 5, 80.0]])
    assert len(list(tmp_path.rglob("*.npy"))) == 1


def test_reading_counts_picks_that_hang_that_point_elsewhere_and_that_are_pieces():
    case = case_of(TEXT, words=100)
    everything = measures.reading([case], [np.array([4.0, 3.0, 2.0, 1.0])])
    # "However" has the sentence before it beside it; one of four points to a section, one is a piece.
    assert everything[:3] == (0.0, 25.0, 25.0)
    one = case_of(TEXT, words=3)
    assert measures.reading([one], [np.array([1.0, 4.0, 2.0, 3.0])])[:3] == (100.0, 0.0, 0.0)


def test_the_correlation_is_that_of_ranks_equal_values_sharing_theirs():
    # Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: deviations give 4.5 / sqrt(4.5 · 5).
    assert measures._correlation([1, 2, 2, 9], [1, 2, 3, 4]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert np.isnan(measures._correlation([1, 1, 1], [1, 2, 3]))


def test_what_is_kept_is_made_once_for_the_same_things(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "FOLDER", tmp_path)
    made = []

    def make():
        made.append(1)
        return np.arange(3)

    for parts in (["ab", "c"], ["ab", "c"], ["a", "bc"]):
        np.testing.assert_array_equal(kept.kept("numbers", parts, make), [0, 1, 2])
    assert len(made) == 2


def test_every_source_of_the_data_sets_is_in_one_set():
    from longspan.data.documents import PAPERS, PROPOSALS

    sources = [source for chosen in SETS.values() for source in chosen.sources]
    assert len(sources) == len(set(sources))
    assert {f"permissive/{name}" for name in (*PAPERS, *PROPOSALS, "nixos_rfcs")} <= set(sources)
