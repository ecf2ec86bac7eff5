"""The kinds of answers that questions ask for, and the sentences that hold them."""

from __future__ import annotations

import pytest

from longspan_documents.questions.kinds import holds_kind, is_question, kind_of, refers_back


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("Why do marmots whistle?", "why"),
        ("For what reason does the goblin want to leave?", "why"),
        ("How come they sleep so long?", "why"),
        ("How do they build a burrow?", "how"),
        ("In what way was the sample dried?", "how"),
        ("What is a burrow?", "what"),
        ("What does CRDP stand for?", "what"),
        ("Please define a burrow.", "what"),
        ("How many marmots are there?", "number"),
        ("How long do they sleep, and why?", "number"),
        ("What is the number of burrows?", "number"),
        ("When and how did it end?", "when"),
        ("Who knows why?", "who"),
        ("Do they whistle?", None),
        ("What did Ben say?", None),
        ("", None),
    ],
)
def test_the_first_question_word_determines_the_kind(question: str, kind: str | None) -> None:
    assert kind_of(question) == kind


@pytest.mark.parametrize(
    ("kind", "yes", "no"),
    [
        ("why", "They whistle because an eagle is near.", "They whistle when an eagle is near."),
        ("why", "Given that it is cold, they sleep.", "They were given milk."),
        ("why", "To save energy they sleep.", "They went to the wall."),
        ("why", "They have lived there since it is dry.", "They have lived there since 1920."),
        ("why", "They sleep since it is cold in 1920.", "They have lived there since September 2011."),
        ("how", "They cool down by lying on stones.", "They lie by the wall."),
        ("how", "First, the sand is loosened.", "The sand is loose."),
        ("what", "A burrow is a hole in the ground.", "Burrows were dug there."),
        ("what", "The hole, called a burrow, is deep.", "They call loudly."),
    ],
)
def test_a_reason_a_way_and_a_definition_have_their_words(kind, yes: str, no: str) -> None:
    assert holds_kind(kind, yes)
    assert not holds_kind(kind, no)


def test_questions_are_recognised_before_a_speech_tag() -> None:
    assert is_question("Why do they whistle?")
    assert is_question('"Why do they whistle?" another man put in.')
    assert is_question("为什么？")
    assert not is_question("They ask why they whistle.")
    assert not is_question("")
    assert not is_question('"Why?" she asked, and then she went to the wall in order to see the eagle for herself.')


def test_sentences_that_refer_back() -> None:
    assert refers_back("This is because eagles are near.")
    assert refers_back('"They were out for revenge."')
    assert not refers_back("Itching is a sign.")
    assert not refers_back("Eagles do this.")
