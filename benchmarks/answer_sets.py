"""Questions that nothing of the package was fitted on, each with the places of its answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tools" / "bundled"), str(ROOT / "benchmarks" / "questions")]

from answer_questions import Case, Span, permissive, qmsum, squality
from answer_weights import Asked as Asked
from answer_weights import asked_of_cases as asked_of_cases
from answer_weights import by_one_encoder as by_one_encoder
from answer_weights import holds as holds
from answer_weights import looked_at as looked_at
from answer_weights import save as save
from answer_weights import saved as saved
from answer_weights import without_answer as without_answer
from natural import QUESTIONS, REASONS, natural_questions
from natural import SHORT as SHORT

from longspan.data.jsonl import read_jsonl
from longspan_documents.text.reading import document_of
from longspan_papers.natural_questions.reading import read_questions

AMONG_THE_SIXTY = {"contract": 10, "page": 15}
"""The row of the contracts, and that of Natural Questions, on whose texts some of the sixty questions are."""
UNLIKE_QUESTIONS = ("Document Name", "Parties")
"""Clauses of a contract that are looked up by their form."""


def natural(data: Path, file: Path = QUESTIONS) -> Iterator[Case]:
    """The questions of `benchmarks/questions`."""
    texts, questions = natural_questions(data, file)
    for name, text in texts.items():
        asked = tuple((one.question, one.places) for one in questions if one.document == name)
        yield Case(name, document_of(text), asked)


def reasons(data: Path, part: str) -> Iterator[Case]:
    """The questions for reasons, ways and definitions of one part."""
    texts, questions = natural_questions(data, REASONS)
    for name, text in texts.items():
        asked = tuple((one.question, one.places) for one in questions if one.document == name and one.part == part)
        if asked:
            yield Case(name, document_of(text), asked)


def annotated(source: str) -> Iterator[Case]:
    """Rows of Natural Questions or TyDi QA that have an answer: short answers, else the passage.

    Of Natural Questions both splits but the page that some of the sixty are on; nothing here was trained on either.
    """
    rows = list(read_questions(source, split="train"))
    if source == "natural-questions":
        taken = rows[AMONG_THE_SIXTY["page"]].text
        rows = [row for row in [*rows, *read_questions(source, split="validation")] if row.text != taken]
    pages: dict[str, list[tuple[str, tuple[Span, ...]]]] = {}
    for row in rows:
        spans = [span for one in row.annotations for span in one.short]
        chosen = [one.candidate for one in row.annotations if one.candidate is not None]
        spans = spans or [row.candidates[index].span for index in chosen]
        if spans:
            pages.setdefault(row.text, []).append((row.question, tuple((one.start, one.end) for one in spans)))
    for text, asked in pages.items():
        yield Case(source, document_of(text), tuple(asked))


def contracts(data: Path) -> Iterator[Case]:
    """Contracts and the clauses that lawyers look for, asked as CUAD's guide puts it, where the clause stands in it."""
    for index, (_, row) in enumerate(read_jsonl(data / "leval_subset" / "legal_contract_qa.jsonl.gz")):
        asked = []
        for instruction, clause in zip(row["instructions"], row["outputs"], strict=True):
            place = row["input"].find(clause.strip())
            if place >= 0 and not any(name in instruction for name in UNLIKE_QUESTIONS):
                asked.append((instruction.split("Details:")[1].strip(), ((place, place + len(clause.strip())),)))
        if index != AMONG_THE_SIXTY["contract"] and asked:
            yield Case("contracts", document_of(row["input"]), tuple(asked))


def hotpotqa(data: Path) -> Iterator[Case]:
    """Ten paragraphs and a question; each of its supporting sentences answers."""
    for _, row in read_jsonl(data / "hotpotqa" / "sample.jsonl.gz"):
        text = ""
        places = {}
        for title, sentences in row["context"]:
            text += f"## {title}\n\n"
            for index, sentence in enumerate(sentences):
                places[title, index] = (len(text), len(text) + len(sentence))
                text += sentence
            text += "\n\n"
        spans = tuple(places[title, index] for title, index in row["supporting_facts"])
        yield Case("HotpotQA", document_of(text), ((row["question"], spans),))


def stories(data: Path) -> Iterator[Case]:
    """What people asked about the stories of SQuALITY's validation split."""
    return squality(data, "validation")


def sets(data: Path) -> dict[str, tuple[Callable[[], Iterator[Case]], bool]]:
    """Each kind of question, and whether questions of other documents are asked too."""
    return {
        "meetings": (lambda: qmsum(data, "validation"), True),
        "proposals and papers": (lambda: permissive(data, "validation"), True),
        "other kinds": (lambda: natural(data), False),
        "contracts": (lambda: contracts(data), False),
        "HotpotQA": (lambda: hotpotqa(data), False),
        "Wikipedia": (lambda: annotated("natural-questions"), False),
        "TyDi QA": (lambda: annotated("tydiqa"), False),
    }
