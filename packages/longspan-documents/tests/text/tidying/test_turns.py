"""Who says what: several conventions of transcripts, and texts that only look like them."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from longspan_documents.text.reading import document_of, sentences_of

needs_data = pytest.mark.skipif(not os.environ.get("LONGSPAN_DATA"), reason="LONGSPAN_DATA is not set")

CONVENTIONS = {
    "times before names": (
        """\
[00:00:05] Speaker 1: Welcome to the show.
[00:00:15] Speaker 2: Thanks for having me.
[00:00:20] Speaker 1: So, are they slow? I mean: really?
[00:01:25] Speaker 2: Really slow (laughter).
""",
        [
            "Speaker 1|Welcome to the show.",
            "Speaker 2|Thanks for having me.",
            "Speaker 1|So, are they slow?",
            "Speaker 1|I mean: really?",
            "Speaker 2|Really slow.",
        ],
    ),
    "roles behind names": (
        """\
JANE ROE (CHAIR): The meeting is open now.

BOB DOE (CLERK): Thank you, madam chair.

JANE ROE (CHAIR): We begin with item one.

BOB DOE (CLERK): It is about snails.
""",
        [
            "JANE ROE|The meeting is open now.",
            "BOB DOE|Thank you, madam chair.",
            "JANE ROE|We begin with item one.",
            "BOB DOE|It is about snails.",
        ],
    ),
    "a committee of the Congress": (
        """\
The CHAIRMAN. The committee will come to order. We thank
them both.
    Mr. Smith, begin.
Mr. SMITH. Snails are slow.
The CHAIRMAN. How slow?
Mr. SMITH. Very slow. Note: this was measured.
""",
        [
            "The CHAIRMAN|The committee will come to order.",
            "The CHAIRMAN|We thank them both.",
            "The CHAIRMAN|Mr. Smith, begin.",
            "Mr. SMITH|Snails are slow.",
            "The CHAIRMAN|How slow?",
            "Mr. SMITH|Very slow.",
            "Mr. SMITH|Note: this was measured.",
        ],
    ),
    "names on lines of their own": (
        """\
Operator

Good day.

Jane Roe -- Chief Executive

Revenue grew.

It grew twice.

John Doe -- Analyst

Why?

Jane Roe -- Chief Executive

We sold more.

John Doe -- Analyst

Thanks.

Operator

Goodbye.
""",
        [
            "Operator|Good day.",
            "Jane Roe|Revenue grew.",
            "Jane Roe|It grew twice.",
            "John Doe|Why?",
            "Jane Roe|We sold more.",
            "John Doe|Thanks.",
            "Operator|Goodbye.",
        ],
    ),
    "a play": (
        """\
First Citizen:
Before we proceed any further,
hear me speak.

All:
Speak, speak.

First Citizen:
Resolved?

All:
Resolved.

First Citizen:
Good.

All:
Good.

MENENIUS:
What work's in hand?
""",
        [
            "First Citizen|Before we proceed any further, hear me speak.",
            "All|Speak, speak.",
            "First Citizen|Resolved?",
            "All|Resolved.",
            "First Citizen|Good.",
            "All|Good.",
            "MENENIUS|What work's in hand?",
        ],
    ),
    "a chat": (
        """\
12:01 <ann> is it on?
12:02 <bob> it is on.
12:03 <ann> since when?
12:04 <bob> since noon.
""",
        [
            "ann|is it on?",
            "bob|it is on.",
            "ann|since when?",
            "bob|since noon.",
        ],
    ),
}


@pytest.mark.parametrize("case", CONVENTIONS)
def test_conventions(case: str) -> None:
    text, expected = CONVENTIONS[case]
    document = document_of(text)
    sentences = sentences_of(document)
    assert [f"{sentence.speaker}|{sentence.text}" for sentence in sentences] == expected
    for sentence in sentences:
        assert text[sentence.start : sentence.end].split()[0] == sentence.text.split()[0]


NO_DIALOGUES = {
    "notes": "Note: the machine is hot, so do not touch it.\n\nWarning: it is cold inside.\n\n" * 4,
    "fields": "Name: Ann\nAge: 30\nTown: Rome\n\nName: Bob\nAge: 40\nTown: Oslo\n",
    "a log of changes": "Added: a fine new option.\nFixed: an old mistake.\nAdded: another one.\nFixed: one more.\n"
    * 2,
    "arguments": "Args:\n    path: a file.\n\nReturns:\n    A document.\n\n" * 6,
    "one speech quoted in prose": "A long story about snails follows here. It has no end at all.\n\n" * 20
    + "Ann: Hello there.\nBob: Hello to you.\nAnn: Goodbye then.\nBob: Goodbye to you.\n\n"
    + "The story goes on for as long as snails do. Nobody speaks in it any more.\n\n" * 20,
}


@pytest.mark.parametrize("case", NO_DIALOGUES)
def test_what_only_looks_like_a_dialogue(case: str) -> None:
    document = document_of(NO_DIALOGUES[case])
    assert not [block.text for block in document.blocks if block.kind == "turn"]


def test_corpus_tags_and_stage_notes_are_no_words() -> None:
    text = "Ann: {vocalsound} Um {disfmarker} yes .\nBob: {gap}\nAnn: OK (laughter) then .\nBob: Fine .\n"
    document = document_of(text)
    assert [(block.kind, block.text) for block in document.blocks] == [
        ("turn", "Um yes ."),
        ("boilerplate", ""),
        ("turn", "OK then ."),
        ("turn", "Fine ."),
    ]
    sentence = sentences_of(document)[0]
    assert text[sentence.start : sentence.end] == "Um {disfmarker} yes ."


@needs_data
@pytest.mark.parametrize("name", ["qmsum", "crd3"])
def test_real_transcripts_keep_every_turn_and_its_speaker(name: str) -> None:
    path = Path(os.environ["LONGSPAN_DATA"]) / name / "validation.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        record = json.loads(next(lines))
    if name == "qmsum":
        turns = [(turn["speaker"], turn["content"]) for turn in record["meeting_transcripts"]]
    else:
        turns = [(" and ".join(turn["NAMES"]), " ".join(turn["UTTERANCES"])) for turn in record["TURNS"]]
    turns = [(speaker, " ".join(words.split())) for speaker, words in turns if words.strip()]
    document = document_of("\n".join(f"{speaker}: {words}" for speaker, words in turns))
    assert [block.speaker for block in document.blocks] == [speaker for speaker, _ in turns]
    untagged = [words for _, words in turns if "{" not in words and "(" not in words and "[" not in words]
    assert set(untagged) <= {block.text for block in document.blocks}
