"""A job: a verb, its options, its inputs, and the parts into which these are divided, stored in `_job.json`.

The parts depend only on the inputs, so they are the same for every call of a job, with any number of workers. A part
that exists is complete (`longspan_documents.mapping.results`); missing parts remain to be computed. Readers of folders
of Parquet files ignore names that begin with an underscore.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from longspan.characters import on_one_line
from longspan.errors import InputError
from longspan.files import is_empty, write_whole
from longspan.settings import show

JOB = "_job.json"
STRIDE = 8
"""Number of rows of JSON Lines between two stored positions in the file."""
PARTS = 256
"""Approximate number of parts of a job with enough rows."""
MOST_ROWS = 512
"""Maximum number of rows of a part, which are lost and computed again if a worker ends."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """An input file.

    Attributes:
        path: absolute path, or an address such as s3://….
        bytes: its size.
        modified: its modification time in nanoseconds; a file with another size or time counts as changed.
        rows: number of rows; 1 for a document.
        starts: for JSON Lines, positions in uncompressed bytes of rows 0, `STRIDE`, 2 · `STRIDE`, …
    """

    path: str
    bytes: int
    modified: int
    rows: int = 1
    starts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Part:
    """Consecutive rows of one table, or consecutive documents.

    Attributes:
        number: index among all parts, in the order of the inputs.
        source: the index of the input; for documents, of the first one.
        first: the row of the input with which it begins.
        rows: number of rows.
    """

    number: int
    source: int
    first: int
    rows: int

    @property
    def name(self) -> str:
        """The name of its file, which does not depend on other inputs, so that their numbers of rows may change."""
        return f"part-{self.source:06d}-{self.first:09d}.parquet"


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that determines the content of the parts.

    Attributes:
        version: of Longspan.
        verb: a key of `longspan_documents.mapping.work.VERBS`.
        options: of the verb, including those of reading documents, without default values.
        models: a stamp for each option that names a folder, which changes with its files.
        text_field: the requested column of the texts, or None.
        prefix: of the names of added columns.
        inputs: in order.
        documents: whether each input is one document, instead of a table.
        part_rows: number of rows of a part, except the last one of a table.
        schema: of the input columns, serialised by Arrow, in base64; "" for documents.
        columns: the same, readable.
        as_json: input columns with values of several types, which are stored as JSON.
        text: the column of the texts.
    """

    version: str
    verb: str
    options: dict[str, Any]
    models: dict[str, str] = field(default_factory=dict)
    text_field: str | None = None
    prefix: str = ""
    inputs: tuple[Input, ...]
    documents: bool
    part_rows: int = 0
    schema: str = ""
    columns: dict[str, str] = field(default_factory=dict)
    as_json: tuple[str, ...] = ()
    text: str = ""

    @property
    def rows(self) -> int:
        """The number of rows, or documents, of all inputs."""
        return sum(source.rows for source in self.inputs)

    def parts(self) -> list[Part]:
        """Returns all parts, in order."""
        size, spans = self.part_rows, [(index, source.rows) for index, source in enumerate(self.inputs)]
        if self.documents:
            total = len(spans)
            starts = [(first, 0, min(size, total - first)) for first in range(0, total, size)]
        else:
            starts = [
                (index, first, min(size, rows - first)) for index, rows in spans for first in range(0, rows, size)
            ]
        return [Part(number, *where) for number, where in enumerate(starts)]

    def inputs_of(self, part: Part) -> tuple[Input, ...]:
        """Returns the table of a part, or its documents."""
        return self.inputs[part.source : part.source + (part.rows if self.documents else 1)]

    def seal(self, part: Part) -> str:
        """Returns a digest of everything that determines the content of a part; it is stored in the part's file."""
        names = ("version", "verb", "options", "models", "prefix", "schema", "as_json", "text")
        read = [(source.path, source.bytes, source.modified) for source in self.inputs_of(part)]
        return _digest([[getattr(self, name) for name in names], read, part.first, part.rows])


