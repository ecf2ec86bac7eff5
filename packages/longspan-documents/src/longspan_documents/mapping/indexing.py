"""`longspan index --workers`: an index without a model, whose documents several processes prepare.

The processes of `longspan map` do the expensive work: they prepare each document (passages, their stems and vectors)
and write the result to Parquet parts in the index's folder `building/`, atomically. Then one process adds the documents
to the index in order, so that its files are identical to those that a single process writes. After an interruption at
any time, the next call reuses the parts whose files have not changed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from longspan.characters import on_one_line
from longspan.errors import InputError, one_sentence
from longspan.files import clear_stale, output_folder
from longspan.options import fields_of
from longspan.settings import Count, Whole, check_arguments, check_kind
from longspan.version import __version__
from longspan_documents.inference.answer import Source, sources_in
from longspan_documents.inference.indexing.growing import BUILDING, LIST
from longspan_documents.inference.indexing.parts import Prepared
from longspan_documents.inference.indexing.preparing import Preparer
from longspan_documents.inference.indexing.search import SearchIndex, has_search_index
from longspan_documents.inference.indexing.sources import not_left_empty
from longspan_documents.inference.indexing.store import has_index
from longspan_documents.inference.verbs import Index
from longspan_documents.mapping.documents import Progress, do_parts, stamps_of
from longspan_documents.mapping.inputs import arrow
from longspan_documents.mapping.job import Input, Job, Part, rows_of_part, save_job, saved_job
from longspan_documents.mapping.preparing import Preparation
from longspan_documents.mapping.results import read_part
from longspan_documents.mapping.work import ERROR, INDEX
from longspan_documents.text.options import SentenceReading

Row = tuple[Path, int]
"""A part, and the row in it."""


def index_by_workers(
    documents: Source | Sequence[Source],
    output: str | Path,
    options: Index | None = None,
    *,
    workers: Whole | None = None,
    threads: Count = 1,
    report: Callable[[Progress], None] | None = None,
) -> SearchIndex:
    """Create an index without a model or add to one, as `longspan.index` does, with several processes.

    The files are the same as those of one process with as many threads. A call that was interrupted at any time is
    continued by the next one. A document that ends its process three times is skipped.

    Args:
        documents: as for `longspan.index`; files are read by the workers, texts by this process.
        output: the folder of the index.
        options: as for `longspan.index`, without a model.
        workers: number of processes; None starts one for each processor. 0 works in this process.
        threads: number of threads of each.
        report: called repeatedly with the progress.

    Returns:
        The index; its `added` and `notes` describe what was done.

    Raises:
        InputError: as `longspan.index`; the index has a model; or no worker can start.
    """
    check_arguments(index_by_workers, {"workers": workers, "threads": threads})
    options = options or Index()
    check_kind(options.encoder, "encoder", (str, Path, type(None)), "a folder or a name")
    arrow()
    documents = sources_in(documents, options, "documents")
    folder = output_folder(output)
    if has_index(folder):
        raise InputError(
            f"workers={workers}, but the index {on_one_line(str(output))!r} is one with a model, which one process "
            "makes; leave it out"
        )
    same = partial(_job, options=options)
    ahead = partial(_ahead, folder / BUILDING, same, workers=workers, threads=threads, report=report)
    with not_left_empty(folder, LIST):
        opening = SearchIndex if has_search_index(folder) else SearchIndex.new
        library = opening(folder, options.encoder, device=options.device)
        skipped = library.add_read(documents, options, ahead)
        library.notes += skipped  # earlier notes were read again
    return library


def _job(preparer: Preparer, inputs: tuple[Input, ...], options: Index) -> Job:
    """Returns the job that prepares these files."""
    preparation = Preparation(
        language=preparer.language,
        vectors=preparer.encoder is not None,
        encoder=preparer.source,
        device=options.device,
        **{field.name: getattr(options, field.name) for field in fields_of(SentenceReading)},
    )
    stated = preparation.to_plain("map")
    return Job(
        version=__version__,
        verb=INDEX,
        options=stated,
        models=stamps_of(stated),
        inputs=inputs,
        documents=True,
        part_rows=rows_of_part(len(inputs)),
    )


def _ahead(
    place: Path,
    job_of: Callable[[Preparer, tuple[Input, ...]], Job],
    preparer: Preparer,
    files: list[Path],
    *,
    workers: int | None,
    threads: int,
    report: Callable[[Progress], None] | None,
) -> Callable[[Path], Prepared | None]:
    """Prepare files, except those that an earlier call has prepared; see `Ahead`."""
    rows: dict[Input, Row] = {}
    earlier = [folder for folder in place.iterdir() if folder.name.isdecimal()] if place.is_dir() else []
    for folder in sorted(earlier, key=lambda path: int(path.name)):
        rows |= _left(folder, job_of(preparer, ())) if folder.is_dir() else {}
    inputs = [_stamped(file) for file in files]
    if todo := tuple(input_file for input_file in inputs if input_file not in rows):
        folder = place / str(1 + max((int(folder.name) for folder in earlier), default=0))
        folder.mkdir(parents=True)
        job = job_of(preparer, todo)
        save_job(folder, job)
        try:
            do_parts(job, folder, job.parts(), workers=workers, threads=threads, report=report)
        finally:
            clear_stale(folder)
        rows |= {input_file: place for part in job.parts() for input_file, place in _rows(job, folder, part).items()}
    width = 0 if preparer.encoder is None else preparer.encoder.dimensions
    return _Prepared(rows, width)


def _stamped(file: Path) -> Input:
    """Returns a file with its current size and time, under its original name."""
    status = file.stat()
    return Input(path=str(file), bytes=status.st_size, modified=status.st_mtime_ns)


def _left(folder: Path, same: Job) -> dict[Input, Row]:
    """Returns the rows of readable files that an earlier, equal job has prepared, and removes the other files.

    Damaged or unfinished parts are computed again; they contain nothing of the user's.
    """
    try:
        job = saved_job(folder)
    except InputError:
        job = None
    names = ("version", "verb", "options", "models")
    if job is None or any(getattr(job, name) != getattr(same, name) for name in names):
        shutil.rmtree(folder)
        return {}
    clear_stale(folder)
    found: dict[Input, Row] = {}
    for part in job.parts():
        try:
            if (folder / part.name).is_file():
                read_part(job, folder, part)
                errors = _table(folder / part.name)[ERROR].to_pylist()
                rows = _rows(job, folder, part)
                found |= {input_file: place for input_file, place in rows.items() if errors[place[1]] is None}
        except InputError:
            (folder / part.name).unlink()
    return found


def _rows(job: Job, folder: Path, part: Part) -> dict[Input, Row]:
    return {input_file: (folder / part.name, row) for row, input_file in enumerate(job.inputs_of(part))}


def _table(file: Path) -> Any:
    """Read a whole part, with verification of its page checksums."""
    with one_sentence(f"{on_one_line(str(file))} is damaged; index its documents again"):
        return arrow("pyarrow.parquet").read_table(file, page_checksum_verification=True, partitioning=None)


class _Prepared:
    """A function that returns a file's prepared document from a part; one part is cached in memory."""

    def __init__(self, rows: dict[Input, Row], width: int) -> None:
        self.rows = rows
        self.width = width
        self.part: Path | None = None
        self.table: Any = None

    def __call__(self, file: Path) -> Prepared | None:
        """See `Ahead`."""
        place = self.rows.get(_stamped(file))
        if place is None:
            return None
        if self.part != place[0]:
            self.part, self.table = place[0], _table(place[0])
        row = {name: self.table[name][place[1]].as_py() for name in self.table.column_names}
        if (error := row[ERROR]) is not None:
            name = on_one_line(str(file))
            raise InputError(error if name in error else f"{name}: {error}")
        vectors = np.frombuffer(row["vectors"], np.float16).reshape(len(row["stems"]), self.width)
        return Prepared(row["digest"], row["document"], row["stems"], vectors)
