"""What `longspan summarize` makes of logs, calls, plays, novels and papers, and what it says of them."""

from __future__ import annotations

import pytest

import longspan
from longspan_documents.inference.summarize import OWN_ABSTRACT, UNRELIABLE, opens_as_paper
from longspan_documents.text.blocks import kind_of_document
from longspan_documents.text.reading import document_of, sentences_of

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


REMARKS = """We delivered a solid third quarter in an environment that stays hard to read.
Our strategy rests on four pillars, and I would like to say a few words on each of them.
The first pillar is our brand, which people love.
The second pillar is our network of shops and how we care for it.
We have talked about this many times, and we will talk about it again.
Net sales in the quarter were $1.84 billion, down 3% from the prior year.
Comparable sales fell 4.5%, as fewer people came into our shops.
Our teams did a great job in a quarter that asked a lot of them.
Gross margin widened by 120 basis points to 34.6%, helped by lower freight costs.
We are mindful of our customers, and we are mindful of our people.
Adjusted earnings were $1.12 per share, against $0.97 a year ago.
Inventory was 11% lower than a year ago, and we ended the quarter with $410 million of cash.
We think that there is a lot to look forward to in the months ahead of us.
For the fiscal year we now expect sales to fall by 2% to 3%, where we had expected them to be flat.
We expect earnings of $4.30 to $4.50 per share.
I am grateful to every one of our colleagues for what they do each day.
And I am confident that our best days are ahead of us.
"""
ANALYSTS = """Operator: Welcome to the second quarter earnings conference call. All lines are in listen-only mode.

Mary Hall: Thanks, operator. Tom will start with an overview of the business, and Ines will walk through the numbers.

Tom Reed: Thank you, Mary, and hello everyone. We are really proud of what our teams have done this quarter. \
Let me start with three themes that guide us. The first theme is trust, and the second one is speed. \
Revenue for the quarter was 212 million dollars, up 17 percent from a year ago. \
We opened an office in Lisbon, and I was there last week, and the energy was wonderful. \
Our platform is the place where hedges, walls and gardens come together. Our partners are excited, and so am I.

Ines Vogt: Thanks, Tom. I will now go through the details of the quarter. \
Gross margin was 78.4 percent, compared with 76.9 percent in the second quarter of last year. \
Operating income was 45 million dollars, or 21 percent of revenue. Earnings per share came in at 62 cents. \
For the full year we raise our guidance to 860 million dollars of revenue. \
As always, we look at the business over many years. With that, we are happy to take your questions.

Operator: Our first question comes from Paul Ames of Stone Bank.

Paul Ames: Great quarter, guys. Can you say a bit more on how you think about the demand environment out there?

Tom Reed: It is a good question, Paul, and we think about it all the time. People care about their gardens.

Operator: That was our last question. Thank you for joining, and you may now disconnect.
"""


@pytest.mark.parametrize("text", [REMARKS, ANALYSTS])
def test_figures_come_before_what_a_company_thinks_of_itself(text: str) -> None:
    picked = [sentence.text for sentence in longspan.summarize(text, 4).sentences]
    assert all(any(map(str.isdigit, one)) for one in picked)
    assert not any("walk through" in one or "theme" in one or "pillar" in one for one in picked)


ACTS = "".join(
    f"ACT {act}\n\nANN: I go to the wall, and there I stay.\n\nBOB: Stay, Ann, and let the snail pass by.\n\n"
    for act in ("I", "II", "III")
)
SPEECHES = """ANN: I go to the wall, and there I stay.

BOB: Stay, Ann, and let the others pass by.

ANN: Who would pass by at night, I ask?

BOB: The moon, and perhaps the cat. Good night.

ANN: Good night to you, and to the wall.
"""
NAMED = """{}Algernon.  Did you hear what I was playing, Lane?

Lane.  I did not think it polite to listen, sir.

Algernon.  I play with feeling. Have you cut the lettuce?

Lane.  Yes, sir.

Algernon.  I see that on Thursday eight snails were eaten.

Lane.  Yes, sir; eight snails and a pint.
"""
STAGED = """ANN.
Who goes there in the night?

BOB.
It is but me, and I am slow.

ANN.
Then stay, and tell the hour. [Exit.]

BOB.
It struck but now; go to thy bed. [Exeunt.]

SCENE II. The wall.

[Enter BOB.]

BOB.
The wall is high, the night is long.

ANN.
For this relief much thanks.
"""
VERSE = (
    "ANN:\nThe night is long, and by the garden wall\nThe snail goes on, for it has heard the call\n"
    "Of lettuce green.\n\nBOB:\nIt never came to me\nThat one could hear the lettuce from a tree\nOr stone.\n\n"
)


@pytest.mark.parametrize(
    "text",
    [
        ACTS,
        f"THE WALL\n\nCHARACTERS\n\nANN, a snail\nBOB, who builds\n\nSCENE: A garden at night.\n\n{SPEECHES}",
        NAMED.format("THE PERSONS IN THE PLAY\n\nAlgernon Slow\nLane, Manservant\n\nFIRST ACT\n\nSCENE\n\nA room.\n\n"),
        STAGED,
        VERSE * 8,
    ],
)
def test_plays_are_told_by_scenes_casts_directions_and_verses(text: str) -> None:
    assert kind(text) == "play"


@pytest.mark.parametrize("text", [SPEECHES, NAMED.format(""), VERSE, CALL, f"SCENE: A garden.\n\n{SPEECHES}"])
def test_speeches_without_a_stage_are_no_play(text: str) -> None:
    assert kind(text) is None


def test_novels_are_told_from_other_long_texts() -> None:
    assert kind("She went to the wall, and he saw her there. " * 2_500) == "novel"
    assert kind("The wall stood in the garden, and it was slow to fall. " * 2_500) is None


def test_an_abstract_without_a_heading_is_claimed_only_in_a_paper() -> None:
    paper = "We measure snails.\n\n1 Introduction\n\nSnails are slow. They go to the wall.\n\n"
    entries = "References\n\n[1] A. Smith. Snails at night. Journal of Snails, 2010.\n"
    for text, claimed in ((paper + entries, True), (paper, False), ("We measure snails.\n\nSnails are slow.", False)):
        document = document_of(text)
        assert opens_as_paper(document, sentences_of(document), 1) == claimed
    assert longspan.summarize(CALL, 3).note != OWN_ABSTRACT


SCENE = """He opened the door of hut {n} and looked at her for a long time before he spoke to her.

"Have you seen the boat this morning?" he asked. "It was tied to the stone when I went to bed."

"I heard something," she said. "I thought that it was the wind, and went to sleep again. What has he told you?"

He sat down on the bench beside her. The lamp burned low, and neither of them wanted to rise and fill it.

"Then he has taken it!" she cried at last.
"""
REPORT = """The mayor said on day {n} that he would not change his mind, "whatever the newspapers write" about it. His
opponent, who had asked him to step back, told this paper that she was "not surprised in the least" by his answer. A
speaker of the council added that he had read her letter, and that "nobody has decided anything" so far. In the street
people wonder what he is waiting for, and the merchants, who had supported her, say that the work should begin.
"""


def test_a_story_is_told_from_a_report_that_quotes_persons() -> None:
    story = "\n".join(SCENE.format(n=number) for number in range(15))
    assert kind(story) == "story"
    assert longspan.summarize(story, 2).note == UNRELIABLE["story"]
    assert kind("\n".join(SCENE.format(n=number) for number in range(5))) is None  # too short to tell
    assert kind("\n".join(REPORT.format(n=number) for number in range(20))) is None