def rows_of_part(total: int) -> int:
    """Returns the default number of rows of a part in a job with `total` rows: a multiple of `STRIDE`."""
    return min(MOST_ROWS, STRIDE * max(1, -(-total // (PARTS * STRIDE))))


def save_job(folder: Path, job: Job) -> None:
    """Write `_job.json` atomically."""
    inputs = [{**asdict(source), "starts": " ".join(map(str, source.starts))} for source in job.inputs]  # on one line
    stored = {**asdict(replace(job, inputs=())), "inputs": inputs}
    # File names need not be UTF-8; they can be stored with escapes.
    write_whole({folder / JOB: json.dumps({"checksum": _digest(stored), **stored}, indent=1) + "\n"})


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


def saved_job(folder: Path) -> Job | None:
    """Load the job of a folder; returns None if the folder is empty.

    Raises:
        InputError: the folder contains other files, or its `_job.json` is damaged.
    """
    if not (folder / JOB).is_file():
        if not is_empty(folder):
            raise InputError(
                f"output {str(folder)!r} is not empty and holds no {JOB} of a job; give another folder, or empty it"
            )
        return None
    try:
        stored = json.loads((folder / JOB).read_text(encoding="utf-8"))
        if stored.pop("checksum") != _digest(stored):  # an unchanged file needs no further validation
            raise ValueError("its checksum differs")
        inputs = tuple(
            Input(**{**source, "starts": tuple(map(int, source["starts"].split()))}) for source in stored["inputs"]
        )
        return Job(**{**stored, "inputs": inputs, "as_json": tuple(stored["as_json"])})
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{on_one_line(str(folder / JOB))} is damaged ({type(error).__name__}); give another output folder"
        ) from error


def check_same(stored: Job, asked: Job, folder: Path, defaults: Mapping[str, Any]) -> None:
    """Check that a job is the same as that of a folder; `asked` may not have been planned yet.

    Inputs with the same paths may have changed, see `changed_inputs`; `defaults` are those of the options.

    Raises:
        InputError: the jobs differ; the message names the first difference.
    """
    differs = _difference(stored, asked, defaults)
    if differs:
        raise InputError(
            f"output {str(folder)!r} holds another job: {differs}; give another folder, or ask for that job to go on "
            "with it"
        )


def _difference(stored: Job, asked: Job, defaults: Mapping[str, Any]) -> str | None:
    for name, words in (("version", "longspan"), ("verb", "the verb")):
        before, now = getattr(stored, name), getattr(asked, name)
        if before != now:
            return f"it was begun with {words} {before}, and this is {now}"
    for name in sorted({*stored.options, *asked.options}):
        before, now = (job.options.get(name, defaults.get(name)) for job in (stored, asked))
        if before != now:
            return f"its {name} is {show(before)}, not {show(now)}"
    for name in sorted({*stored.models, *asked.models}):
        if stored.models.get(name) != asked.models.get(name):
            return f"the files of its {name} {show(asked.options.get(name))} have changed since it was begun"
    for name in ("text_field", "prefix", "documents"):
        if getattr(stored, name) != getattr(asked, name):
            return f"its {name} is {show(getattr(stored, name))}, not {show(getattr(asked, name))}"
    before, now = [source.path for source in stored.inputs], [source.path for source in asked.inputs]
    if before != now:
        other = next(iter(sorted(set(before) ^ set(now))), None)
        return f"it reads other inputs (one is {other!r})" if other else "it reads its inputs in another order"
    if asked.part_rows and asked.part_rows != stored.part_rows:
        return f"its parts have {stored.part_rows} rows, not {asked.part_rows}"
    return None


def changed_inputs(stored: Job, asked: Job) -> list[Input]:
    """Returns the inputs of a stored job whose files have changed; the paths are the same, in the same order."""
    pairs = zip(stored.inputs, asked.inputs, strict=True)
    return [before for before, now in pairs if (before.bytes, before.modified) != (now.bytes, now.modified)]
