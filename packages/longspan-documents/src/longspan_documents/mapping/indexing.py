"""`longspan index --workers`: an index without a model, whose documents are read by several processes.

The processes of `longspan map` do what takes time: what an index needs of each document (its passages, their words and
vectors) goes into `building/` of the index, in Parquet parts that are written whole or not at all. Then one process
puts the documents into the index in their order, as if it had read them itself, so that it has the same bytes. Of a
call that was ended, whenever it was, the next one takes the parts whose files have not changed.
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
from longspan.options import fields_of, plain_values
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
    """Make an index without a model, or add to one, as `longspan.index` does, with several processes.

    Its files are those that one process with so many threads writes. A call that was ended at any moment is gone on
    with by the next one. A document that ends its process, thrice, is passed over.

    Args:
        documents: as for `longspan.index`; files are read by the processes, texts by this one.
        output: the folder of the index.
        options: as for `longspan.index`, without a model.
        workers: processes; None takes one for each processor. 0 does the work in this one.
        threads: of each.
        report: is called with the progress, often.

    Returns:
        The index; `added` and `notes` say what was done.

    Raises:
        InputError: as `longspan.index`; the index is one with a model; no worker can start.
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
        library.notes += skipped  # those before were read anew
    return library


def _job(preparer: Preparer, inputs: tuple[Input, ...], options: Index) -> Job:
    """What has to be done with these files."""
    preparation = Preparation(
        language=preparer.language,
        vectors=preparer.encoder is not None,
        encoder=preparer.source,
        device=options.device,
        **{field.name: getattr(options, field.name) for field in fields_of(SentenceReading)},
    )
    stated = plain_values(preparation, "map")
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
    """Have files prepared, but for those that an earlier call has left prepared; see `Ahead`."""
    rows: dict[Input, Row] = {}
    earlier = [one for one in place.iterdir() if one.name.isdecimal()] if place.is_dir() else []
    for folder in sorted(earlier, key=lambda one: int(one.name)):
        rows |= _left(folder, job_of(preparer, ())) if folder.is_dir() else {}
    inputs = [_stamped(file) for file in files]
    if todo := tuple(one for one in inputs if one not in rows):
        folder = place / str(1 + max((int(one.name) for one in earlier), default=0))
        folder.mkdir(parents=True)
        job = job_of(preparer, todo)
        save_job(folder, job)
        try:
            do_parts(job, folder, job.parts(), workers=workers, threads=threads, report=report)
        finally:
            clear_stale(folder)
        rows |= {one: place for part in job.parts() for one, place in _rows(job, folder, part).items()}
    width = 0 if preparer.encoder is None else preparer.encoder.dimensions
    return _Prepared(rows, width)


def _stamped(file: Path) -> Input:
    """A file as it is now, by the name that it was given."""
    told = file.stat()
    return Input(path=str(file), bytes=told.st_size, modified=told.st_mtime_ns)


def _left(folder: Path, same: Job) -> dict[Input, Row]:
    """What an earlier call has left that did the same: a row for each file that could be read; the rest is removed.

    What is damaged, or was not finished, is prepared again: nothing of it is anybody's but ours.
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
                found |= {one: place for one, place in rows.items() if errors[place[1]] is None}
        except InputError:
            (folder / part.name).unlink()
    return found


def _rows(job: Job, folder: Path, part: Part) -> dict[Input, Row]:
    """File → its row in a part."""
    return {one: (folder / part.name, row) for row, one in enumerate(job.inputs_of(part))}


def _table(file: Path) -> Any:
    """All of a part, whose pages are compared with their checksums."""
    with one_sentence(f"{on_one_line(str(file))} is damaged; index its documents again"):
        return arrow("pyarrow.parquet").read_table(file, page_checksum_verification=True, partitioning=None)


class _Prepared:
    """A function from a file to what an index needs of it, read from a part, of which one is in memory."""

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
