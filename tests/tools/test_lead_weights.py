"""What is learned from packages: whose licence permits it, which are held out, the line under NAME, the regression."""

from __future__ import annotations

import numpy as np
import pytest
from lead_weights import NAMED, fit_lead, is_permissive, is_training
from summary_weights import Taught

from longspan.data.text.sentences import contents_of
from longspan_documents.summaries.clues import Sentences
from longspan_documents.summaries.picker import BOUND, Picker, lead_features
from longspan_documents.summaries.selection import word_table


@pytest.mark.parametrize(
    ("licence", "permissive"),
    [
        ("MIT", True),
        ("GPL-2+ or BSD-3-clause", True),
        ("BSD-3-clause and GPL-2", False),
        ("Apache-2.0 and MIT", True),
        ("unknown", False),
    ],
)
def test_every_part_of_a_licence_or_one_to_choose_is_permissive(licence: str, permissive: bool) -> None:
    assert is_permissive(licence) == permissive


def test_a_package_is_held_out_under_all_its_names() -> None:
    names = [f"snail{number}" for number in range(500)]
    assert 0.5 < np.mean([is_training(name) for name in names]) < 0.7  # three of five
    assert all(is_training(f"python3-{name}") == is_training(name) for name in names)


@pytest.mark.parametrize("line", ["go slowly", "go slowly, and\n       stop"])
def test_the_line_under_name_is_parted_from_its_page(line: str) -> None:
    page = f"SNAIL(1)\n\nNAME\n       snail, slug - {line}\n\nSYNOPSIS\n       snail - wall\n"
    named = NAMED.search(page)
    assert named
    assert named["line"] == line
    assert page[: named.start()] + page[named.end() :] == "SNAIL(1)\n\n\nSYNOPSIS\n       snail - wall\n"


def test_a_document_leads_where_its_kind_gains_by_its_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    gains = {"packages": [4.0, -1.0, 3.0], "papers": [-5.0, 1.0, -8.0]}
    documents = [taught(kind, number) for kind in gains for number in range(3)]
    given = iter([gain for each in gains.values() for gain in each])
    monkeypatch.setattr("lead_weights.advantage", lambda *_: next(given))
    found = fit_lead(documents, Picker({}))
    known = np.array([lead_features(each.document) for each in documents])
    known = np.clip((known - found["lead.mean"]) / found["lead.spread"], -BOUND, BOUND)
    logits = known @ found["lead.weight"][:-1] + found["lead.weight"][-1]
    assert (logits > 0).tolist() == [True] * 3 + [False] * 3  # one of each kind differs from its kind


def taught(kind: str, number: int) -> Taught:
    """A package is short and says what it is, a paper is long and asks."""
    line = "It is a tool that runs." if kind == "packages" else "Why do all the snails of the garden run?"
    texts = [f"{line} {number}{index}." for index in range(5 if kind == "packages" else 40)]
    vectors = np.eye(len(texts), 64, dtype=np.float32)
    document = Sentences(
        texts=texts,
        contents=[contents_of(text) for text in texts],
        vectors=vectors,
        paragraphs=np.arange(len(texts)),
        sections=np.zeros(len(texts), int),
        spoken=np.zeros(len(texts), bool),
    )
    return Taught(kind, document, word_table(document), ("",), 1 / 3)
