"""Questions over several documents with candidate answers: WikiHop and MedHop (Welbl et al. 2018).

- `read_choices("qangaroo_v1.1/wikihop", "train")`: the release files; `train.masked.json` is read only if named
- `read_choices("dev.jsonl")`: a row per line, with the same fields
- `read_choices("wikihop-sample")`: two rows of LONGSPAN_DATA, for both splits
- `read_choices("synthetic", limit=64)`: generated
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from longspan.characters import counted
from longspan.data.fields import Record, Skipped, check_on_error, check_text, list_of, name_of, parsed, value_of
from longspan.data.jsonl import read_json, read_jsonl
from longspan.data.sources import DataSet, Kind, read
from longspan.errors import InputError
from longspan_documents.questions.made_up import made_up_words

MASKED = ".masked."
"""Part of the names of the files with the same rows and masked candidates."""


@dataclass(frozen=True, slots=True)
class ChoiceRow:
    """A question with its documents and candidate answers.

    Attributes:
        id: identifies the row in predictions.
        query: as in the file; WikiHop's are a relation and its subject, `country sms braunschweig`.
        candidates: one or more.
        supports: the documents, at least one.
        answer: one of the candidates; None if unknown.
    """

    id: str
    query: str
    candidates: tuple[str, ...]
    supports: tuple[str, ...]
    answer: str | None = None


def made_up(count: int | None, seed: int) -> Iterator[ChoiceRow]:
    """Generates rows of random words: each support states one property of one name, and the query asks for one of them.

    Three of the eight candidates are stated in supports. Chance is one in eight; a model that finds stated properties
    gets one in three; only the subject of the query determines the answer.
    """
    words, draw = made_up_words(), random.Random(seed)
    for number in range(16 if count is None else count):
        names, candidates = draw.sample(words["name"], 3), draw.sample(words["answer"], 8)
        kind = draw.choice(words["property"])
        supports = [
            f"{' '.join(draw.choices(words['filler'], k=draw.randint(2, 6)))} . the {kind} of {name} is {value} ."
            for name, value in zip(names, candidates, strict=False)
        ]
        answer_index = draw.randrange(len(names))
        name, query = f"synthetic-{seed}-{number}", f"{kind} {names[answer_index]}"
        yield ChoiceRow(name, query, tuple(sorted(candidates)), tuple(supports), candidates[answer_index])


CHOICES = Kind(
    row=ChoiceRow,
    named={"wikihop-sample": DataSet.sample("wikihop/wikihop_sample.json.gz")},
    made_up=lambda count, seed: made_up(count, seed),
    suffixes=("json", "jsonl"),
)
"""The data source of such questions."""


def read_choices(
    data: str | Path | Sequence[str | Path], split: str = "train", limit: int | None = None, *, on_error: str = "raise"
) -> Iterator[ChoiceRow]:
    """Yields questions with candidates; arguments and errors as in `read_questions`."""
    check_on_error(on_error)
    named = {Path(source) for source in ([data] if isinstance(data, str | Path) else data)}

    def read_file(path: Path, _: object) -> Iterator[ChoiceRow]:
        return iter(()) if MASKED in path.name and path not in named else _in_file(path, Skipped(str(path), on_error))

    return read(data, split, CHOICES, read_file, limit)


def _in_file(path: Path, skipped: Skipped) -> Iterator[ChoiceRow]:
    by_line = ".jsonl" in path.name.lower()
    stem = path.name.split(".")[0]
    return parsed(
        read_jsonl(path, skipped.add) if by_line else _records(path),
        lambda record, number: choice_row(record, f"{stem}:{number}"),
        skipped,
        "line" if by_line else "row",
    )


def _records(path: Path) -> Iterator[tuple[int, Record]]:
    """Yields the rows of a release file, one JSON array, numbered from 1."""
    remedy = "give a file in the format of WikiHop, a list of rows, or one row per line named .jsonl"
    whole = read_json(path, remedy)
    if not isinstance(whole, list):
        raise InputError(f"{path} holds no list; {remedy}")
    yield from enumerate(whole, 1)


def choice_row(record: Record, default_id: str = "") -> ChoiceRow:
    """Parses one record; its answer may be missing.

    Raises:
        InputError: a field is missing or of another type; no candidates; an answer that is none of them.
    """
    query = check_text(value_of(record, "query"), "the query (field 'query')")
    candidates = [check_text(text, "a candidate") for text in list_of(record, "candidates")]
    if not candidates:
        raise InputError("field 'candidates' is empty, so that there is nothing to choose; give one candidate or more")
    supports = list_of(record, "supports")
    if wrong := [text for text in supports if not isinstance(text, str)]:
        raise InputError(f"a support is {wrong[0]!r}; give a list of texts in field 'supports'")
    supports = [check_text(text, "a support") for text in supports if text.strip()]
    if not supports:
        raise InputError("field 'supports' has no text, so that there is nothing to read; give one document or more")
    answer = record.get("answer")
    if answer is not None and answer not in candidates:
        there = counted(len(candidates), "candidate")
        raise InputError(f"the answer {str(answer)[:80]!r} is not among {there}; add it to them")
    return ChoiceRow(name_of(record, "id", default_id), query, tuple(candidates), tuple(supports), answer)
