"""Which sentences of a meeting stand in turns that answer a query, and the regressions, by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from query_weights import Sums, meetings

TURNS = [
    ("Ann", "We begin. It is late ."),
    ("Bob", ""),
    ("Bob", "{vocalsound}"),
    ("Cid", "The budget was cut."),
    ("Ann", "Yes ."),
]


def test_marked_turns_are_counted_as_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = {
        "meeting_transcripts": [{"speaker": name, "content": text} for name, text in TURNS],
        "general_query_list": [{"query": "Summarize the meeting.", "answer": "They met."}],
        "specific_query_list": [
            {"query": "What of the budget?", "answer": "It was cut.", "relevant_text_span": [["1", "3"]]},
            {"query": "Who spoke first?", "answer": "Ann.", "relevant_text_span": [["0", "0"], ["4", "4"]]},
        ],
    }
    (tmp_path / "qmsum").mkdir()
    with gzip.open(tmp_path / "qmsum" / "train.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(json.dumps(record))
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path))
    (meeting,) = meetings("train")
    said = [sentence.text.split(": ")[-1] for sentence in meeting.found]
    assert said == ["We begin.", "It is late.", "The budget was cut.", "Yes."]
    assert meeting.turns.tolist() == [0, 0, 3, 4]
    assert [question.marked.tolist() for question in meeting.questions] == [[0, 0, 1, 0], [1, 1, 0, 1]]
    assert meeting.questions[0].references == ("It was cut.",)


def test_a_ridge_regression_weighs_documents_alike() -> None:
    sums = Sums(["one", "two"])
    draw = np.random.default_rng(0)
    for count in (50, 5000):
        signs = {name: draw.standard_normal(count) for name in ("one", "two")}
        sums.add(signs, 3 * signs["one"] - signs["two"])
    found = sums.weights()
    assert found["one"] == pytest.approx(3 / 1.02, abs=0.1)
    assert found["two"] == pytest.approx(-1 / 1.02, abs=0.1)
