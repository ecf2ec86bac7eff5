"""What others put around a document: Project Gutenberg's frames, credits, licences, banners."""

from __future__ import annotations

import pytest

from longspan_documents.text.reading import document_of, sentences_of

STORY = (
    "Once upon a time there was a snail that lived at the foot of a wall.\n\n"
    "It looked up every morning. The wall was high, and the snail was slow.\n\n"
    "One day it began to climb. It was evening before it had reached the first stone.\n\n"
)
SENTENCES = [
    "Once upon a time there was a snail that lived at the foot of a wall.",
    "It looked up every morning.",
    "The wall was high, and the snail was slow.",
    "One day it began to climb.",
    "It was evening before it had reached the first stone.",
]
SMALL_PRINT = (
    "We produce about two million dollars for each hour we work.  Project Gutenberg-tm.\n\n"
    "Project Gutenberg is here.\n\n"
)
FRAMED = {
    "new": (
        "The Project Gutenberg eBook of The Snail\n\nThis ebook is for the use of anyone anywhere.\n\n"
        "Title: The Snail\n\n"
        "*** START OF THE PROJECT GUTENBERG EBOOK THE SNAIL ***\n\nProduced by A. Typist and the Online Distributed\n"
        "Proofreading Team at https://www.pgdp.net\n\n",
        "*** END OF THE PROJECT GUTENBERG EBOOK THE SNAIL ***\n\nUpdated editions will replace the previous one.\n",
    ),
    "old": (
        "**The Project Gutenberg Etext of The Snail**\n\nCopyright laws are changing all over the world.\n\n"
        "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS OF PROJECT GUTENBERG*Ver.04.29.93*END*\n\n",
        "End of The Project Gutenberg Etext of The Snail\n",
    ),
    "French": (
        "The Project Gutenberg EBook of L'Escargot\n\n*** START OF THIS PROJECT GUTENBERG EBOOK L'ESCARGOT ***\n\n",
        f"Fin du Project Gutenberg EBook de L'Escargot, par Personne\n\n{SMALL_PRINT}",
    ),
    "German": ("", f"Ende dieses Projekt Gutenberg Etextes Die Schnecke\n\n{SMALL_PRINT}"),
    "Finnish": ("", f"Project Gutenbergin Etana loppu\n\n{SMALL_PRINT}"),
    "none": ("", ""),
}


@pytest.mark.parametrize("case", FRAMED)
def test_only_the_story_is_read(case: str) -> None:
    head, foot = FRAMED[case]
    text = head + STORY * 3 + foot
    found = [sentence.text for sentence in sentences_of(document_of(text))]
    assert found == SENTENCES * 3
    assert len(sentences_of(document_of(text, raw=True))) > len(found) - (case == "none")


def test_a_text_that_mentions_gutenberg_stays() -> None:
    text = STORY + "Books of Project Gutenberg are free. The snail read them all.\n\n" + STORY
    assert len(sentences_of(document_of(text))) == 2 * len(SENTENCES) + 2


def test_notes_of_transcribers_and_banners_go() -> None:
    note = "[Transcriber's Note: This etext was produced from Planet Stories Winter 1948.]\n\n"
    banner = "We use cookies to make this site work. By continuing you accept our privacy policy.\n\n"
    found = document_of(note + banner + STORY * 2)
    assert [block.kind for block in found.blocks[:3]] == ["boilerplate", "boilerplate", "paragraph"]
    assert [sentence.text for sentence in sentences_of(found)] == SENTENCES * 2


def test_copyright_lines_and_licences_go() -> None:
    lines = (
        "Copyright (c) 2019, 2020 The Authors. All rights reserved.\n\n",
        'Licensed under the Apache License, Version 2.0 (the "License"); you may not use this file otherwise.\n\n',
        "This document is placed in the public domain or under the CC0-1.0-Universal license.\n\n",
    )
    document = document_of(STORY * 4 + "".join(lines))
    assert [sentence.text for sentence in sentences_of(document)] == SENTENCES * 4


def test_a_document_about_licences_stays() -> None:
    text = "The programs are under the following licenses.\n\n" + "Copyright (C) 1993 by Somebody Else.\n\n" * 12
    assert len(sentences_of(document_of(text))) == 13
    talk = "The old copyright of 1993 was sold. Creative Commons had not been thought of when the snail wrote. " * 4
    assert len(sentences_of(document_of(STORY + talk))) == len(SENTENCES) + 8


def test_a_page_about_cookies_stays() -> None:
    text = "Cookies are baked in an oven for ten minutes.\n\n" * 30
    assert len(sentences_of(document_of(text))) == 30
