"""Multi-hop questions in the format of HotpotQA's distractor setting (Yang et al. 2018).

- `read_multi_hop("hotpotqa", "validation")`: the sample of the data folder; or a folder with the official files
- `read_multi_hop("hotpot_dev_distractor_v1.json")`: an official file, one JSON array; `.gz` and `.xz` too
- `read_multi_hop("rows.jsonl")`: the same objects, one per line
- `read_multi_hop("synthetic", limit=64)`: generated, see `longspan_papers.hotpotqa.rows`

A record is `{"_id", "question", "context": [[title, [sentence, …]], …], "answer", "supporting_facts": [[title, sentence
index], …]}`; other fields are ignored. Sentences after the first begin with a space.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from longspan.characters import check_characters, counted
from longspan.data.fields import (
    Record,
    Skipped,
    check_on_error,
    check_text,
    kind_of,
    list_of,
    name_of,
    parsed,
    value_of,
)
from longspan.data.jsonl import read_json, read_jsonl
from longspan.data.sources import DataSet, Kind, read
from longspan.errors import InputError
from longspan_papers.hotpotqa.rows import Fact, HopRow, Paragraph, two_step_rows

logger = logging.getLogger(f"longspan.{__name__}")

FORMAT = "give a file in HotpotQA's format, a JSON array of questions, or one question per line named .jsonl"

MULTI_HOP = Kind(
    row=HopRow,
    named={"hotpotqa-sample": DataSet.sample("hotpotqa/sample.jsonl.gz")},
    made_up=lambda count, seed: two_step_rows(16 if count is None else count, seed=seed, paragraphs=4, fillers=1),
    suffixes=("json", "jsonl"),
)
"""The data source of multi-hop questions."""


def read_multi_hop(
    data: str | Path | Sequence[str | Path],
    split: str = "train",
    limit: int | None = None,
    *,
    on_error: str = "raise",
    labelled: bool = True,
) -> Iterator[HopRow]:
    """Yields questions with their paragraphs; arguments and errors as in `read_questions`.

    Annotations that refer to missing paragraphs or sentences cannot be learned, but the official files contain and
    score such questions: they are kept, and their number is logged once per file. With `labelled=False`, answers and
    facts may be missing.
    """
    check_on_error(on_error)
    return read(data, split, MULTI_HOP, lambda path, _: _in_file(path, Skipped(str(path), on_error), labelled), limit)


def _in_file(path: Path, skipped: Skipped, labelled: bool) -> Iterator[HopRow]:
    """Yields the rows of one file; malformed rows go to `skipped`, with their location."""
    stem, notes = path.name.split(".")[0], _Notes(path)

    def parse(record: Any, number: int) -> HopRow:
        row = hop_row(record, f"{stem}:{number}", labelled=labelled)
        notes.add(row)
        return row

    by_line = ".jsonl" in path.name.lower()
    records = read_jsonl(path, skipped.add) if by_line else _records(path)
    try:
        yield from parsed(records, parse, skipped, "line" if by_line else "question")
    finally:  # also if reading stops at a limit
        notes.report()


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    """Yields the questions of an official file, numbered from 1."""
    whole = read_json(path, FORMAT)
    if not isinstance(whole, list):
        raise InputError(f"{path} holds {kind_of(whole)} instead of a list; {FORMAT}")
    yield from enumerate(whole, 1)


def hop_row(record: Any, default_id: str = "", *, labelled: bool = True) -> HopRow:
    """Parses one record; paragraphs without sentences are dropped, since they contain no evidence.

    An empty 'context' is a question for which the first stage kept no paragraph; it is kept.

    Raises:
        InputError: a field is missing or of another type, or there are paragraphs but none has a sentence.
    """
    question = check_text(value_of(record, "question"), "the question (field 'question')")
    paragraphs = [_paragraph(entry, number) for number, entry in enumerate(list_of(record, "context"))]
    row = HopRow(
        id=name_of(record, "_id", name_of(record, "id", default_id)),
        question=question,
        paragraphs=tuple(paragraph for paragraph in paragraphs if paragraph.sentences),
        answer=check_text(value_of(record, "answer"), "the answer (field 'answer')")
        if labelled or "answer" in record
        else None,
        facts=_facts(record) if labelled or "supporting_facts" in record else (),
    )
    if paragraphs and not row.paragraphs:
        raise InputError("field 'context' has no paragraph with a sentence; give [title, [sentence, …]] for each")
    return row


def _paragraph(entry: Any, number: int) -> Paragraph:
    where = f"paragraph {number} of field 'context'"
    if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[1], list):
        raise InputError(f"{where} is not [title, [sentence, …]] but {kind_of(entry)}; give a title and its sentences")
    title, sentences = entry
    check_text(title, f"the title of {where}")
    for sentence in sentences:  # the official files have empty ones, which keep their index
        if not isinstance(sentence, str):
            raise InputError(f"{where} holds {kind_of(sentence)} among its sentences; give texts")
        check_characters(sentence, where)
    return Paragraph(title, tuple(sentences))


def _facts(record: Record) -> tuple[Fact, ...]:
    facts = list_of(record, "supporting_facts")
    for fact in facts:
        known = isinstance(fact, list) and len(fact) == 2 and isinstance(fact[0], str) and type(fact[1]) is int
        if not known:
            raise InputError(f"field 'supporting_facts' holds {json.dumps(fact)[:80]}; give [title, sentence index]")
    return tuple(dict.fromkeys((title, index) for title, index in facts))


def record_of(row: HopRow) -> Record:
    """Returns the JSON record of a row."""
    record: Record = {"_id": row.id, "question": row.question}
    if row.answer is not None:
        record |= {"answer": row.answer, "supporting_facts": [list(fact) for fact in row.facts]}
    return record | {"context": [[paragraph.title, list(paragraph.sentences)] for paragraph in row.paragraphs]}


class _Notes:
    """Counts the questions of a file whose annotations refer to missing text."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts = {
            "a supporting fact that names no paragraph, or a sentence that it does not have": 0,
            "an answer that is in no supporting paragraph": 0,
        }

    def add(self, row: HopRow) -> None:
        wrong = (
            any(not row.holds(fact) for fact in row.facts),
            row.answer is not None and row.answer_type == "words" and not row.occurrences(),
        )
        for what, is_so in zip(self.counts, wrong, strict=True):
            self.counts[what] += is_so

    def report(self) -> None:
        for what, count in self.counts.items():
            if count:
                some = counted(count, "question has", "questions have")
                logger.warning("%s: %s %s; that is scored, and not learned", self.path, some, what)
