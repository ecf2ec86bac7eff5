"""Question data sets by name, file or directory: a stream of `QuestionRow` from any format.

- `read_questions("natural-questions", "validation")`: one of `QUESTION_DATA_SETS`, or any folder of LONGSPAN_DATA
- `read_questions("nq-dev-00.jsonl.gz")`: Natural Questions (original or simplified) or TyDi QA, detected by fields
- `read_questions("v1.0/", "train")`: the folder `v1.0/train/`, else the files with "train" in their names
- `read_questions("synthetic", limit=64)`: generated
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from longspan.data.fields import Record, Skipped, check_on_error
from longspan.data.jsonl import read_jsonl
from longspan.data.sources import DataSet, Kind, read
from longspan.errors import InputError
from longspan_documents.questions.made_up import synthetic_questions
from longspan_documents.questions.rows import QuestionRow
from longspan_papers.natural_questions.formats import natural_question, tydi_question

logger = logging.getLogger(f"longspan.{__name__}")


QUESTION_DATA_SETS: dict[str, DataSet] = {
    "natural-questions": DataSet(
        splits={name: (f"natural_questions/derived_{name}.jsonl.gz",) for name in ("train", "validation")}
    ),
    "natural-questions-sample": DataSet.sample("natural_questions/simplified_sample.jsonl.gz"),
    "natural-questions-original": DataSet.sample("natural_questions/original_format_converted.jsonl.gz"),
    "tydiqa": DataSet.sample("tydiqa/tiny_dev.jsonl.gz"),
    "tydiqa-gold": DataSet.sample("tydiqa/small_gold_annotation.jsonl.gz"),
}
"""Name → files under LONGSPAN_DATA."""

QUESTIONS = Kind(
    row=QuestionRow,
    named=QUESTION_DATA_SETS,
    made_up=lambda count, seed: synthetic_questions(16 if count is None else count, seed=seed),
    suffixes=("jsonl", "json"),
)
"""The data source of questions."""


def read_questions(
    data: str | Path | Sequence[str | Path],
    split: str = "train",
    limit: int | None = None,
    *,
    on_error: str = "raise",
) -> Iterator[QuestionRow]:
    """Yields the rows of a question data set; one record is in memory at a time.

    Args:
        data: a JSON Lines file (plain, gzip or xz), a directory, the name of one of `QUESTION_DATA_SETS` or of a
            registered reader, "synthetic", or several of these. The files of a directory are read in alphabetical
            order.
        split: split of a directory or a named data set; a single file, and a directory whose files name no split, are
            read for every split.
        limit: maximum number of rows.
        on_error: "raise" stops at a malformed row; "skip" drops it and logs its line number, and at the end the count.

    Raises:
        InputError: no data is found, LONGSPAN_DATA is not set, or an option is invalid (immediately); a row is
            malformed and `on_error` is "raise", or a compressed file is damaged (when reached; the message names file
            and line).
    """
    check_on_error(on_error)

    def read_file(path: Path, _: None) -> Iterator[QuestionRow]:
        stem, skipped = path.name.split(".")[0], Skipped(str(path), on_error)

        def leave_out(line: int, error: InputError) -> None:
            skipped.add(line, error)
            logger.warning("%s (this row is left out)", error)

        try:
            for number, record in read_jsonl(path, leave_out):
                try:
                    row = parse_question(record, f"{stem}:{number}")
                except InputError as error:
                    leave_out(number, InputError(skipped.with_remedy(f"{path}, line {number}: {error}")))
                else:
                    yield row
        finally:  # also if reading stops at a limit
            skipped.report()

    return read(data, split, QUESTIONS, read_file, limit)


def parse_question(record: Record, default_id: str = "") -> QuestionRow:
    """Parses one record of any known format; raises `InputError`, without a location, if it is malformed."""
    if "document_tokens" in record or "document_text" in record:
        return natural_question(record, default_id)
    if "document_plaintext" in record:
        return tydi_question(record, default_id)
    raise InputError(
        "no document: a question has the field document_tokens or document_text (Natural Questions) or "
        f"document_plaintext (TyDi QA), and this record has {', '.join(sorted(record)) or 'no fields'}"
    )
