"""Which sentences stand by themselves, and which only say where something is."""

from __future__ import annotations

import pytest

from longspan.tasks.summaries.clues import antecedents, depends_on_previous, is_fragment, is_roadmap


@pytest.mark.parametrize(
    "sentence",
    [
        "However, the second trial failed.",
        "But nobody came.",
        "“And then she left,” he said.",
        "This reduces the cost by half.",
        "They were sold in June.",
        "In this case no fee is due.",
        "It froze in the night.",
        "Its members vote once a year.",
        "Again, the vote was postponed.",
        "Um, and we need two more samples.",
        "Okay. Well, it depends on the price.",
    ],
)
def test_sentences_that_hang(sentence: str) -> None:
    assert depends_on_previous(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "This paper measures the cost of sleep.",
        "This PEP proposes a new operator.",
        "It is known that marmots sleep.",
        "It has been shown to work.",
        "Andrew came late.",
        "Itching is the first symptom.",
        "The council met in June.",
        "Such as it was, the vote stood.",
        "Well, Ann paid for all of them.",
        "Again and again the wolves came back.",
        "Erosion was seen at each site.",
        "Right of way is given to trains.",
    ],
)
def test_sentences_that_stand_alone(sentence: str) -> None:
    assert not depends_on_previous(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "Next, we present the results of the survey.",
        "The rest of this paper is organized as follows.",
        "Section 3 describes the data.",
        "In Section 4 we turn to the costs.",
        "The method is described in detail in the next section.",
        "Results are shown in Table 2.",
        "Table 8 reports the median number of days.",
        "For the proof, see Appendix B.",
        "This chapter is structured as follows.",
        "We now turn to the second question.",
    ],
)
def test_roadmaps(sentence: str) -> None:
    assert is_roadmap(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "We present a method that reads long documents.",
        "The section of the population that smokes fell by half.",
        "The treatment shown to work in mice failed.",
        "The next steps were described by the mayor.",
        "We first measured the weight of each animal.",
        "Part of the budget was discussed in June.",
        "Here we show that sleep restores memory.",
    ],
)
def test_sentences_that_say_something(sentence: str) -> None:
    assert not is_roadmap(sentence)


def test_pieces() -> None:
    assert is_fragment("The following were asked:")
    assert is_fragment("1.2 3.4 5.6 7.8")
    assert is_fragment("Thank you.")
    assert not is_fragment("The council met in June and voted.")


def test_what_a_sentence_needs() -> None:
    texts = ["Ann came.", "She sat.", "But she left.", "Then it rained.", "Bob stayed.", "He slept."]
    assert antecedents(texts) == [(), (0,), (0, 1), None, (), (4,)]
    assert antecedents(["But why?"]) == [()]
    assert antecedents([]) == []
