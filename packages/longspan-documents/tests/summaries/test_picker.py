"""The weights that pick sentences, against their formulas written out."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from longspan.data.text.sentences import contents_of
from longspan.errors import InputError
from longspan_documents.summaries.clues import (
    Sentences,
    antecedents,
    centrality,
    kind_of_text,
    standardised,
    word_centrality,
)
from longspan_documents.summaries.picker import (
    BOUND,
    FOREIGN,
    FRAGMENT,
    HANGING,
    KNOWN,
    NAMES,
    ROADMAP,
    Picker,
    figures,
    leading,
    wording_penalties,
)
from longspan_documents.summaries.query import Relevance

TEXTS = (
    "Marmots live in the mountains of Europe.",
    "They sleep through the winter in deep burrows.",
    "Section 3 describes the burrows of the marmots.",
    "Eagles are the main enemies of the marmots.",
    "Table 1:",
    "Marmots warn each other of eagles by a whistle.",
)
FEATURES, CLUES, DIMENSIONS = 22, 59, 4


def document(texts: tuple[str, ...] = TEXTS) -> Sentences:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(len(texts), DIMENSIONS)).astype(np.float32)
    return Sentences(
        texts=texts,
        contents=[contents_of(text) for text in texts],
        vectors=vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
        paragraphs=np.arange(len(texts)),
        sections=np.zeros(len(texts), int),
        spoken=np.zeros(len(texts), bool),
    )


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = {"words.mean": (FEATURES,), "words.spread": (FEATURES,), "words.weight": (FEATURES + 1, 4)}
    shapes |= {"clues.mean": (CLUES,), "clues.spread": (CLUES,), "vector.weight": (3, DIMENSIONS), "vector.bias": (3,)}
    shapes |= {
        "hidden.weight": (5, CLUES + 3),
        "hidden.bias": (5,),
        "score.weight": (5,),
        "score.bias": (),
        "mix": (1,),
    }
    shapes |= {"kinds.mean": (2, 13), "kinds.spread": (2, 13)}
    shapes |= {"opening.mean": (20,), "opening.spread": (20,), "opening.weight": (21,)}
    made = {name: np.asarray(random.normal(size=shape), np.float32) for name, shape in shapes.items()}
    return {name: np.abs(value) + 0.5 if name.endswith("spread") else value for name, value in made.items()}


def test_a_sentence_far_beyond_all_others_has_a_score_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 the exponential of 89 is no number, which NumPy told whoever summarised a very long dialogue."""
    far = np.array([-200, *[0.1] * (len(TEXTS) - 2), 200], np.float32)
    monkeypatch.setattr(Picker, "scores", lambda *_: far)
    scores = Picker(weights()).order(document(), 9).scores
    assert (scores.min(), scores.max()) == pytest.approx((0, 1), abs=1e-6)
    assert np.median(scores) == pytest.approx(0.3, abs=0.1)


def test_the_scorer_is_a_network_with_one_hidden_layer() -> None:
    of, random = weights(), np.random.default_rng(1)
    found, vectors = random.normal(size=(7, CLUES)).astype(np.float32), document().vectors
    vectors = np.concatenate([vectors, vectors[:1]])
    known = np.clip((found - of["clues.mean"]) / of["clues.spread"], -BOUND, BOUND)
    inside = np.concatenate([known, vectors @ of["vector.weight"].T + of["vector.bias"]], axis=1)
    hidden = inside @ of["hidden.weight"].T + of["hidden.bias"]
    hidden = hidden * 0.5 * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))
    expected = standardised(hidden @ of["score.weight"] + of["score.bias"])
    assert Picker(of).scores(found, vectors) == pytest.approx(expected, abs=1e-4)


def test_chances_are_logistic_regressions() -> None:
    of = weights()
    numbers = np.random.default_rng(2).normal(size=(9, FEATURES))
    logits = (numbers - of["words.mean"]) / of["words.spread"] @ of["words.weight"][:-1] + of["words.weight"][-1]
    assert Picker(of).chances(numbers) == pytest.approx(1 / (1 + np.exp(-logits)), abs=1e-6)


