"""`longspan.map_documents`: applies a verb to a whole corpus and writes Parquet parts; jobs can be resumed at any
time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from longspan.characters import counted
from longspan.data.fields import ROW_FIELDS
from longspan.errors import InputError
from longspan.files import claimed, clear_stale, output_folder
from longspan.imports import require
from longspan.options import fields_of
from longspan.settings import Count, Whole, check_arguments, check_kind, check_several, show
from longspan.version import __version__
from longspan_documents.mapping.inputs import arrow, check_apart, find_inputs, stamp_of
from longspan_documents.mapping.job import (
    JOB,
    Input,
    Job,
    Part,
    changed_inputs,
    check_same,
    rows_of_part,
    save_job,
    saved_job,
)
from longspan_documents.mapping.local import Crew, Damaged
from longspan_documents.mapping.results import DamagedInputError, Done, PartRunner, document_schema, finished_parts
from longspan_documents.mapping.rows import plan_tables, schema_text, text_column
from longspan_documents.mapping.work import Verb, added_columns, check_names, verb_of

Engine = Literal["local", "ray"]
RAY = "ray.data"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a job.

    Attributes:
        verb: the verb of the job.
        rows: number of rows of the whole job.
        done: number of finished rows, including those of earlier calls.
        per_second: rows per second of this call; 0 at its beginning.
    """

    verb: str
    rows: int
    done: int
    per_second: float

    @property
    def seconds_left(self) -> float | None:
        """Estimated remaining time; None if it is not known yet."""
        return (self.rows - self.done) / self.per_second if self.per_second else None


@dataclass(frozen=True, kw_only=True)
class Mapped:
    """The finished output of a job.

    Attributes:
        folder: contains `_job.json` and the parts; the names of the parts sort in the order of the inputs.
        rows: number of rows, one for each input row.
        errors: number of rows whose document failed; their column `error` has the reason.
        parts: number of files.
        written: number of parts that this call wrote; 0 if the job was finished already.
        notes: files in folders that were skipped, and inputs that had changed, so that their parts were computed again.
    """

    folder: Path
    rows: int
    errors: int
    parts: int
    written: int
    notes: tuple[str, ...] = ()


