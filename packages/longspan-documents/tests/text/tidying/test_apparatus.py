"""Code, tables, captions, references, tables of contents: kept apart from the sentences."""

from __future__ import annotations

import pytest

from longspan_documents.text.reading import document_of, sentences_of

PROSE = "The snail went on for a long while, and nobody saw it on its way to the wall.\nIt was slow.\n\n"
KINDS = {
    "code": [
        "    x = weigh(snail)\n    print(x)\n",
        "$ longspan summarize paper.pdf\n",
        "```python\nwords are = code\n\nhere too\n```\n",
        "if (slow) {\n  wait();\n}\n",
        "   with SNAIL as NAME:\n       SUITE\n",
        "   async with (\n       SNAIL() as NAME,\n   ):\n       SUITE\n",
        "   for i in range(10):\n       crawl(i)\n       i = 5             # this will not affect the loop\n"
        "                         # because i is the next\n                         # index in the range\n",
        "   try:\n       SUITE\n   except Slow:\n       SUITE2\n",
        "deadbeef" * 40 + "\n",
        ".. _wall: https://example.org/wall\n.. _snail: https://example.org/snail\n",
        ".. image:: https://example.org/badge.svg\n   :target: https://example.org\n   :alt: passing\n",
        "|build| |cover|\n",
        "[![build](https://example.org/b.svg)](https://example.org/b) [![c](https://example.org/c.svg)](https://example.org)\n",
    ],
    "table": [
        "| snail | speed |\n|---|---|\n| one | 3 |\n",
        "+----+----+\n| a  | b  |\n+----+----+\n",
        "Method     Error    Time\nOurs       0.1      3.2\nTheirs     0.2      4.5\n",
        "a\tb\tc\n1\t2\t3\n4\t5\t6\n",
    ],
    "caption": [
        "Figure 3: The snail on its wall. It is slow.\n",
        "Table 2. Speeds of all snails.\n",
        "Fig. 4a | The wall.\n",
        "[Illustration: The snail looks up.]\n",
        "Abbildung 2: Die Schnecke.\n",
    ],
    "boilerplate": [
        "1 The wall .......... 3\n2 The way ........... 17\n",
        "The wall . . . . . . . . . 3\nThe way . . . . . . . . . 17\n",
        "-----\n",
        "* * * *\n",
    ],
}
PROSE_ALONE = [
    "Figure 3 shows that the snail is slow, and so does the table.",
    "Table 2 lists the snails; it is long.",
    "    The snail, as an old book says, is slow; it does not mind.",
    "(a) the snail and all its heirs, as long as the wall stands; and",
    "The quote ... went on ... for ever and was 3",
]


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in KINDS.items() for text in texts])
def test_kinds(kind: str, text: str) -> None:
    document = document_of(f"{PROSE}{text}\n{PROSE}")
    assert {block.kind for block in document.blocks[1:-1]} == {kind}
    assert len(sentences_of(document)) == 4


@pytest.mark.parametrize("text", PROSE_ALONE)
def test_prose_stays(text: str) -> None:
    kinds = [block.kind for block in document_of(f"{PROSE}{text}\n\n{PROSE}").blocks]
    assert kinds in (["paragraph"] * 3, ["paragraph", "item", "paragraph"])


def test_references_end_with_the_next_section() -> None:
    references = (
        "References\n\n[1] A. Smith and B. Jones. Garden snails at night. Journal of Snails, 12(3):4-9, 2010.\n\n"
        "[2] C. Doe. A camera in the dark. Proc. of Cameras, pp. 1-9.\n\nE. Roe. Walls, unpublished.\n\n"
        "[3] D. Poe. Walls. https://walls.example, 2011.\n\nAppendix A\n\n"
    )
    document = document_of(PROSE * 2 + references + PROSE)
    assert [block.kind for block in document.blocks[2:]] == ["heading", *["references"] * 4, "heading", "paragraph"]


def test_prose_below_a_heading_that_speaks_of_references_stays() -> None:
    document = document_of(f"{PROSE}REFERENCES\n\n{PROSE * 4}")
    assert len(sentences_of(document)) == 10


def test_contents_end_where_the_text_begins() -> None:
    contents = "Contents\n\nThe wall\nThe way\nThe snail\n\n"
    document = document_of(f"THE SNAIL\n\n{contents}{PROSE * 6}")
    assert [block.kind for block in document.blocks[:4]] == ["heading", "boilerplate", "boilerplate", "paragraph"]
    assert len(sentences_of(document)) == 12


