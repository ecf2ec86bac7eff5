"""Question data sets, by name, file or directory: a stream of `QuestionRow`, whatever the format.

- `read_questions("natural-questions", "validation")`: one of `QUESTION_DATA_SETS`, or any folder of LONGSPAN_DATA
- `read_questions("nq-dev-00.jsonl.gz")`: Natural Questions (original or simplified) or TyDi QA, known by their fields
- `read_questions("v1.0/", "train")`: the folder `v1.0/train/`, else the files with "train" in their names
- `read_questions("synthetic", limit=64)`: made up in code

A made-up document is paragraphs of made-up words. Some paragraphs state a fact: "the <property> of <name> is <answer>
.". The question asks for one of them: "what is the <property> of <name>". Facts about the same name, and the same
property of other names, stand beside it, so that only both words together find the answer.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from longspan.data.fields import Record, Skipped, check_on_error
from longspan.data.jsonl import read_jsonl
from longspan.data.questions.natural_questions import natural_question, tydi_question
from longspan.data.questions.rows import Annotation, Candidate, QuestionRow, Span
from longspan.data.sources import DataSet, Kind, read
from longspan.errors import InputError

FACTS = 6
"""Facts in a document."""


def synthetic_questions(count: int, *, seed: int, paragraphs: int = 16, unanswerable: float = 0.2) -> list[QuestionRow]:
    """Rows of made-up words; the same arguments give the same rows on every machine, all seeds share one vocabulary.

    Args:
        count: number of rows.
        seed: of everything that is drawn.
        paragraphs: in a document, about 18 words each; at least `FACTS`.
        unanswerable: probability that the fact which the question asks for is left out.
    """
    assert paragraphs >= FACTS
    words = made_up_words()
    draw = random.Random(seed)
    return [_row(f"synthetic-{seed}-{index}", draw, words, paragraphs, unanswerable) for index in range(count)]


def made_up_words() -> dict[str, list[str]]:
    """The vocabulary that all rows share, by what the words are for."""
    draw = random.Random(7)
    syllables = ["".join(pair) for pair in product("bdfgklmnprst", "aeiou")]
    made: dict[str, list[str]] = {}
    taken: set[str] = set()
    for name, number, length in (("filler", 80, 2), ("property", 8, 3), ("name", 12, 3), ("answer", 60, 2)):
        made[name] = []
        while len(made[name]) < number:
            word = "".join(draw.choices(syllables, k=length))
            if word not in taken:
                taken.add(word)
                made[name].append(word)
    return made


def _row(
    name: str, draw: random.Random, words: dict[str, list[str]], paragraphs: int, unanswerable: float
) -> QuestionRow:
    pairs = list(product(draw.sample(words["property"], 3), draw.sample(words["name"], 3)))
    facts = draw.sample(pairs, FACTS + 1)
    answered = draw.random() >= unanswerable
    asked = facts[0] if answered else facts[FACTS]
    places = draw.sample(range(paragraphs), FACTS)
    pieces, spans = [], {}
    length = 0
    for place in range(paragraphs):
        piece = " ".join(draw.choices(words["filler"], k=draw.randint(8, 18))) + " ."
        if place in places:
            kind, who = facts[places.index(place)]
            stated = f"{piece} the {kind} of {who} is "
            answer = " ".join(draw.choices(words["answer"], k=draw.randint(1, 3)))
            spans[kind, who] = (place, Span(length + len(stated), length + len(stated) + len(answer)))
            piece = f"{stated}{answer} . " + " ".join(draw.choices(words["filler"], k=draw.randint(6, 14))) + " ."
        pieces.append(piece)
        length += len(piece) + 2
    text = "\n\n".join(pieces)
    ends = [len("\n\n".join(pieces[: place + 1])) for place in range(paragraphs)]
    candidates = tuple(Candidate(Span(end - len(piece), end)) for piece, end in zip(pieces, ends, strict=True))
    place, span = spans.get(asked, (None, None))
    return QuestionRow(
        id=name,
        question=f"what is the {asked[0]} of {asked[1]}",
        text=text,
        candidates=candidates,
        annotations=(Annotation(place, (span,) if span else ()),),
    )


logger = logging.getLogger(__name__)


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
"""Where questions come from."""


def read_questions(
    data: str | Path | Sequence[str | Path],
    split: str = "train",
    limit: int | None = None,
    *,
    on_error: str = "raise",
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

    Raises:
        InputError: nothing is found, LONGSPAN_DATA is not set, an option is wrong (at once); a row is malformed and
            `on_error` is "raise", or a compressed file is damaged (when it is reached; it names file and line).
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
        finally:  # also where the reading stops at a limit
            skipped.report()

    return read(data, split, QUESTIONS, read_file, limit)


def parse_question(record: Record, default_id: str = "") -> QuestionRow:
    """The row of one record of any known format; `InputError` where it is malformed, without a place."""
    if "document_tokens" in record or "document_text" in record:
        return natural_question(record, default_id)
    if "document_plaintext" in record:
        return tydi_question(record, default_id)
    raise InputError(
        "no document: a question has the field document_tokens or document_text (Natural Questions) or "
        f"document_plaintext (TyDi QA), and this record has {', '.join(sorted(record)) or 'no fields'}"
    )
