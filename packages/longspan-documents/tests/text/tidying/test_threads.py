"""Threads of mails in a text: each mail is its sender's, its fields answer nothing."""

from __future__ import annotations

from longspan_documents.text.reading import document_of, sentences_of

THREAD = """From: Tobias Holm <tobias@example.org>
To: Mayor of Example <mayor@example.org>
Date: Mon, 3 May 2021 10:00
Subject: The weir

The gate is open since noon.

- a lamp is missing

Tobias

From: Ruth Lind <ruth@example.org>
To: Tobias Holm <tobias@example.org>
Date: Mon, 3 May 2021 11:00
Subject: Re: The weir

> The gate is open since noon.

I will close it at night.

Best regards,
Ruth
"""


def test_each_mail_is_its_senders() -> None:
    document = document_of(THREAD)
    assert [(one.speaker, one.text) for one in sentences_of(document)] == [
        ("Tobias Holm", "The gate is open since noon."),
        ("Tobias Holm", "a lamp is missing"),
        ("Ruth Lind", "I will close it at night."),
    ]
    assert not [block for block in document.blocks if block.kind == "heading"]
    assert [block.kind for block in document.blocks if "Mayor of Example" in block.text] == ["boilerplate"]
    notes = [block.text for block in document.blocks if block.kind == "note"]
    assert notes == ["Tobias", "> The gate is open since noon.", "Best regards,\nRuth"]


def test_a_memorandum_keeps_its_paragraphs() -> None:
    text = "To: All\nFrom: The keeper\nDate: 3 May 2021\nSubject: Gates\n\nThe gate is open. Close it at night.\n"
    assert [(one.speaker, one.text) for one in sentences_of(document_of(text))] == [
        (None, "The gate is open."),
        (None, "Close it at night."),
    ]


def test_two_fields_make_no_mail() -> None:
    text = "From: the river\nTo: the sea\n\nThe water flows.\n\nFrom: the sea\nTo: the sky\n\nIt rises.\n"
    assert {one.speaker for one in sentences_of(document_of(text))} == {None}
