"""Write the cloze questions that the bundled reader is trained on: `python recipes/cloze.py runs/cloze`.

`train.jsonl.gz` and `validation.jsonl.gz`, in the format of TyDi QA, made from the documents of LONGSPAN_DATA that may
be used for anything: novels in the public domain, stories of Project Gutenberg, papers under CC BY, meetings under MIT.
"""

import gzip
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from cloze_questions import ClozeOptions, cloze_rows, paragraphs_of

from longspan.data.questions.rows import QuestionRow
from longspan.data.summaries.readers import read_rows

SOURCES = {"pg_novels": 0.35, "squality": 0.12, "scisummnet": 0.23, "pubmed": 0.18, "qmsum": 0.12}
"""Data set → its share of the questions."""

ROWS = {"train": 20_000, "validation": 300}
OPTIONS = ClozeOptions(min_words=200, max_words=480)


def documents(source: str, split: str) -> list[list[str]]:
    """The documents of a data set, as paragraphs."""
    draw = random.Random(0)
    found = (paragraphs_of(row, draw) for row in read_rows(source, split))
    return [paragraphs for paragraphs in found if len(paragraphs) > 3]


def rows(split: str) -> list[QuestionRow]:
    """Questions of all sources, mixed."""
    made: list[QuestionRow] = []
    for number, (source, share) in enumerate(SOURCES.items()):
        count = round(share * ROWS[split])
        made += cloze_rows(
            documents(source, split), count, seed=number + (100 if split == "train" else 0), options=OPTIONS
        )
    random.Random(1).shuffle(made)
    return made


def records(split: str) -> Iterator[dict[str, object]]:
    """The same as records of TyDi QA."""
    for row in rows(split):
        note = row.annotations[0]
        short = row.original(note.short[0] if note.short else None)
        yield {
            "example_id": row.id,
            "language": "english",
            "question_text": row.question,
            "document_plaintext": row.text,
            "passage_answer_candidates": [_bytes(row.original(candidate)) for candidate in row.candidates],
            "annotations": [
                {
                    "passage_answer": {"candidate_index": -1 if note.candidate is None else note.candidate},
                    "minimal_answer": _bytes(short),
                    "yes_no_answer": "NONE",
                }
            ],
        }


def _bytes(place: dict[str, int]) -> dict[str, int]:
    return {f"plaintext_{name}": value for name, value in place.items()}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for split in ROWS:
        with gzip.open(folder / f"{split}.jsonl.gz", "wt", encoding="utf-8", compresslevel=4) as file:
            for record in records(split):
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
        sys.stdout.write(f"{folder / split}.jsonl.gz: {ROWS[split]:,} questions\n")
