"""Which sentences stand by themselves, and which only say where something is."""

from __future__ import annotations

import pytest

from longspan_documents.summaries.clues import antecedents, depends_on_previous, is_fragment, is_notice, is_roadmap
from longspan_documents.summaries.selection import kinds_of_lines, scores_of_log, supported


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
        "For this reason, the wall was moved.",
        "Some of them stayed.",
        "To do so, the client sends a token.",
        "In particular, the key is never sent.",
        "This is fine for old clusters.",
        "This was tried in March.",
        "This can raise the cost.",
        "The sharing scheme addresses this concern directly.",
        "We need a limit to avoid these problems.",
        "The present invention recycles such devices.",
        "Under this system, retired soldiers waived a part.",
        "Of the two, the former is cheaper.",
        "The above treatment is repeated weekly.",
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
        "In this study rice was grown in the dark.",
        "This EIP reserves one label.",
        "This Meta-RFC adds a part to the template.",
        "The results indicate a better match for those who slept.",
        "The signal rose, and this signal activated the enzyme.",
        "Environmental factors such as age were equal.",
        "The cost is such that nobody pays it.",
        '"I hate this backwater," said the pilot.',
        "The former president paid the bill.",
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
        "The window is defined as follows.",
        "This section examines the costs of each option.",
        "Slide 6 provides an overview of our segments.",
        "Jeff will begin by reviewing our results.",
        "I will now turn the call over to our chief financial officer.",
        "Then we will open the line for questions.",
        "Please turn to slide 4.",
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
        "Revenue turned positive and moved to 4 million dollars.",
        "The section examined by the surgeon was removed.",
        "Sales will begin by June in all stores.",
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


@pytest.mark.parametrize(
    "sentence",
    [
        "This call contains forward-looking statements, and actual results may differ materially from them.",
        "Snail is a registered trademark of Slow Things Ltd.",
        "Permission to make digital or hard copies of this work is granted without fee.",
        "Abstracting with credit is permitted.",
        "This program is distributed under the terms of the GNU General Public License.",
        "Today's conference is being recorded.",
        "Hi, good morning, and congratulations on the quarter.",
        "Our first question comes from Bob Brown of Wall Partners.",
    ],
)
def test_notices(sentence: str) -> None:
    assert is_notice(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "The town gave permission to build the wall.",
        "The trade in marmots was recorded by the abbey.",
        "Licences cost nine francs a year.",
        "Ann held the copyright until 1934.",
        "The first question is whether snails sleep.",
    ],
)
def test_no_notices(sentence: str) -> None:
    assert not is_notice(sentence)


def test_what_needs_others_waits_for_them() -> None:
    needs = [(), (0,), (0, 1), (), None]
    assert list(supported([2, 3, 1, 0], needs)) == [3, 0, 1, 2]
    assert list(supported([4, 0], needs)) == [0, 4]  # what it needs never comes
    assert list(supported([4, 3], needs)) == [3, 4]
    assert list(supported([0, 1, 2], needs)) == [0, 1, 2]


def test_errors_and_rare_lines_of_a_log_come_first_and_once() -> None:
    lines = [f"10:00:{number:02d} INFO job {number} of /data/part{number} done" for number in range(50)]
    lines[20] = "10:00:20 ERROR disk /dev/sda1 is full"
    lines[30] = "10:00:30 ERROR disk /dev/sdb1 is full"
    lines[40] = "10:00:40 INFO the moon rose"
    lines[45] = "10:00:45 CRITICAL worker 7 was lost"
    scores = scores_of_log(lines)
    order = sorted(range(50), key=lambda index: -scores[index])
    assert order[:4] == [45, 20, 40, 0]
    assert all(0 < score < 1 for score in scores)
    assert not len(scores_of_log([]))


def test_names_in_lines_of_a_log_make_no_new_kinds() -> None:
    names = [f"{one}{two}-{three}" for one in "bdfgk" for two in ("ane", "ol", "ush") for three in ("dev", "doc")]
    done = [f"2026-01-02 03:04:05 status installed {name}:all 1.2-3" for name in names]
    removed = [f"2026-01-02 03:04:05 status removed {name}:all 1.2-3" for name in names[:3]]
    lines = [*done, *removed, "2026-01-02 03:04:05 the moon rose over walls"]
    # By hand: 30 installed and 3 removed are a kind each, the last line has as many words and another first one.
    scores = scores_of_log(lines)
    assert sorted(range(34), key=lambda index: -scores[index])[:3] == [33, 30, 0]
    told = [f"INFO {names[one]} {names[two]} {names[(one + two) % 30]}" for one in range(30) for two in range(30)]
    assert len(set(kinds_of_lines(told))) == len(told)  # most words differ: these lines tell different things
    assert sorted(range(31), key=lambda index: -scores_of_log([*done, "liberror-perl:all was here"])[index])[0] == 30
