"""What a job is: a verb, its options, its inputs, and the parts that these are cut into, all of it in `_job.json`.

The parts follow from the inputs alone, so every call of the same job, with any number of workers, has the same ones. A
part that is there is whole (`longspan_documents.mapping.results`): what is missing is what is left to do. Readers of
whole folders of Parquet pass over names that begin with an underscore.
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
"""Rows of JSON Lines after which the place in the file is noted again."""
PARTS = 256
"""Parts that a job is cut into, about, where it has rows enough."""
MOST_ROWS = 512
"""Rows of the largest part: what is lost at most where a worker is ended, and computed again."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """A file that is read.

    Attributes:
        path: absolute, or an address such as s3://….
        bytes, modified: its size, and when it was changed, in nanoseconds; a job is that of these very files.
        rows: how many it has; 1 for a document.
        starts: of JSON Lines: the bytes, unpacked, at which rows 0, `STRIDE`, 2 · `STRIDE`, … begin.
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
        number: among all parts, from 0, in the order of the inputs.
        source: the index of the input; of documents, of the first one.
        first: the row of the input with which it begins.
        rows: how many.
    """

    number: int
    source: int
    first: int
    rows: int

    @property
    def name(self) -> str:
        """The name of its file, which depends on no other input, so that another one may come to have other rows."""
        return f"part-{self.source:06d}-{self.first:09d}.parquet"


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that decides what the parts hold.

    Attributes:
        version: of Longspan.
        verb: a key of `longspan_documents.mapping.work.VERBS`.
        options: of the verb, how documents are read among them; what is as by default is absent.
        models: for each option that names a folder, what tells whether it has changed.
        text_field: the column of the texts that was asked for, or None.
        prefix: of the names of the columns that are added.
        inputs: in order.
        documents: whether each input is one document, instead of a table.
        part_rows: rows of a part, but for the last one of a table.
        schema: of the input columns, as Arrow writes it, in base64; "" for documents.
        columns: the same for people.
        as_json: input columns whose values have no one type, and are kept as JSON.
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
        """Rows, or documents, of all inputs."""
        return sum(one.rows for one in self.inputs)

    def parts(self) -> list[Part]:
        """All parts, in order."""
        size, spans = self.part_rows, [(index, one.rows) for index, one in enumerate(self.inputs)]
        if self.documents:
            total = len(spans)
            starts = [(first, 0, min(size, total - first)) for first in range(0, total, size)]
        else:
            starts = [
                (index, first, min(size, rows - first)) for index, rows in spans for first in range(0, rows, size)
            ]
        return [Part(number, *where) for number, where in enumerate(starts)]

    def inputs_of(self, part: Part) -> tuple[Input, ...]:
        """The table of a part, or its documents."""
        return self.inputs[part.source : part.source + (part.rows if self.documents else 1)]

    def seal(self, part: Part) -> str:
        """A digest of everything that decides what a part holds; its file has it."""
        names = ("version", "verb", "options", "models", "prefix", "schema", "as_json", "text")
        read = [(one.path, one.bytes, one.modified) for one in self.inputs_of(part)]
        return _digest([[getattr(self, name) for name in names], read, part.first, part.rows])


def rows_of_part(total: int) -> int:
    """How many rows a part has in a job of so many, where nobody says it: a multiple of `STRIDE`."""
    return min(MOST_ROWS, STRIDE * max(1, -(-total // (PARTS * STRIDE))))


def save_job(folder: Path, job: Job) -> None:
    """Write `_job.json`, whole or not at all."""
    inputs = [{**asdict(one), "starts": " ".join(map(str, one.starts))} for one in job.inputs]  # on one line
    stored = {**asdict(replace(job, inputs=())), "inputs": inputs}
    # Names of files need not be UTF-8; as escapes they can be stored.
    write_whole({folder / JOB: json.dumps({"checksum": _digest(stored), **stored}, indent=1) + "\n"})


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


def saved_job(folder: Path) -> Job | None:
    """The job of a folder; None where nothing lies in it.

    Raises:
        InputError: something else lies in it, or its `_job.json` is damaged.
    """
    if not (folder / JOB).is_file():
        if not is_empty(folder):
            raise InputError(
                f"output {str(folder)!r} is not empty and holds no {JOB} of a job; give another folder, or empty it"
            )
        return None
    try:
        stored = json.loads((folder / JOB).read_text(encoding="utf-8"))
        if stored.pop("checksum") != _digest(stored):  # what is as it was written need not be checked further
            raise ValueError("its checksum differs")
        inputs = tuple(Input(**{**one, "starts": tuple(map(int, one["starts"].split()))}) for one in stored["inputs"])
        return Job(**{**stored, "inputs": inputs, "as_json": tuple(stored["as_json"])})
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{on_one_line(str(folder / JOB))} is damaged ({type(error).__name__}); give another output folder"
        ) from error


def check_same(stored: Job, asked: Job, folder: Path, defaults: Mapping[str, Any]) -> None:
    """Refuse to go on with the job of a folder as another one; `asked` need not have been planned yet.

    Inputs of the same paths may have changed, see `changed_inputs`; `defaults` are those of the options.

    Raises:
        InputError: it names the first thing that differs.
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
    before, now = [one.path for one in stored.inputs], [one.path for one in asked.inputs]
    if before != now:
        other = next(iter(sorted(set(before) ^ set(now))), None)
        return f"it reads other inputs (one is {other!r})" if other else "it reads its inputs in another order"
    if asked.part_rows and asked.part_rows != stored.part_rows:
        return f"its parts have {stored.part_rows} rows, not {asked.part_rows}"
    return None


def changed_inputs(stored: Job, asked: Job) -> list[Input]:
    """The inputs of a stored job that are other files now, though of the same paths in the same order."""
    pairs = zip(stored.inputs, asked.inputs, strict=True)
    return [one for one, now in pairs if (one.bytes, one.modified) != (now.bytes, now.modified)]
