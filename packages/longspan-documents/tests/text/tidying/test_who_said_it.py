"""Who said it: each line of a conversation is its speaker's, signatures are no headings, fields of mails no answers.

Ten conversations and ten threads of mails, written for this, with the speakers that a reader names.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan_documents.text.passages import units_of
from longspan_documents.text.reading import document_of, read

CONVERSATIONS = {
    "once": (
        "Anna: Good morning everyone.\n"
        "Ben: Morning.\n"
        "Anna: Shall we begin with the roof?\n"
        "Cara: Yes please.\n"
        "Ben: The roof leaks in two places.\n"
        "Dan: I can bring a ladder.\n"
        "Anna: Thank you, Dan.\n"
        "Eve: Until when?\n"
        "Ben: Until Friday.\n",
        "Anna Ben Anna Cara Ben Dan Anna Eve Ben",
    ),
    "irc": (
        "<anna> hello all\n"
        "<ben> hi anna\n"
        "* cara waves to everyone\n"
        "<anna> did the build pass?\n"
        "<ben> no, it failed at noon\n"
        "* dan has joined the channel\n"
        "<dan> I broke it, sorry\n"
        "<anna> no problem\n",
        "anna ben cara anna ben dan anna",
    ),
    "irc-times": (
        "[10:01] <anna> hello all\n"
        "[10:02] <ben> hi anna\n"
        "[10:03] * cara waves to everyone\n"
        "[10:04] <anna> did the build pass?\n"
        "[10:05] <eve> only once I speak\n"
        "[10:06] <ben> no, it failed at noon\n",
        "anna ben cara anna eve ben",
    ),
    "me": (
        "anna: hello all\n"
        "ben: hi\n"
        "anna: /me opens the window\n"
        "ben: thanks, it was hot\n"
        "anna: who has the minutes?\n"
        "ben: /me looks at cara\n"
        "cara: I have them\n"
        "anna: great\n",
        "anna ben anna ben anna ben cara anna",
    ),
    "times-middle": (
        "Anna (10:01): Where is the book?\n"
        "Ben (10:02): It was lost.\n"
        "Anna (10:03): Then count aloud.\n"
        "Cara (10:04): I shall help.\n"
        "Ben (10:05): I do so every day.\n",
        "Anna Ben Anna Cara Ben",
    ),
    "times-lines": (
        "Anna 10:01 AM\n"
        "Where is the book?\n"
        "\n"
        "Ben 10:02 AM\n"
        "It was lost in the flood.\n"
        "And the bridge too.\n"
        "\n"
        "Cara 10:03 AM\n"
        "That is a pity.\n"
        "\n"
        "Anna 10:05 AM\n"
        "Then count aloud.\n",
        "Anna Ben Cara Anna",
    ),
    "whatsapp": (
        "04/03/2024, 10:01 - Messages and calls are end-to-end encrypted.\n"
        "04/03/2024, 10:01 - Anna: Where is the book?\n"
        "04/03/2024, 10:02 - Ben: It was lost.\n"
        "In the flood of course.\n"
        "04/03/2024, 10:03 - Cara: <Media omitted>\n"
        "04/03/2024, 10:04 - Cara: A pity: it was old.\n"
        "04/03/2024, 10:05 - Dan left\n"
        "04/03/2024, 10:06 - Anna: Then we count at 10:30: be there.\n",
        "Anna Ben Cara Anna",
    ),
    "zoom": (
        "00:01:02\tAnna Weber:\tWhere is the book?\n"
        "00:01:09\tBen Holt:\tIt was lost.\n"
        "00:01:30\tCara:\tA pity.\n"
        "00:02:00\tAnna Weber:\tThen count aloud.\n",
        "Anna_Weber Ben_Holt Cara Anna_Weber",
    ),
    "script": (
        "INTERVIEWER: When did you begin?\n"
        "MR. HOLT: In 1990. I was young.\n"
        "INTERVIEWER: And why?\n"
        "MR. HOLT: Because of my father. He said: never stop.\n"
        "MODERATOR: One question from the hall.\n"
        "WOMAN IN THE HALL: Do you regret it?\n"
        "MR. HOLT: No.\n",
        "INTERVIEWER MR._HOLT INTERVIEWER MR._HOLT MODERATOR WOMAN_IN_THE_HALL MR._HOLT",
    ),
    "deposition": (
        "Q. Where were you on Monday?\n"
        "A. At home.\n"
        "Q. Who saw you?\n"
        "A. My neighbour did.\n"
        "MR. LEE: Objection.\n"
        "THE COURT: Overruled.\n"
        "Q. Please go on.\n"
        "A. She waved at me.\n",
        "Q A Q A MR._LEE THE_COURT Q A",
    ),
}
"""A text, and who speaks in it: names in order, with "_" for spaces."""
HEAD = "From: {}\nTo: team@example.org\nMessage-ID: <1@example.org>\nMIME-Version: 1.0\nSubject: The plan\n"
TYPE = "Content-Type: text/plain; charset=utf-8\n\n"
MAILS = {
    "top-posted-en": (
        "Ruth Keller <ruth@x.org>",
        "I agree with the plan. We start on Monday.\n"
        "\n"
        "Ruth\n"
        "\n"
        "On Sun, Mar 3, 2024 at 9:12 PM Tobias Frank <tobias@x.org> wrote:\n"
        "> Shall we start on Monday? I would like that.\n"
        ">\n"
        "> Tobias\n",
        ["I agree with the plan. We start on Monday."],
    ),
    "inline": (
        "Tobias Frank <t@x>",
        "Hello Ruth,\n"
        "\n"
        "On Mon, 4 Mar 2024, Ruth Keller wrote:\n"
        "> When do we start?\n"
        "\n"
        "On Tuesday, since Monday is a holiday.\n"
        "\n"
        "> Who brings the keys?\n"
        "\n"
        "Anna brings them.\n"
        "\n"
        "Tobias\n",
        ["Hello Ruth,", "On Tuesday, since Monday is a holiday.", "Anna brings them."],
    ),
    "german": (
        "Tobias Frank <t@x>",
        "Liebe Ruth,\n"
        "\n"
        "das passt mir gut. Wir treffen uns am Montag um neun.\n"
        "\n"
        "Viele Grüße\n"
        "Tobias\n"
        "\n"
        "Am 3. März 2024 um 21:12 schrieb Ruth Keller <ruth@x.org>:\n"
        "\n"
        "> Lieber Tobias,\n"
        ">\n"
        "> passt dir der Montag? Ich habe die Schlüssel.\n"
        ">\n"
        "> Ruth\n",
        ["Liebe Ruth,", "das passt mir gut. Wir treffen uns am Montag um neun."],
    ),
    "german2": (
        "Tobias Frank <t@x>",
        "Das passt mir gut.\n"
        "\n"
        "Am So., 3. März 2024 um 21:12 Uhr schrieb Ruth Keller <\n"
        "ruth@x.org>:\n"
        "\n"
        "> Passt dir der Montag?\n",
        ["Das passt mir gut."],
    ),
    "french": (
        "Luc Morel <l@x>",
        "Bonjour Anne,\n"
        "\n"
        "La réunion est déplacée à mardi. Merci de prévenir tout le monde.\n"
        "\n"
        "Cordialement,\n"
        "Luc Morel\n"
        "Directeur\n"
        "\n"
        "Le dim. 3 mars 2024 à 21:12, Anne Petit <a@x.org> a écrit :\n"
        "\n"
        "> Bonjour Luc,\n"
        "> La réunion est-elle lundi ?\n"
        "> Anne\n",
        ["Bonjour Anne,", "La réunion est déplacée à mardi. Merci de prévenir tout le monde."],
    ),
    "outlook": (
        "Ruth Keller <r@x>",
        "The budget was approved by the mayor. We can order the chairs.\n"
        "\n"
        "Best regards,\n"
        "Ruth Keller\n"
        "Head of Purchasing\n"
        "City of Linden | Tel. +49 30 1234\n"
        "\n"
        "________________________________\n"
        "From: Frank, Tobias <tobias@x.org>\n"
        "Sent: Sunday, March 3, 2024 9:12 PM\n"
        "To: Keller, Ruth <ruth@x.org>\n"
        "Subject: RE: Budget of the mayor\n"
        "\n"
        "Has the mayor decided? I need the chairs by May.\n"
        "\n"
        "Tobias\n",
        ["The budget was approved by the mayor. We can order the chairs."],
    ),
    "outlook-de": (
        "Ruth Keller <r@x>",
        "Der Haushalt ist bewilligt. Wir bestellen die Stühle.\n"
        "\n"
        "Mit freundlichen Grüßen\n"
        "\n"
        "Ruth Keller\n"
        "\n"
        "-----Ursprüngliche Nachricht-----\n"
        "Von: Tobias Frank <tobias@x.org>\n"
        "Gesendet: Sonntag, 3. März 2024 21:12\n"
        "An: Ruth Keller\n"
        "Betreff: Haushalt des Bürgermeisters\n"
        "\n"
        "Hat der Bürgermeister entschieden? Ich brauche die Stühle im Mai.\n",
        ["Der Haushalt ist bewilligt. Wir bestellen die Stühle."],
    ),
    "forwarded": (
        "Anna Weber <a@x>",
        "Please read this before the meeting.\n"
        "\n"
        "Anna\n"
        "\n"
        "---------- Forwarded message ---------\n"
        "From: Ben Holt <ben@x.org>\n"
        "Date: Sun, Mar 3, 2024 at 8:00 PM\n"
        "Subject: Water damage\n"
        "To: Anna Weber <a@x.org>\n"
        "\n"
        "The cellar is under water. The pump broke on Saturday night.\n"
        "\n"
        "Ben\n",
        ["Please read this before the meeting."],
    ),
    "apple": (
        "Anna Weber <a@x>",
        "The pump is ordered.\n"
        "\n"
        "Sent from my iPhone\n"
        "\n"
        "> On 3 Mar 2024, at 20:00, Ben Holt <ben@x.org> wrote:\n"
        "> \n"
        "> The cellar is under water.\n",
        ["The pump is ordered."],
    ),
    "sig-dashes": (
        "Ben Holt <b@x>",
        "The pump arrived today. It runs well.\n\nCheers,\n\nBen\n\n-- \nBen Holt\nCaretaker\nRiver House\n",
        ["The pump arrived today. It runs well."],
    ),
}
"""Who sends a mail, its body, and what he says in it."""
THREADS = {
    "thread-txt": (
        "From: Tobias Frank <t@x.org>\n"
        "To: Ruth Keller <r@x.org>\n"
        "Date: Mon, 4 Mar 2024 10:00:00 +0000\n"
        "Subject: Budget of the mayor\n"
        "\n"
        "Dear Ruth,\n"
        "\n"
        "has the council decided? I need the chairs by May.\n"
        "\n"
        "Tobias\n"
        "\n"
        "From: Ruth Keller <r@x.org>\n"
        "To: Tobias Frank <t@x.org>\n"
        "Date: Mon, 4 Mar 2024 11:00:00 +0000\n"
        "Subject: Re: Budget of the mayor\n"
        "\n"
        "Dear Tobias,\n"
        "\n"
        "the council has agreed. You may order them.\n"
        "\n"
        "Ruth\n",
        [
            ("Tobias Frank", "Dear Ruth,"),
            ("Tobias Frank", "has the council decided? I need the chairs by May."),
            ("Ruth Keller", "Dear Tobias,"),
            ("Ruth Keller", "the council has agreed. You may order them."),
        ],
    ),
    "thread-outlook": (
        "From: Ruth Keller\n"
        "Sent: Monday, March 4, 2024 11:00 AM\n"
        "To: Tobias Frank\n"
        "Subject: RE: Budget of the mayor\n"
        "\n"
        "The council has agreed. You may order them.\n"
        "\n"
        "Ruth\n"
        "\n"
        "From: Tobias Frank\n"
        "Sent: Monday, March 4, 2024 10:00 AM\n"
        "To: Ruth Keller\n"
        "Subject: Budget of the mayor\n"
        "\n"
        "Has the council decided? I need the chairs by May.\n"
        "\n"
        "Tobias\n",
        [
            ("Ruth Keller", "The council has agreed. You may order them."),
            ("Tobias Frank", "Has the council decided? I need the chairs by May."),
        ],
    ),
    "thread-de": (
        "Von: Ruth Keller\n"
        "Gesendet: Montag, 4. März 2024 11:00\n"
        "An: Tobias Frank\n"
        "Betreff: AW: Haushalt\n"
        "\n"
        "Der Rat hat zugestimmt. Sie können bestellen.\n"
        "\n"
        "Ruth\n"
        "\n"
        "Von: Tobias Frank\n"
        "Gesendet: Montag, 4. März 2024 10:00\n"
        "An: Ruth Keller\n"
        "Betreff: Haushalt\n"
        "\n"
        "Hat der Rat entschieden? Ich brauche die Stühle im Mai.\n"
        "\n"
        "Tobias\n",
        [
            ("Ruth Keller", "Der Rat hat zugestimmt. Sie können bestellen."),
            ("Tobias Frank", "Hat der Rat entschieden? Ich brauche die Stühle im Mai."),
        ],
    ),
    "thread-fr": (
        "De : Ruth Keller\n"
        "Envoyé : lundi 4 mars 2024 11:00\n"
        "À : Tobias Frank\n"
        "Objet : RE: Budget\n"
        "\n"
        "Le conseil est d'accord. Vous pouvez commander.\n"
        "\n"
        "Ruth\n"
        "\n"
        "De : Tobias Frank\n"
        "Envoyé : lundi 4 mars 2024 10:00\n"
        "À : Ruth Keller\n"
        "Objet : Budget\n"
        "\n"
        "Le conseil a-t-il décidé ? Il me faut les chaises en mai.\n"
        "\n"
        "Tobias\n",
        [
            ("Ruth Keller", "Le conseil est d'accord. Vous pouvez commander."),
            ("Tobias Frank", "Le conseil a-t-il décidé ? Il me faut les chaises en mai."),
        ],
    ),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_every_line_of_a_conversation_is_its_speakers(name: str) -> None:
    text, speakers = CONVERSATIONS[name]
    turns = [block for block in document_of(text).blocks if block.kind == "turn"]
    assert [(block.speaker or "").replace(" ", "_") for block in turns] == speakers.split()
    for turn in turns:  # whose words are those between his name and the next one
        assert turn.speaker is not None
        assert f"{turn.speaker}:" not in turn.text
        assert not turn.text.startswith(("/me", "*"))


@pytest.mark.parametrize("name", MAILS)
def test_a_mail_says_what_its_sender_writes(name: str, tmp_path: Path) -> None:
    sender, body, said = MAILS[name]
    file = tmp_path / "a.eml"
    file.write_text(HEAD.format(sender) + TYPE + body, encoding="utf-8")
    document = read(file)
    turns = [(block.speaker, block.text) for block in document.blocks if block.kind == "turn"]
    assert turns == [(sender.partition(" <")[0], text) for text in said]
    assert [block.text for block in document.blocks if block.kind == "heading"] == ["The plan"]
    assert not [unit.text for unit in units_of(document) if "Subject: " in unit.text or "Betreff: " in unit.text]


@pytest.mark.parametrize("name", THREADS)
def test_a_thread_in_a_text_says_who_writes(name: str) -> None:
    text, said = THREADS[name]
    document = document_of(text)
    assert [(block.speaker, block.text) for block in document.blocks if block.kind == "turn"] == said
    assert not any(block.kind == "heading" for block in document.blocks)
    assert not [unit.text for unit in units_of(document) if "mayor" in unit.text or "Objet" in unit.text]


def test_an_answer_above_its_quotation() -> None:
    text = (
        "The council agreed.\n\nRuth\n\nOn Mon, 4 Mar 2024 at 10:00, Tobias <t@x.org> wrote:\n\n> Has it?\n> I ask.\n"
    )
    kinds = [block.kind for block in document_of(text).blocks]
    assert kinds == ["paragraph", "paragraph", "note", "note"]
    assert document_of(text.replace("wrote:", "came.")).blocks[-1].kind == "paragraph"


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("Ruth Keller", "Ruth Keller"),
        ("Keller, Ruth <r@x.org>", "Keller, Ruth"),
        ('"Keller, Ruth" <r@x.org>', "Keller, Ruth"),
        ("r@x.org (Ruth Keller)", "Ruth Keller"),
        ("r@x.org", "r@x.org"),
        ("<r@x.org>", "r@x.org"),
    ],
)
def test_the_name_of_a_sender_is_whole(field: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / "a.eml"
    file.write_text(HEAD.format(field) + TYPE + "The council has agreed to it.\n", encoding="utf-8")
    assert [block.speaker for block in read(file).blocks if block.kind == "turn"] == [name]
