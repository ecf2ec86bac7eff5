"""Questions with the places of their answers, made from data whose licences allow a shipped model to learn from them.

qmsum        what people asked about meetings, and the turns that they marked as relevant
squality     what people asked about stories, and the passages that share most words with their answers
permissive   headings of papers, proposals and standards, and their sections, which are then without them
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from longspan.data.jsonl import read_jsonl
from longspan.data.text.sentences import FUNCTION_WORDS, split_sentences
from longspan_documents.inference.ranking import WordIndex, stems_of
from longspan_documents.questions.kinds import names_of
from longspan_documents.text.blocks import Document
from longspan_documents.text.passages import passages_of
from longspan_documents.text.reading import document_of

Span = tuple[int, int]

NOT_SHIPPED = "nixos_rfcs"
"""The one source of `permissive` that is share-alike."""
MASKED = "Section"
"""What stands in place of a heading that is asked."""
VOTES, FEW = 2, 3
"""Passages answer a question on a story where so many sentences of the answers are nearest to them; at most so many."""

_TAG = re.compile(r"\{\w*\}")
_SPACED_MARK = re.compile(r"\s+([.,?!;:])")


@dataclass(frozen=True)
class Case:
    """A document and what is asked about it.

    Attributes:
        source: where it is from; for `permissive` with its own source.
        document: as it was read.
        questions: each with the characters that answer it.
    """

    source: str
    document: Document
    questions: tuple[tuple[str, tuple[Span, ...]], ...]


def cases(folder: Path, split: str, most: int | None = None) -> list[Case]:
    """The cases of all sources in an order drawn once; of each source at most so many."""
    found = []
    for one in _every(folder, split):
        every = list(one)
        Random(0).shuffle(every)
        found += every[:most]
    Random(0).shuffle(found)
    return found


@cache
def _every(folder: Path, split: str) -> list[list[Case]]:
    """All cases of each source, read once."""
    return [list(source(folder, split)) for source in (qmsum, squality, permissive)]


def qmsum(folder: Path, split: str) -> Iterator[Case]:
    """Meetings; of a query every marked stretch of turns."""
    for row in _rows(folder / "qmsum", split):
        lines, places, done = [], [], 0
        for turn in row["meeting_transcripts"]:
            words = _SPACED_MARK.sub(r"\1", " ".join(_TAG.sub(" ", turn["content"]).split()))
            line = f"{turn['speaker']}: {words}\n" if words else ""
            places.append((done, done + len(line.rstrip())))
            lines.append(line)
            done += len(line)
        asked = []
        for query in row["specific_query_list"]:
            spans = [(places[int(first)][0], places[int(last)][1]) for first, last in query["relevant_text_span"]]
            if any(start < end for start, end in spans):
                asked.append((query["query"], tuple(spans)))
        yield Case("qmsum", document_of("".join(lines)), tuple(asked))


def squality(folder: Path, split: str) -> Iterator[Case]:
    """Stories; the first question asks for the plot, which every passage answers, and is left out."""
    for row in _rows(folder / "squality", split):
        document = document_of(row["document"])
        passages = passages_of(document)
        index = WordIndex([one.text for one in passages], "en")
        asked = []
        for question in row["questions"][1:]:
            votes: Counter[int] = Counter()
            for response in question["responses"]:
                for sentence in split_sentences(response["response_text"], "en"):
                    stems = [stem for stem in stems_of(sentence.text, "en") if stem not in FUNCTION_WORDS]
                    votes[int(index.scores(stems).argmax())] += 1
            chosen = [number for number, count in votes.most_common(FEW) if count >= VOTES]
            if chosen:
                asked.append((question["question_text"], tuple((passages[n].start, passages[n].end) for n in chosen)))
        yield Case("squality", document, tuple(asked))


def permissive(folder: Path, split: str, most: int = 2) -> Iterator[Case]:
    """Papers and proposals; at most `most` telling headings of each, longer ones first, are asked and masked.

    A heading tells something where no other document has it, and three of its words are of some length.
    """
    paths = [one for one in sorted((folder / "permissive").glob(f"{split}-*.jsonl.xz")) if NOT_SHIPPED not in one.name]
    rows = [row for path in paths for _, row in read_jsonl(path)]
    counts = Counter((section["title"] or "").casefold() for row in rows for section in row["sections"])
    for row in rows:
        telling = [
            index
            for index, section in enumerate(row["sections"])
            if counts[(section["title"] or "").casefold()] == 1 and _telling(section)
        ]
        masked = sorted(telling, key=lambda index: -len(row["sections"][index]["title"]))[:most]
        if masked and len(row["sections"]) > 2 * len(masked):
            yield _masked(row, masked)


def _telling(section: dict[str, Any]) -> bool:
    words = [word for word in re.findall(r"[A-Za-z]{4,}", section["title"]) if word.lower() not in FUNCTION_WORDS]
    return len(words) >= 3 and 40 <= len(section["text"].split()) <= 800


def _masked(row: dict[str, Any], masked: Sequence[int]) -> Case:
    """The document without the headings that are asked."""
    text = ""
    asked = []
    for index, section in enumerate(row["sections"]):
        title = MASKED if index in masked else section["title"]
        text += f"## {title}\n\n" if title else ""
        start = len(text)
        text += section["text"].strip()
        if index in masked:
            asked.append((section["title"], ((start, len(text)),)))
        text += "\n\n"
    return Case(f"permissive/{row['source']}", document_of(text), tuple(asked))


def with_another_name(question: str, text: str, names: Sequence[str], seed: int) -> str | None:
    """The question with one of its names, or numbers, replaced by another that the text of its document lacks, so that
    this does not answer it; None where there is none to replace, or none to take."""
    draw = Random(seed)
    own, lower = sorted(names_of(question)), text.lower()
    if not own:
        return None
    gone = draw.choice(own)
    others = [name for name in names if name[0].isdigit() == gone[0].isdigit() and name not in lower]
    if not others:
        return None
    other = draw.choice(others)
    other = other[0].upper() + other[1:]
    return re.sub(rf"(?<!\w){re.escape(gone)}(?!\w)", lambda _: other, question, count=1, flags=re.IGNORECASE)


@cache
def _rows(folder: Path, split: str) -> list[dict[str, Any]]:
    return [row for _, row in read_jsonl(folder / f"{split}.jsonl.gz")]
