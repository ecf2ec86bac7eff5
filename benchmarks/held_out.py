"""Documents that the bundled encoder was not trained on, and what belongs together in them: for `embed.py`.

Validation splits of the data folder, of the sources whose training splits taught it. Sentences stand in the order of
the document, without its headings, since these are asked for.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tools" / "bundled"))

from answer_questions import NOT_SHIPPED, qmsum  # pyright: ignore[reportMissingImports]

from longspan.data.jsonl import read_jsonl
from longspan.data.text.sentences import split_sentences, split_words
from longspan_documents.inference.ranking import FUNCTION_WORDS
from longspan_documents.text.passages import passages_of
from longspan_documents.text.reading import document_of, sentences_of

PAPERS = "pmc_cc_by"
OF_A_SOURCE = 8
"""Proposals of each source at most."""
OF_A_NOVEL = 400
"""Sentences of a novel, from its middle."""


@dataclass(frozen=True, eq=False, kw_only=True)
class HeldOut:
    """One document.

    Attributes:
        kind: papers, proposals, meetings, stories or novels.
        sentences: in order.
        parts: its sections or passages: first sentence and end of each.
        asked: questions or headings, each with the indices of the parts that it belongs to.
        abstract: its sentences.
        loose: what else belongs to the document, by name.
    """

    kind: str
    sentences: list[str]
    parts: Sequence[tuple[int, int]] = ()
    asked: Sequence[tuple[str, frozenset[int]]] = ()
    abstract: Sequence[str] = ()
    loose: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def texts_of_parts(self) -> list[str]:
        """Each part as one text."""
        return [" ".join(self.sentences[first:end]) for first, end in self.parts]


def held_out(data: Path, most: int | None = None) -> list[HeldOut]:
    """Every document, or of each kind at most so many."""
    found = []
    for documents in (papers(data), proposals(data), meetings(data), stories(data), novels(data)):
        found += [one for one, _ in zip(documents, range(10**9 if most is None else most), strict=False)]
    return found


def papers(data: Path) -> Iterator[HeldOut]:
    """Articles with the abstracts that their authors wrote."""
    rows = _rows(data / "permissive" / f"validation-{PAPERS}.jsonl.xz")
    return _with_abstracts("papers", rows)


def proposals(data: Path) -> Iterator[HeldOut]:
    """Proposals and standards of programming languages and protocols, with theirs."""
    paths = sorted((data / "permissive").glob("validation-*.jsonl.xz"))
    chosen = [path for path in paths if PAPERS not in path.name and NOT_SHIPPED not in path.name]
    return _with_abstracts("proposals", [row for path in chosen for row in _rows(path)[:OF_A_SOURCE]])


def _with_abstracts(kind: str, rows: Sequence[dict[str, Any]]) -> Iterator[HeldOut]:
    counts = Counter(
        title.casefold() for row in rows for title in {section["title"] or "" for section in row["sections"]}
    )
    for row in rows:
        sentences: list[str] = []
        parts, asked = [], []
        for section in row["sections"]:
            first = len(sentences)
            sentences += _sentences(section["text"])
            if len(sentences) == first:
                continue
            title = section["title"] or ""
            if counts[title.casefold()] == 1 and _tells(title):
                asked.append((title, frozenset([len(parts)])))
            parts.append((first, len(sentences)))
        headings = [section["title"] for section in row["sections"] if section["title"]]
        loose = {"titles and headings": [row["title"], *headings], "abstracts": _sentences(row["abstract"])}
        yield HeldOut(
            kind=kind,
            sentences=sentences,
            parts=parts,
            asked=asked if len(parts) > 2 else (),
            abstract=loose["abstracts"],
            loose=loose,
        )


def _tells(title: str) -> bool:
    """Whether a heading has two words that say something; "Results & discussion" of one paper only does too."""
    return sum(len(word) > 3 and word not in FUNCTION_WORDS for word in split_words(title)) >= 2


def meetings(data: Path) -> Iterator[HeldOut]:
    """Meetings, and what people asked about them; a passage is right that overlaps the turns that they marked."""
    for case in qmsum(data, "validation"):
        passages = passages_of(case.document)
        asked = []
        for question, places in case.questions:
            right = [
                number
                for number, one in enumerate(passages)
                if any(one.start < end and start < one.end for start, end in places)
            ]
            if 0 < len(right) < len(passages):
                asked.append((question, frozenset(right)))
        yield HeldOut(
            kind="meetings",
            sentences=[sentence.text for one in passages for sentence in one.sentences],
            parts=[(one.first, one.first + len(one.sentences)) for one in passages],
            asked=asked,
            loose={"questions": [question for question, _ in case.questions]},
        )


def stories(data: Path) -> Iterator[HeldOut]:
    """Short stories, and what people asked about them."""
    for row in _rows(data / "squality" / "validation.jsonl.gz"):
        questions = [question["question_text"] for question in row["questions"]]
        yield HeldOut(kind="stories", sentences=_sentences_of(row["document"]), loose={"questions": questions})


def novels(data: Path) -> Iterator[HeldOut]:
    """A stretch of each novel."""
    for row in _rows(data / "pg_novels" / "validation.jsonl.gz"):
        sentences = _sentences_of(row["text"])
        middle = max(0, len(sentences) // 2 - OF_A_NOVEL // 2)
        stretch = sentences[middle : middle + OF_A_NOVEL]
        yield HeldOut(kind="novels", sentences=stretch, loose={"the same sentences": stretch})


def _rows(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_jsonl(path)]


def _sentences(text: str) -> list[str]:
    return [" ".join(one.text.split()) for one in split_sentences(text, "en") if one.text.strip()]


def _sentences_of(text: str) -> list[str]:
    """As `longspan embed` reads a plain text."""
    return [sentence.text for sentence in sentences_of(document_of(text), "en")]
