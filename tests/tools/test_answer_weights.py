"""The fit of the weights of answers: on problems whose solution is known."""

from __future__ import annotations

import json
import lzma
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from answer_questions import Case, permissive, with_another_name
from answer_weights import (
    Asked,
    asked_of_cases,
    fit_logistic,
    fit_rank,
    holds,
    in_other_words,
    judged,
    looked_at,
    part_of,
    save,
    saved,
    shares_of,
    sureness,
    without_answer,
)

from longspan_documents.inference.ranking import Evidence, Weights
from longspan_documents.text.passages import passages_of
from longspan_documents.text.reading import document_of

COLUMNS = ("words", "nearest")


def asked(words: list[float], right: list[bool], source: str = "a") -> Asked:
    table = np.stack([words, np.linspace(1, 0, len(words))], 1)
    return Asked(source, 0, Evidence(COLUMNS, table), np.array(right))


def test_what_is_right_by_words_gets_its_weight_from_them() -> None:
    rows = [asked([1.0, 0.2, 0.1], [True, False, False]), asked([0.1, 0.3, 1.0], [False, False, True])] * 5
    weights = fit_rank(rows, COLUMNS)
    assert weights["words"] > 3
    assert weights["words"] > 5 * abs(weights["nearest"])


def test_a_logistic_regression_of_one_sign_gives_the_shares_back() -> None:
    """Of ten where the sign is 1 eight are right, of ten where it is 0 two: the log-odds are 1.386 and its negative."""
    found = [{"sign": np.array([1.0] * 10 + [0.0] * 10)}]
    right = [np.array([1] * 8 + [0] * 2 + [1] * 2 + [0] * 8)]
    weights = fit_logistic(found, ["sign"], right, [1.0])
    assert weights["bias"] == pytest.approx(-np.log(4), abs=0.03)
    assert weights["bias"] + weights["sign"] == pytest.approx(np.log(4), abs=0.03)


def test_a_second_look_is_at_the_best_by_the_first_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longspan_documents.inference.ranking.AGAIN", 2)
    one = asked([0.1, 0.4, 0.3, 0.2], [True, False, False, False])
    whole = replace(one, evidence=one.evidence.read_again(range(4), np.array([0.9, 0.5, 0.6, 0.7])))
    seen = looked_at(whole, Weights({"words": 1.0}, {}, {}, {}))
    # The second and the third; what was not read counts as the less of these.
    assert seen.evidence.column("read").tolist() == [0.5, 0.5, 0.6, 0.5]
    assert seen.evidence.column("words").tolist() == [0.1, 0.4, 0.3, 0.2]
    unshared = in_other_words(seen)
    assert not unshared.evidence.column("words").any()
    assert unshared.evidence.column("read").tolist() == [0.5, 0.5, 0.6, 0.5]
    assert seen.evidence.column("words").any()


def test_taking_the_answer_out_takes_what_is_beside_it_too() -> None:
    one = asked([0.1, 0.2, 1.0, 0.4, 0.5], [False, False, True, False, False])
    gone = without_answer(one)
    assert gone is not None
    assert not gone.right.any()
    assert gone.evidence.column("words").tolist() == [0.1, 0.5]
    assert without_answer(asked([1.0, 0.5], [True, False])) is None
    assert part_of(one, np.array([True, True, False, False, False])).evidence.column("words").tolist() == [0.1, 0.2]


