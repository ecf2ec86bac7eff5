"""Question data sets, by name, file or directory: a stream of `QuestionRow`, whatever the format.

- `read_questions("natural-questions", "validation")`: one of `QUESTION_DATA_SETS`, or any folder of LONGSPAN_DATA
- `read_questions("nq-dev-00.jsonl.gz")`: Natural Questions (original or simplified) or TyDi QA, known by their fields
- `read_questions("v1.0/", "train")`: the folder `v1.0/train/`, else the files with "train" in their names
- `read_questions("synthetic", limit=64)`: made up in code, see `longspan.data.questions.synthetic`
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from longspan.data.fields import Record
from longspan.data.jsonl import read_jsonl
from longspan.data.own_readers import is_own, own_rows
from longspan.data.questions.natural_questions import is_natural_question, natural_question
from longspan.data.questions.rows import QuestionRow
from longspan.data.questions.synthetic import synthetic_questions
from longspan.data.questions.tydiqa import is_tydi_question, tydi_question
from longspan.data.skipping import Skipped, check_on_error
from longspan.data.summaries.readers import SPLIT_ALIASES, named_files
from longspan.errors import InputError

logger = logging.getLogger(__name__)

SYNTHETIC = "synthetic"
"""The name of the data set that is written in code."""

SYNTHETIC_ROWS = 16
"""How many rows it has where no limit is given."""


def _one(file: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(("train", "validation"), (file,))


QUESTION_DATA_SETS: dict[str, dict[str, tuple[str, ...]]] = {
    "natural-questions": {
        "train": ("natural_questions/derived_train.jsonl.gz",),
        "validation": ("natural_questions/derived_validation.jsonl.gz",),
    },
    "natural-questions-sample": _one("natural_questions/simplified_sample.jsonl.gz"),
    "natural-questions-original": _one("natural_questions/original_format_converted.jsonl.gz"),
    "tydiqa": _one("tydiqa/tiny_dev.jsonl.gz"),
    "tydiqa-gold": _one("tydiqa/small_gold_annotation.jsonl.gz"),
}
"""Name → split → files under LONGSPAN_DATA. A sample is one file for both splits: a score after training on it says
only that training works."""

_SPLITS = ("train", "validation", "valid", "val", "dev", "test")
_LINES = re.compile(r".*\.jsonl?(\.gz|\.xz)?")


def read_questions(
    data: str | Path | Sequence[str | Path],
    split: str = "train",
    limit: int | None = None,
    *,
    on_error: str = "raise",
    labelled: bool = True,
) -> Iterator[QuestionRow]:
    """Stream the rows of a question data set; one record is in memory at a time.

    Args:
        data: a JSON Lines file (plain, gzip or xz), a directory, the name of one of `QUESTION_DATA_SETS` or of a
            registered reader, "synthetic", or several of these. The files of a directory are read in the order of their
            names.
        split: which split of a directory or a named data set; a single file, and a directory whose files name no split,
            are read whatever the split.
        limit: stop after so many rows.
        on_error: "raise" stops at a malformed row; "skip" leaves it out, says so in the log with its line number, and
            says at the end how many were left out.
        labelled: whether a row without annotations is malformed; False is for answering unlabelled questions.

    Raises:
        InputError: nothing is found, LONGSPAN_DATA is not set, an option is wrong (at once); a row is malformed and
            `on_error` is "raise", or a compressed file is damaged (when it is reached; it names file and line).
    """
    check_on_error(on_error)
    if limit is not None and limit < 0:
        raise InputError(f"limit={limit} is negative; give a number of rows, or None for all of them")
    sources = [data] if isinstance(data, str | Path) else list(data)
    own = [source for source in sources if is_own(source, (*QUESTION_DATA_SETS, SYNTHETIC))]
    if own:
        streams = [
            own_rows(source, split, QuestionRow)
            if source in own
            else _rows(question_files(source, split), split, limit, on_error, labelled)
            for source in sources
        ]
        return islice(chain.from_iterable(streams), limit)
    files = [path for source in sources for path in question_files(source, split)]
    return _rows(files, split, limit, on_error, labelled)


def question_files(data: str | Path, split: str) -> list[Path]:
    """The files that hold a split; the path "synthetic" stands for the made-up rows.

    In this order: "synthetic", a path that exists, one of `QUESTION_DATA_SETS`, a registered reader (no files), a file
    or folder of LONGSPAN_DATA.
    """
    path, root = Path(data), os.environ.get("LONGSPAN_DATA")
    if str(data) == SYNTHETIC:
        return [path]
    if is_own(data, QUESTION_DATA_SETS):
        return []
    if path.exists():
        return _in_directory(path, split) if path.is_dir() else [path]
    known = QUESTION_DATA_SETS.get(str(data))
    if known is None:
        if root and not path.is_absolute() and (Path(root) / path).exists():
            return question_files(Path(root) / path, split)
        raise InputError(
            f"data={str(data)!r} is no file and no directory, here or in LONGSPAN_DATA={root or ''!r}, and none of the "
            f"question data sets {', '.join((*QUESTION_DATA_SETS, SYNTHETIC))}"
        )
    return named_files(str(data), known, split)


def parse_question(record: Record, default_id: str = "", *, labelled: bool = True) -> QuestionRow:
    """The row of one record of any known format; `InputError` where it is malformed, without a place."""
    if is_natural_question(record):
        return natural_question(record, default_id, labelled=labelled)
    if is_tydi_question(record):
        return tydi_question(record, default_id, labelled=labelled)
    raise InputError(
        "no document: a question has the field document_tokens or document_text (Natural Questions) or "
        f"document_plaintext (TyDi QA), and this record has {', '.join(sorted(record)) or 'no fields'}"
    )


def _rows(paths: Sequence[Path], split: str, limit: int | None, on_error: str, labelled: bool) -> Iterator[QuestionRow]:
    skipped = Skipped(", ".join(map(str, paths[:3])) + (", …" if len(paths) > 3 else ""), on_error)
    count = 0
    if limit == 0:
        return
    try:
        for path in paths:
            for row in _made_up(split, limit) if str(path) == SYNTHETIC else _in_file(path, labelled, skipped):
                yield row
                count += 1
                if count == limit:
                    return
    finally:
        skipped.report()


def _in_file(path: Path, labelled: bool, skipped: Skipped) -> Iterator[QuestionRow]:
    """Rows of one file; the malformed ones go to `skipped`, with their place."""
    stem = path.name.split(".")[0]

    def leave_out(line: int, error: InputError) -> None:
        skipped.add(line, error)
        logger.warning("%s (this row is left out)", error)

    for number, record in read_jsonl(path, leave_out):
        try:
            row = parse_question(record, f"{stem}:{number}", labelled=labelled)
        except InputError as error:
            leave_out(number, InputError(skipped.with_remedy(f"{path}, line {number}: {error}")))
        else:
            yield row


def _made_up(split: str, limit: int | None) -> Iterator[QuestionRow]:
    yield from synthetic_questions(SYNTHETIC_ROWS if limit is None else limit, seed=0 if split == "train" else 1)


def _in_directory(folder: Path, split: str) -> list[Path]:
    """`folder/train/*.jsonl.gz`, else `*train*.jsonl.gz`, else every file where no file names any split."""
    names = SPLIT_ALIASES.get(split, (split,))
    for name in names:
        if (folder / name).is_dir():
            return _in_directory(folder / name, split)
    files = sorted(file for file in folder.iterdir() if file.is_file() and _LINES.fullmatch(file.name))
    for name in names:
        if found := [file for file in files if _names(file, name)]:
            return found
    if files and not any(_names(file, name) for file in files for name in _SPLITS):
        return files
    there = ", ".join(file.name for file in files[:10]) or "no .jsonl, .jsonl.gz or .jsonl.xz files"
    raise InputError(f"{folder} has no file for split={split!r}; it has {there}")


def _names(file: Path, split: str) -> bool:
    """Whether a part of the file's name is the split's: `nq-train-00.jsonl.gz`, `derived_train.jsonl`."""
    return split in re.split(r"[-_.]", file.name)
