"""What `longspan summarize` makes of logs, calls, plays, novels and papers, and what it says of them."""

from __future__ import annotations

import pytest

import longspan
from longspan.data.text.blocks import kind_of_document
from longspan.data.text.reading import document_of, sentences_of
from longspan.inference.summarize import OWN_ABSTRACT, UNRELIABLE, opens_as_paper

pytest.importorskip("sentencex", reason="needs the 'documents' extra")

LOG = "".join(f"2024-03-01 10:{one // 60:02d}:{one % 60:02d},123 INFO worker: job {one} done\n" for one in range(200))
CALL = """Operator: Good morning, and welcome to the third quarter 2023 conference call of Slow Things. \
This call is being recorded.

Ann Lee: Thank you, and good morning, everyone. Before we begin, I would like to remind you that this call contains \
forward-looking statements, and actual results may differ from them. Jeff will begin by reviewing our results.

Jeff Smith: Thanks, Ann. Revenue grew 12 percent to 340 million dollars, driven by the launch of our feed in Europe. \
Slide 6 provides an overview of our segments. Our garden segment grew 20 percent, while walls were down 3 percent. \
Please turn to slide 8. Operating income was 52 million dollars, compared with 44 million dollars a year ago. \
We expect revenue of 1.3 billion dollars for the whole year. I will now turn the call over to the operator.

Operator: Our first question comes from Bob Brown of Wall Partners.

Bob Brown: Hi, good morning, and congratulations on the quarter. What margin do you see next year?

Jeff Smith: Thanks, Bob. Margins should improve by half a percent, because feed is cheaper and a plant opens in March.

Operator: This concludes today's conference call. Thank you for joining.
"""


def kind(text: str) -> str | None:
    document = document_of(text)
    return kind_of_document(document, [sentence.text for sentence in sentences_of(document)])


def test_a_log_is_said_to_be_one_and_its_errors_come_first() -> None:
    lines = LOG.splitlines()
    lines[77] = lines[77].replace("INFO worker: job 77 done", "ERROR worker: job 77 failed")
    lines[150] = lines[150].replace("job 150 done", "switched to the second database")
    summary = longspan.summarize("\n".join(lines), 2)
    assert [sentence.text for sentence in summary.sentences] == [lines[77], lines[150]]
    assert summary.note == UNRELIABLE["log"]


def test_a_call_is_summarised_by_its_figures() -> None:
    summary = longspan.summarize(CALL, 4)
    text = summary.text
    assert "340 million" in text
    assert "52 million" in text
    assert not summary.abstract
    for promise in (
        "Slide 6",
        "will begin",
        "forward-looking",
        "good morning",
        "turn the call",
        "recorded",
        "first question",
    ):
        assert promise not in text


def test_plays_and_novels_are_told_from_other_texts() -> None:
    play = "".join(
        f"ACT {act}\n\nANN: I go to the wall, and there I stay.\n\nBOB: Stay, Ann, and let the snail pass by.\n\n"
        for act in ("I", "II", "III")
    )
    assert kind(play) == "play"
    assert kind("She went to the wall, and he saw her there. " * 2_500) == "novel"
    assert kind("The wall stood in the garden, and it was slow to fall. " * 2_500) is None
    assert kind(CALL) is None


def test_an_abstract_without_a_heading_is_claimed_only_in_a_paper() -> None:
    paper = "We measure snails.\n\n1 Introduction\n\nSnails are slow. They go to the wall.\n\n"
    entries = "References\n\n[1] A. Smith. Snails at night. Journal of Snails, 2010.\n"
    for text, claimed in ((paper + entries, True), (paper, False), ("We measure snails.\n\nSnails are slow.", False)):
        document = document_of(text)
        assert opens_as_paper(document, sentences_of(document), 1) == claimed
    assert longspan.summarize(CALL, 3).note != OWN_ABSTRACT
