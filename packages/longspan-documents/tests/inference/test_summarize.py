"""Summaries with a query of a short document written by hand: answers are picked, and queries without one are noted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyarrow import parquet

import longspan
from longspan import InputError, map_documents
from longspan_documents.serve.worker import JobRunner
from marmots import run

NEWS = """\
The allotment society met on the second of May in the old school house. Forty members came, more than in any year
before. The chair welcomed them and thanked the families who had repaired the roof. She then gave the floor to the
treasurer, Mr Okafor. He reported an income of 2,300 pounds, most of it from the plant sale. The water bill has doubled
since the pipes froze in January. From July on each plot will pay twelve pounds more for water. Two members asked
whether rain could be collected instead. Never. The beekeepers then showed slides of their hives. A swarm had settled in
the bell tower and was brought down by the fire brigade. Wasps destroyed one colony in late summer. Honey will be sold
at the gate on Saturdays. The secretary read out a letter from the council about dogs. Dogs must be on a lead on all
paths. Whoever finds a fox hole should tell the warden. The committee was elected again without a vote against. Tea and
cake were served by the scouts, who also took the minutes. The next meeting will be held on the third of October.
"""
ANSWERS = {
    "Why has the price of water gone up?": "The water bill has doubled since the pipes froze in January.",
    "Who brought the bees down from the church?": "A swarm had settled in the bell tower",
    "Where can I buy honey?": "Honey will be sold at the gate on Saturdays.",
    "dogs": "Dogs must be on a lead on all paths.",
    "When do they meet again?": "The next meeting will be held on the third of October.",
    "Who served the cake?": "Tea and cake were served by the scouts",
    "How much money did the society earn?": "He reported an income of 2,300 pounds",
}
ELSEWHERE = ("the price of copper in 1990", "quantum field theory", "Which guitarist left the band?")
ABSENT = "nothing in the document seems to concern the query {query!r}"


@pytest.mark.parametrize("query", ANSWERS)
def test_the_sentence_that_answers_is_picked(query: str) -> None:
    """Of 19 sentences three are picked by default; the one that answers stands alone, or begins with a pronoun."""
    summary = longspan.summarize(NEWS, query=query)
    assert len(summary.sentences) == 3
    assert any(" ".join(sentence.text.split()).startswith(ANSWERS[query]) for sentence in summary.sentences)
    assert summary.note is None


@pytest.mark.parametrize("query", ELSEWHERE)
def test_a_query_that_nothing_answers_is_noted_first(query: str) -> None:
    summary = longspan.summarize(NEWS, query=query)
    assert summary.note is not None
    assert summary.note.startswith(ABSENT.format(query=query))
    assert len(summary.sentences) == 3


def test_one_sentence_is_the_summary_of_itself() -> None:
    text = "The kettle boils on the stove."
    assert longspan.summarize(text, query="Where does the kettle boil?").note is None
    far = longspan.summarize(text, query=ELSEWHERE[1])
    assert far.text == text
    assert (far.note or "").startswith(ABSENT.format(query=ELSEWHERE[1]))


def test_a_query_of_function_words_is_no_query() -> None:
    asked = longspan.summarize(NEWS, query="what of the?")
    assert [one.text for one in asked.sentences] == [one.text for one in longspan.summarize(NEWS).sentences]
    assert (asked.note or "").startswith("the query 'what of the?' has no content words")


def test_a_query_that_only_asks_for_a_summary_is_never_absent() -> None:
    assert longspan.summarize(NEWS, query="Summarize the whole discussion.").note is None


def test_words_that_the_encoder_does_not_know_are_looked_for_in_the_text() -> None:
    """It has no vector for Japanese, so that nothing is known of the meaning of a query without a word of the text."""
    note = longspan.summarize(NEWS, query="銅の価格はいくらですか").note
    assert note is not None
    assert note.startswith("the document has no word of the query '銅の価格はいくらですか', and the bundled encoder")
    text = "銅の価格は上がった。町の人は驚いた。学校は休みだった。"
    assert "no word of the query" in (longspan.summarize(text, query="the price of copper").note or "")
    assert "no word of the query" not in (longspan.summarize(text, query="銅の価格").note or "")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (" \n", "query is blank"),
        ("?! …", r"query='\?! …' has no letters or digits; give what"),
        ("copper " * 20_000, "query has 140,000 characters, more than the 10,000 that are read; give a question"),
    ],
)
def test_a_query_without_words_or_without_end_is_refused(query: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        longspan.summarize(NEWS, query=query)


def test_the_note_reaches_every_interface(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = ELSEWHERE[0]
    expected = longspan.summarize(NEWS, query=query).note
    assert expected is not None
    (tmp_path / "news.txt").write_text(NEWS, encoding="utf-8")
    assert run(tmp_path / "news.txt", "--query", query, "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["note"] == expected
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": NEWS}) + "\n", encoding="utf-8")
    map_documents("summarize", tmp_path / "rows.jsonl", tmp_path / "out", query=query, workers=0)
    (part,) = (tmp_path / "out").glob("part-*.parquet")
    assert parquet.read_table(part)["note"].to_pylist() == [expected]
    given = {"id": None, "name": "the text", "text": NEWS}
    assert JobRunner(lambda **_: None).summarize(given, {"query": query}, scores=False)["notes"] == [expected]
