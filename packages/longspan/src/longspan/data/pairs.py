"""Labelled pairs of texts, such as MNLI and QQP, from GLUE's TSV files or JSON Lines.

- `read_pairs("MNLI/", "train")`: `train.tsv`; a file with another name is passed directly (`MNLI/dev_matched.tsv`)
- `read_pairs("qqp.jsonl")`: a row per line, with fields of `TEXTS` and `LABELS`
- `read_pairs("synthetic", limit=64)`: generated
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from longspan.data.fields import Record, Skipped, check_on_error, check_text, name_of, parsed
from longspan.data.sources import Kind, read
from longspan.data.tables import read_records
from longspan.errors import InputError

TEXTS = (("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("first", "second"))
"""Field names of the two texts: in GLUE, on the Hub, in QQP, or plain."""
LABELS = ("gold_label", "label", "is_duplicate")
NO_LABEL = frozenset({"-", "-1", ""})
"""Labels of pairs without agreement of the annotators, or with a withheld label."""


@dataclass(frozen=True, slots=True)
class PairRow:
    """Two texts and their relation."""

    id: str
    first: str
    second: str
    label: str


def made_up(count: int | None, seed: int) -> Iterator[PairRow]:
    """Yields pairs of random word lists: "yes" if the second contains only words of the first, otherwise "no"."""
    draw = random.Random(seed)
    words = [a + b + c for a in "bdgklm" for b in "aeiou" for c in "nrst"]
    for number in range(16 if count is None else count):
        first = draw.sample(words, 8)
        inside = draw.random() < 0.5
        second = draw.sample(first, 3) if inside else [*draw.sample(first, 2), draw.choice(words)]
        label = "yes" if set(second) <= set(first) else "no"
        yield PairRow(f"synthetic-{seed}-{number}", " ".join(first), " ".join(second), label)


PAIRS = Kind(
    row=PairRow,
    named={},
    made_up=lambda count, seed: made_up(count, seed),
    suffixes=("tsv", "jsonl", "csv", "parquet"),
)
"""Sources of pairs."""


def read_pairs(
    data: str | Path | Sequence[str | Path], split: str = "train", limit: int | None = None, *, on_error: str = "raise"
) -> Iterator[PairRow]:
    """Streams labelled pairs, skipping pairs without a label. Arguments and errors as in `read_questions`."""
    check_on_error(on_error)

    def read_file(path: Path, _: None) -> Iterator[PairRow]:
        stem, skipped = path.name.split(".")[0], Skipped(str(path), on_error)
        # Quotes in GLUE's texts are ordinary characters.
        records = read_records(path, skipped.add, quoted=".tsv" not in path.name.lower())
        rows = parsed(records, lambda record, number: pair_row(record, f"{stem}:{number}"), skipped)
        return (row for row in rows if row.label not in NO_LABEL)

    return read(data, split, PAIRS, read_file, limit)


def pair_row(record: Record, default_id: str = "") -> PairRow:
    """Returns the row of one record; raises `InputError` if a field is missing or not a text."""
    names = next((pair for pair in TEXTS if pair[0] in record and pair[1] in record), None)
    label = next((name for name in LABELS if name in record), None)
    if names is None or label is None:
        wanted = " or ".join("/".join(pair) for pair in TEXTS)
        raise InputError(
            f"a pair has two texts ({wanted}) and a label ({' or '.join(LABELS)}), and this record has "
            f"{', '.join(sorted(record)) or 'no fields'}"
        )
    first, second = (check_text(record[name], f"field {name!r}") for name in names)
    return PairRow(name_of(record, "id", default_id), first, second, str(record[label]).strip())