@pytest.mark.parametrize("words", [10, 1000])
def test_scores_fall_in_the_order_in_which_sentences_enter(words: int) -> None:
    order, scores, *_ = Picker(weights()).order(document(), words)
    assert sorted(order) == list(range(len(TEXTS)))
    assert (np.diff(scores[order]) <= 0).all()
    assert ((scores > 0) & (scores < 1)).all()
    assert order.index(4) == len(TEXTS) - 1  # a caption is no sentence


def test_nearness_to_a_query_leads() -> None:
    near = np.array([0, 0, 0, 3, 0, 0], float)
    relevance = Relevance(near, near, frozenset())
    assert Picker(weights()).order(document(), 10, relevance)[0][0] == 3


@pytest.mark.parametrize(("strength", "first"), [(0.0, [0, 1]), (10.0, [4, 1])])
def test_strong_relevance_takes_what_answers_alone_and_even_a_fragment(strength: float, first: list[int]) -> None:
    """The second sentence depends on the first; the fifth is a caption, whose penalty of 2 is half a deviation here."""
    near = np.array([-1, 3, -1, -1, 4, -1], float)
    relevance = Relevance(near, near, frozenset(), strength)
    assert Picker(weights()).order(document(), 100, relevance).indices[:2] == first


def test_a_document_may_be_empty_or_one_sentence() -> None:
    picker = Picker(weights())
    assert picker.order(document(()), 100)[0] == []
    assert picker.order(document(TEXTS[:1]), 100)[0] == [0]


@pytest.mark.parametrize(("apart", "share"), [(0.0, 0.0), (KNOWN, 0.0), (1.7, 0.5), (FOREIGN, 1.0), (4.0, 1.0)])
def test_the_choice_falls_back_on_centrality_where_the_kind_of_text_is_unknown(apart: float, share: float) -> None:
    found = document()
    spread = np.full((2, 13), 0.5)
    # Of two kinds the nearer one counts.
    means = kind_of_text(found) + np.array([[apart * 0.5], [50.0]])
    picker = Picker(weights() | {"kinds.mean": means, "kinds.spread": spread})
    assert picker.share_of_centrality(found) == pytest.approx(share, abs=1e-6)
    talk = document(("Um, yeah, well, you know, like, right, okay, so.",))
    assert Picker(weights() | {"kinds.mean": means + 50, "kinds.spread": spread}).share_of_centrality(talk) == 0


def test_word_centrality_is_the_sum_of_cosines() -> None:
    contents = [["a", "b"], ["b", "c", "c"], [], ["d"]]
    rarity = {"a": math.log(4) + 1, "b": math.log(2) + 1, "c": math.log(4) + 1, "d": math.log(4) + 1}
    table = np.array([[row.count(word) * rarity[word] for word in "abcd"] for row in contents])
    unit = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, 0)
    assert word_centrality(contents) == pytest.approx(np.sqrt(cosines.sum(1)), abs=1e-7)


def test_an_abstract_without_a_name_comes_first_and_a_heading_needs_no_guess() -> None:
    weights_of = weights() | {"opening.weight": np.array([0.0] * 20 + [1.0], np.float32)}  # always one
    texts = tuple(f"The sentence number{index} says that topic{index} is here and nowhere else." for index in range(90))
    found = replace(document(texts), paragraphs=np.repeat(np.arange(9), 10))
    picker = Picker(weights_of)
    assert picker.opening(found) == 10
    assert picker.order(found, 100)[0][:10] == list(range(10))
    under_title = replace(found, sections=np.ones(90, int), headings=("Marmots",), title="Marmots")
    assert picker.opening(under_title) == 10
    assert picker.opening(replace(under_title, headings=("Introduction",))) == 10  # the one heading above says little
    two = replace(under_title, sections=np.full(90, 2), headings=("Marmots", "Results"))
    assert picker.opening(two) == 0
    without = Picker(weights_of | {"opening.weight": -weights_of["opening.weight"]})
    assert without.opening(found) == 0
    near = np.linspace(0, 5, 90)  # a query asks for other things
    relevance = Relevance(near, near, frozenset())
    assert picker.order(found, 100, relevance)[0] == without.order(found, 100, relevance)[0]