def map_documents(
    verb: str,
    inputs: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    engine: Engine = "local",
    workers: Whole | None = None,
    threads: Count = 1,
    text_field: str | None = None,
    prefix: str = "",
    part_rows: Count | None = None,
    report: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Mapped:
    """Apply a verb to every row of tables or every document of folders, and write the results as Parquet.

    The output has one row for each input row, in the order of the inputs: all input columns (for documents, `file`),
    the columns of the verb, and `error`. Parts are written atomically. A second call of the same job computes the
    missing parts, and again those whose inputs have changed since.

    Args:
        verb: "summarize", "answer", "embed", "classify", "chunks" or "coref".
        inputs: Parquet and JSON Lines files (`.jsonl`, `.jsonl.gz`, `.jsonl.xz`), documents, folders and patterns of
            either, or addresses such as s3://bucket/folder.
        output: a folder, new or of the same job.
        engine: "local", processes on this machine, or "ray", on the machines of a Ray cluster that all share `output`.
        workers: number of processes; None starts one for each processor (of the cluster, with Ray). 0 works in this
            process, which a document may crash.
        threads: number of threads of each worker.
        text_field: the column of the texts, or lists of texts, which are joined as lines; None takes the first one of
            `longspan.data.fields.ROW_FIELDS` (text, document, content, article, …).
        prefix: prefix of the names of added columns.
        part_rows: rows of a part; None takes a 256th of all, between 8 and 512.
        report: called repeatedly with the progress.
        **options: options of the verb's function, such as `model` and `sentences`, and of reading documents, such as
            `encoding`, `raw` and `abbreviations`.

    Returns:
        A `Mapped`, with the numbers of rows and errors.

    Raises:
        InputError: an option is wrong, an input is missing or damaged, a column of the result exists in the input, the
            folder contains another job or a damaged part, or the output cannot be written. Finished parts are kept.
    """
    counts = {"engine": engine, "workers": workers, "threads": threads, "part_rows": part_rows}
    check_arguments(map_documents, {**counts, "text_field": text_field, "prefix": prefix})
    if not prefix.isprintable():
        raise InputError(f"prefix is {show(prefix)}; give one without line ends and control characters")
    chosen = verb_of(verb, {name: _plain(value) for name, value in options.items() if value is not None})
    options = chosen.options.to_plain("map")
    arrow()
    if engine == "ray":
        require(RAY, extra="ray", purpose="the engine ray")
    folder = output_folder(output)
    try:
        str(folder).encode()
    except UnicodeEncodeError as error:  # Parquet cannot be written to such a path
        raise InputError(f"output {str(output)!r} holds half a character; give a plain path") from error
    sources = [inputs] if isinstance(inputs, str | Path) else inputs
    check_several(sources, "inputs", "files, folders or patterns")
    sources = list(sources)
    for source in sources:
        check_kind(source, "inputs", (str, Path), "files, folders or patterns")
        if not str(source).strip():
            raise InputError(f"inputs holds {show(source)}, which names nothing; give files, folders or patterns")
    if report is not None and not callable(report):
        raise InputError(f"report is {show(report)}; give a function that takes the progress, or leave it out")
    files, documents, notes = find_inputs(sources)
    check_apart(folder, files, sources)
    asked = Job(
        version=__version__,
        verb=verb,
        options=options,
        models=stamps_of(options),
        text_field=text_field,
        prefix=prefix,
        inputs=tuple(files),
        documents=documents,
        part_rows=part_rows or 0,
    )
    with claimed(folder) as remove:
        stored = saved_job(folder)
        if stored is None:
            job = _planned(asked, chosen)
            save_job(folder, job)
        else:
            check_same(
                stored, asked, folder, {field.name: field.default for field in fields_of(chosen.declared, "map")}
            )
            job = stored
            if changed := changed_inputs(stored, asked):
                job = _planned_again(stored, asked, changed, chosen, folder)
                notes.append(_changed_note(changed))
        finished = {done.part for done in finished_parts(job, folder)}
        missing = [part for part in job.parts() if part not in finished]
        try:
            damaged = []
            if missing:
                damaged = do_parts(job, folder, missing, engine, workers=workers, threads=threads, report=report)
        except InputError:  # for example, the model cannot be loaded: do not keep the folder for a job that cannot run
            if stored is None and not finished_parts(job, folder):
                remove(JOB)
            raise
        finally:
            clear_stale(folder)  # incomplete files of workers that ended
        if damaged:
            reasons = list(dict.fromkeys(damage.reason for damage in damaged))
            more = f" (and {len(reasons) - 1} other inputs)" if len(reasons) > 1 else ""
            raise InputError(f"{reasons[0]}{more}; the parts of all other inputs are written")
        parts = finished_parts(job, folder)
    rows, errors = sum(done.rows for done in parts), sum(done.errors for done in parts)
    assert rows == job.rows, f"{rows} rows of {job.rows}"
    return Mapped(folder=folder, rows=rows, errors=errors, parts=len(parts), written=len(missing), notes=tuple(notes))


def _plain(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, Path) else value


def stamps_of(options: dict[str, Any]) -> dict[str, str]:
    """Returns a stamp for each option that names a folder, which changes with its files."""
    found = {}
    for name in ("model", "encoder", "reranker"):
        with suppress(OSError, ValueError):
            if isinstance(options.get(name), str) and Path(options[name]).is_dir():
                found[name] = stamp_of(Path(options[name]))
    return found


def _planned(asked: Job, verb: Verb[Any]) -> Job:
    """Returns the job with its rows, columns and parts."""
    added = list(added_columns(verb, asked.prefix))
    if asked.documents:
        if asked.text_field is not None:
            raise InputError(f"text_field is {show(asked.text_field)}, and the inputs are no tables; leave it out")
        if verb.reads:
            raise InputError(f"the column {verb.reads[0]!r} is to be read, and the inputs are no tables; leave it out")
        check_names(document_schema().names, added)
        return replace(asked, part_rows=asked.part_rows or rows_of_part(asked.rows))
    if verb.options.encoding is not None:
        raise InputError(f"encoding is {verb.options.encoding!r}, and tables are UTF-8; leave it out")
    inputs, schema, as_json = plan_tables(asked.inputs)
    check_names(schema.names, added)
    text = text_column(schema, asked.text_field, ROW_FIELDS)
    missing = next((name for name in verb.reads if name not in schema.names), None)
    if missing is not None:
        raise InputError(f"no column {missing!r}; there is {', '.join(schema.names)}; name another")
    return replace(
        asked,
        inputs=inputs,
        part_rows=asked.part_rows or rows_of_part(sum(input_file.rows for input_file in inputs)),
        schema=schema_text(schema.remove_metadata()),
        columns={column.name: str(column.type) for column in schema},
        as_json=as_json,
        text=text,
    )


def _planned_again(stored: Job, asked: Job, changed: list[Input], verb: Verb[Any], folder: Path) -> Job:
    """Plan a stored job with its current inputs, and remove the parts of changed inputs.

    Raises:
        InputError: an input is damaged, or has other columns than before.
    """
    job = _planned(replace(asked, part_rows=stored.part_rows), verb)
    if (job.schema, job.as_json, job.text) != (stored.schema, stored.as_json, stored.text):
        raise InputError(
            f"its input {changed[0].path!r} has changed since the job in {str(folder)!r} was begun, and the inputs "
            "have other columns now; give another folder"
        )
    for part in stored.parts():
        if not set(changed).isdisjoint(stored.inputs_of(part)):
            (folder / part.name).unlink(missing_ok=True)
    save_job(folder, job)  # last, so that after an interruption the inputs still count as changed
    return job


def _changed_note(changed: list[Input]) -> str:
    more = f" and {counted(len(changed) - 1, 'other input')}" if len(changed) > 1 else ""
    return f"{changed[0].path}{more} changed since the job was begun: what was made of it is done again"


def do_parts(
    job: Job,
    folder: Path,
    missing: list[Part],
    engine: Engine = "local",
    *,
    workers: int | None,
    threads: int,
    report: Callable[[Progress], None] | None,
) -> list[Damaged]:
    """Compute the missing parts; returns those whose input is damaged. Arguments as of `map_documents`."""
    done = before = job.rows - sum(part.rows for part in missing)
    begin = time.monotonic()

    def tell(under_way: int) -> None:
        if report is not None:
            now = done + under_way
            seconds = time.monotonic() - begin
            rate = max(0, now - before) / seconds if seconds > 0 else 0.0
            report(Progress(verb=job.verb, rows=job.rows, done=now, per_second=rate))

    tell(0)
    if workers == 0:
        results = _here(job, folder, missing)
    elif engine == "ray":
        from longspan_documents.mapping.on_ray import run_on_ray

        results = run_on_ray(job, folder, missing, workers, threads)
    else:
        results = _by_crew(job, folder, missing, workers or processors() // threads or 1, threads, tell)
    damaged = []
    with closing(results):  # the workers end, even if `report` raises
        for result in results:
            if isinstance(result, Damaged):
                damaged.append(result)
            else:
                done += result.rows
            tell(0)
    return damaged


def _by_crew(
    job: Job, folder: Path, missing: list[Part], workers: int, threads: int, tell: Callable[[int], None]
) -> Generator[Done | Damaged, None, None]:
    with Crew(job, folder, workers, threads) as crew:
        yield from crew.run(missing, tell)


def _here(job: Job, folder: Path, missing: list[Part]) -> Generator[Done | Damaged, None, None]:
    with PartRunner(job, folder) as runner:
        for part in missing:
            try:
                yield runner.do(part)
            except DamagedInputError as error:
                yield Damaged(part, str(error))


def processors() -> int:
    """Returns the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