def test_the_regressions_give_the_shares_of_known_questions_back() -> None:
    """Of those with words in common 4 of 5 have an answer, of the others 1 of 5; of the answers 3 of 4 are shown."""
    rows = []
    for overlap, answered in ((1.0, 16), (0.0, 4)):
        for number in range(20):
            there, shown = number < answered, number % 4 != 0
            right = [there and shown, False, False, there and not shown]
            table = np.array([[overlap, 1.0, 0.0], [0.0, 0.9, 0.0], [0.0, 0.8, 0.0], [0.0, 0.1, 0.0]])
            evidence = Evidence(("words", "passage", "names"), table)
            rows.append(Asked("a", number, evidence, np.array(right)))
    weights = Weights({"passage": 1.0}, {}, {}, {})
    fitted = replace(sureness([judged(one, weights) for one in rows], "index"), rank=weights.rank)
    ranked = [fitted.ranking(one.evidence, 0.5) for one in (rows[0], rows[20])]
    assert [one.there for one in ranked] == pytest.approx([0.8, 0.2], abs=0.01)
    assert [one.probability for one in ranked] == pytest.approx([0.6, 0.15], abs=0.01)


def test_a_question_of_several_documents_is_not_asked_of_another() -> None:
    text = "Marmots whistle in May. " * 30 + "\n\n" + "Eagles hunt in June. " * 30
    document = document_of(text)
    places = ((0, 20),)
    one = Case("a", document, (("Who whistles?", places), ("Which month is it?", places)))
    two = Case("a", document, (("Who whistles?", places), ("Where is it?", places)))
    rows = asked_of_cases([one, two, one], None)
    # Two of each document, and of the second "Where is it?", at most one in two, which no other document is asked.
    assert sum(bool(row.right.any()) for row in rows) == 6
    assert sum(not row.right.any() for row in rows) == 0
    third = Case("a", document, (("Why?", places),))
    assert [bool(row.right.any()) for row in asked_of_cases([third, one], None)] == [True, True, True, False]


def test_features_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = [asked([0.5, 0.25], [True, False]), asked([1.0], [False], "b"), asked([0.0, 0.5, 0.75], [False] * 3)]
    save(rows, tmp_path / "rows.npz")
    for one, other in zip(rows, saved(tmp_path / "rows.npz"), strict=True):
        assert (one.source, one.document, one.evidence.names) == (other.source, other.document, other.evidence.names)
        assert one.evidence.table.tolist() == other.evidence.table.tolist()
        assert one.right.tolist() == other.right.tolist()


def test_every_source_counts_the_same_and_half_has_no_answer() -> None:
    rows = [asked([1.0], [True]), asked([1.0], [True]), asked([1.0], [False]), asked([1.0], [True], "b")]
    assert shares_of(rows) == [0.25, 0.25, 0.5, 0.5]


def test_another_name_is_one_that_the_document_lacks() -> None:
    text = "In 1817 Anna Weber described the marmot; in 1850 Karl drew it."
    names = ["1817", "1850", "1903", "anna", "clara", "karl", "weber"]
    for seed in range(9):  # all that may be drawn
        assert with_another_name("Who described it in 1817?", text, names, seed) == "Who described it in 1903?"
        assert with_another_name("What did Karl draw?", text, names, seed) == "What did Clara draw?"
    assert with_another_name("What was drawn?", text, names, 0) is None
    assert with_another_name("What did Karl draw?", text, ["karl", "1903"], 0) is None


def test_a_heading_is_asked_and_masked(tmp_path: Path) -> None:
    folder = tmp_path / "permissive"
    folder.mkdir()
    body = "Marmots whistle when an eagle comes near to their burrow. " * 6
    sections = [
        {"title": "Introduction", "text": body},
        {"title": "Whistles against flying enemies", "text": body},
        {"title": "Results", "text": body},
    ]
    row = {"source": "papers", "sections": sections, "title": "Marmots", "abstract": ""}
    for name in ("train-papers.jsonl.xz", "train-nixos_rfcs.jsonl.xz"):
        with lzma.open(folder / name, "wt") as file:
            file.write(json.dumps(row) + "\n")
    (case,) = permissive(tmp_path, "train")
    ((question, places),) = case.questions
    assert question == "Whistles against flying enemies"
    assert question not in case.document.text
    right = [passage.heading for passage in passages_of(case.document) if holds(passage, places)]
    assert right
    assert set(right) == {"Section"}