OPENING = (
    "Fast trails for Python",
    "It has:",
    "Mailing list: https://example.org/list",
    "Trails reads the slime of snails and tells where they went, such as:",
    "Read this in | English | German | French |",
    "Trails is released under the MIT license.",
    "See section 3 of the manual.",
    "It reads a trail in a second.",
    "It writes one, too.",
)


def test_the_opening_has_what_says_something_up_to_its_words() -> None:
    assert leading(OPENING, 150) == [0, 3, 7, 8]
    assert leading(OPENING, 4 + 13 + 1) == [0, 3, 7]
    assert leading(OPENING, 4) == [0]


def test_where_the_opening_summarises_it_comes_first_after_an_abstract() -> None:
    found = document(OPENING)
    leads = {"lead.mean": np.zeros(20), "lead.spread": np.ones(20), "lead.weight": np.array([0.0] * 20 + [1.0])}
    order = Picker(weights() | leads).order(found, 60)
    assert order.indices[:4] == [0, 3, 7, 8]
    assert order.leading == (0, 3, 7, 8)
    never = Picker(weights() | leads | {"lead.weight": np.array([0.0] * 20 + [-9.0])}).order(found, 60)
    assert never.leading == ()
    spoken = replace(found, spoken=np.ones(len(OPENING), bool))
    assert Picker(weights() | leads).order(spoken, 60).leading == ()
    near = np.zeros(len(OPENING))
    assert Picker(weights() | leads).order(found, 60, Relevance(near, near, frozenset())).leading == ()


def test_figures_count_in_reports_of_a_quarter_alone() -> None:
    told = [
        "Our revenue was $3 million, up 4%.",
        "We sold 5 walls in the quarter.",
        "We are proud.",
        "Our margin fell 2%.",
    ]
    counts = np.array([2, 0, 0, 1])
    assert figures(told) == pytest.approx((counts - counts.mean()) / counts.std(), abs=1e-6)
    others = ["The snail ate 4% of it.", "It cost $3.", "It was seen for a quarter.", "Snails are slow."]
    assert not figures(others).any()
    assert not figures([]).any()


def test_wording_holds_back() -> None:
    texts = ("Ann came to the town.", "She sat in the sun.", "He ate the last pear.", "It rained all the day.", "A b:")
    found = wording_penalties(texts, antecedents(texts))
    assert found.tolist() == [0, 0, 0, HANGING, FRAGMENT]
    roadmap = "Section 3 describes the burrows."
    assert wording_penalties([roadmap], [()]).tolist() == [ROADMAP]
    # Of a text without capitals nothing follows from a small letter.
    assert wording_penalties(["ann came to the town.", "bob ate the pear."], [(), ()]).tolist() == [0, 0]
    texts = ["Ann came to the town.", "Bob ate a pear.", "and the last pear was eaten."]
    assert wording_penalties(texts, [()] * 3)[2] > 0


def test_centrality_by_hand() -> None:
    vectors = np.array([[1, 0], [0.6, 0.8], [0, 1]], np.float32)  # cosines 0.6, 0 and 0.8
    common, much = centrality(vectors)
    assert common == pytest.approx(np.array([0.7 + 0.3, 0.3 + 0.7 + 0.5, 0.5 + 0.7]) / 3, abs=1e-6)
    assert much == pytest.approx(np.array([2, 3, 2]) / 3)


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    save_file(weights(), tmp_path / "summary.safetensors")
    loaded = Picker.load(tmp_path / "summary.safetensors")
    assert set(loaded.weights) == set(NAMES)
    assert loaded.order(document(), 20)[0] == Picker(weights()).order(document(), 20)[0]


@pytest.mark.parametrize("damage", ["cut", "absent", "nan", "missing"])
def test_a_damaged_file_is_one_sentence(damage: str, tmp_path: Path) -> None:
    file, of = tmp_path / "summary.safetensors", weights()
    if damage == "nan":
        of["hidden.bias"][0] = np.nan
    if damage == "missing":
        del of["mix"]
    save_file(of, file)
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:100])
    if damage == "absent":
        file.unlink()
    with pytest.raises(InputError, match="install the package again") as error:
        Picker.load(file)
    assert "\n" not in str(error.value)
    assert str(file) in str(error.value)