def test_numbers_of_paragraphs_are_no_words() -> None:
    document = document_of(f"{PROSE}[0012]    The present invention is a wall.\n")
    assert document.blocks[1].text == "The present invention is a wall."


def test_a_document_of_nothing_else_is_read_as_it_is() -> None:
    document = document_of("| snail | speed |\n| one | 3 |\n")
    assert [block.kind for block in document.blocks] == ["paragraph"]


MANUAL = """SNAIL(1)                    Garden Manual                    SNAIL(1)

NAME
       snail - go slowly

SYNOPSIS
       snail [-s] [--wall WALL] FILE
       snail --list [--all]

DESCRIPTION
       The snail goes to the wall and looks for infor\u2010
       mation on it. It is slow.

OPTIONS
       -s     Be slower than it was before on any wall.

garden 1.2                   2020-01-01                      SNAIL(1)
"""


def test_a_manual_page_has_headings_usage_and_no_header() -> None:
    document = document_of(MANUAL)
    assert [block.text for block in document.blocks if block.kind == "heading"] == [
        *("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"),
    ]
    kinds = {block.text.split()[0]: block.kind for block in document.blocks}
    assert kinds["SNAIL(1)"] == kinds["garden"] == "boilerplate"
    texts = [sentence.text for sentence in sentences_of(document)]
    assert texts[:2] == ["snail - go slowly.", "The snail goes to the wall and looks for information on it."]
    assert not any("--list" in text for text in texts)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("apt - command-line interface", "apt - command-line interface."),
        ("snail, wall \u2014 go slowly", "snail, wall \u2014 go slowly."),
        ("snail - go slowly, and\n       stop", "snail - go slowly, and stop."),
        ("snail - go slowly.", "snail - go slowly."),
        ("Ann Smith", "Ann Smith"),
    ],
)
def test_the_line_under_name_of_a_manual_page_is_a_sentence(line: str, sentence: str) -> None:
    text = MANUAL.replace("snail - go slowly", line)
    found = sentences_of(document_of(text))[0]
    assert found.text == sentence
    assert " ".join(text[found.start : found.end].split()) == " ".join(line.split())


def test_only_manual_pages_are_about_what_stands_under_name() -> None:
    text = MANUAL.replace("SYNOPSIS", "WALLS").replace("DESCRIPTION", "SNAILS")
    assert sentences_of(document_of(text))[0].text == "snail - go slowly"


def test_links_of_restructured_text_leave_their_words() -> None:
    text = "The `slow snail <https://example.org/snail>`_ goes to a `wall`_, as ``snail_go`` says.\n"
    (sentence,) = sentences_of(document_of(text))
    assert sentence.text == "The slow snail goes to a wall, as ``snail_go`` says."
    assert text[sentence.start : sentence.end] == text.strip()


def test_pictures_of_characters_are_no_headings() -> None:
    art = " ____  _   _    _    ___ _\n/ ___|| \\ | |  / \\  |_ _| |\n\\___ \\|  \\| | / _ \\  | || |\n=======\n"
    shouted = "=| S |== N ==| A |==/ I \\==| L |=="
    document = document_of(f"{art}\n{shouted}\n\n{PROSE * 4}")
    assert not [block.text for block in document.blocks if block.kind == "heading"]


FORMALITIES = [
    "ACM Reference Format: Ann Author. 2020. Slow Snails. In Proceedings of the Wall. 4 pages. https://doi.org/1/2\n",
    "Permission to make digital or hard copies of all or part of this work for personal or classroom use is granted\n"
    "without fee provided that copies are not made for profit. To copy otherwise requires prior permission.\n",
    "Snail and the snail logo are registered trademarks of Slow Things Ltd.\n",
    "This presentation contains certain forward-looking statements, which may turn out to be wrong.\n",
]


@pytest.mark.parametrize("text", FORMALITIES)
def test_what_only_lawyers_ask_for_is_boilerplate(text: str) -> None:
    document = document_of(f"{PROSE * 9}{text}\n{PROSE * 9}")
    assert [block.text[:9] for block in document.blocks if block.kind == "boilerplate"] == [text[:9]]
