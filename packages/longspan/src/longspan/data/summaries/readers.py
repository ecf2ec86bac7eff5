"""Summarisation data sets, by name, file or directory: a stream of `SummaryRow`.

- `read_rows("pubmed", "validation")`: one of `DATA_SETS`, or any folder of LONGSPAN_DATA
- `read_rows("papers.jsonl.gz")`: the layout is recognised by its fields, see `LAYOUTS`
- `read_rows("corpus/", "validation")`: `corpus/validation*.jsonl`, or valid, val, dev

A record becomes rows by its layout, which its fields tell:

| layout | known by the fields | document | summaries |
|---|---|---|---|
| `crd3` | METADATA, TURNS | "NAME: text" per turn | `target="blurb"` (default) or `"synopsis"`, story headings only |
| `qmsum` | meeting_transcripts, general_query_list | "Speaker: text" per turn, corpus tags removed | general or all queries |
| `summscreen` | Transcript, Recap | the lines of an episode (TVMegaSite, ForeverDreaming) | the recap |
| `squality` | document, questions | text | four responses; the plot, or every question |
| `leval` | input, instructions, outputs | text | outputs whose measure is ROUGE, or every instruction |
| `scisummnet` | sections, human_summary | sentences of the sections | `target="abstract"` (default) or `"human_summary"`, for which the abstract is part of the document |
| `permissive` | sections, abstract, licence | title and paragraphs of the sections | `target="abstract"` (default) or `"digest"`, a shorter or plainer one that some documents have |
| `scitldr` | source, target, paper_id | sentences | every TLDR |
| `scientific_papers` | article, article_text or sections; abstract or abstract_text | text, sentences or lists of sentences | `<S>` marks removed |
| `plain` | source_field, target_field | text or list of sentences | text, or list of sentences; references and summaries: list of texts |
"""  # noqa: E501

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from longspan.characters import counted
from longspan.data.documents import DATA_SETS, Choice
from longspan.data.fields import Record, Skipped, check_on_error, id_of, objects_in, texts_in
from longspan.data.sources import Kind, read
from longspan.data.summaries.rows import SummaryRow, synthetic_rows
from longspan.data.tables import read_records
from longspan.data.text.sentences import split_sentences
from longspan.data.turns import crd3_turns, qmsum_turns
from longspan.errors import InputError

SOURCE_FIELDS = ("source", "document", "text", "article", "input", "dialogue", "transcript", "report", "body", "src")
TARGET_FIELDS = ("target", "summary", "abstract", "highlights", "output", "references", "summaries", "tldr", "tgt")

_MARK = re.compile(r"</?[Ss]>")
# SumPubMed's compact layout keeps section names in capitals within an otherwise lower-case text.
_SECTION_NAME = re.compile(r"\b(?:BACKGROUND|METHODS|RESULTS|CONCLUSIONS?|DISCUSSION)\b")
_NOT_STORY = re.compile(
    r"(pre-?show|pre-?stream|announcements?|previously\b.*|recap|break|post-?.*|afterword|q&a|critmas)", re.IGNORECASE
)


def detect_layout(record: Record, choice: Choice) -> str:
    """Returns the layout whose fields the record has; raises `InputError` if none matches."""
    has = record.keys()
    if choice.source_field or choice.target_field:
        return "plain"
    for name, layout in LAYOUTS.items():
        if layout.known_by and layout.known_by <= has:
            return name
    if has & {"article", "article_text", "sections"} and has & {"abstract", "abstract_text"}:
        return "scientific_papers"
    if any(field in has for field in SOURCE_FIELDS):
        return "plain"
    raise InputError(
        f"no known layout has the fields {', '.join(sorted(has)) or '(none)'}; "
        "name the fields with source_field and target_field"
    )


def parse_record(layout: str, record: Record, choice: Choice, default_id: str) -> Iterator[SummaryRow]:
    """Yields the rows of one record; `default_id` is used if it has no id."""
    return LAYOUTS[layout].rows(record, choice, id_of(record, default_id))


def _plain(record: Record, choice: Choice, name: str) -> Iterator[SummaryRow]:
    source_field = choice.source_field or next((field for field in SOURCE_FIELDS if field in record), SOURCE_FIELDS[0])
    target_field = choice.target_field or next((field for field in TARGET_FIELDS if field in record), None)
    references: tuple[str, ...] = ()
    if target_field in {"references", "summaries"}:
        references = tuple(_by_sentence(text) for text in texts_in(record, target_field))
    elif target_field:
        target = texts_in(record, target_field)
        references = (_by_sentence(target[0]) if isinstance(record[target_field], str) else _by_line(target),)
    question = record.get("question") or record.get("query")
    yield _document(record, source_field, name, references, question if isinstance(question, str) else None)


def _scientific_papers(record: Record, choice: Choice, name: str) -> Iterator[SummaryRow]:
    article = next((field for field in ("article_text", "article", "sections") if record.get(field)), "article_text")
    abstract = next((field for field in ("abstract_text", "abstract") if record.get(field)), "abstract_text")
    summary = _marked_sentences(record, abstract)
    if article == "sections":
        pieces = tuple(
            text for section in objects_in(record, "sections") for text in texts_in({"sections": section}, "sections")
        )
        yield SummaryRow(id=name, pieces=pieces, references=(summary,))
    elif isinstance(record.get(article), str):
        # The Hub's version: one paragraph or sentence per line.
        lines = tuple(line.strip() for line in record[article].split("\n") if line.strip())
        yield SummaryRow(id=name, pieces=lines, references=(summary,), separator="\n", split=True)
    else:
        pieces = tuple(text for text in texts_in(record, article) if not _SECTION_NAME.fullmatch(text))
        yield SummaryRow(id=name, pieces=pieces, references=(summary,))


def _marked_sentences(record: Record, field: str) -> str:
    """Returns an abstract as one sentence per line, from a list, `<S>` marks, lines, or by segmentation."""
    texts = texts_in(record, field)
    if isinstance(record[field], str) and not _MARK.search(texts[0]):
        if "\n" in texts[0].strip():
            return _by_line(texts[0].split("\n"))
        return _by_line(_by_sentence(part) for part in _SECTION_NAME.split(texts[0]))
    return _by_line(part for text in texts for part in _MARK.split(text))


def _scisummnet(record: Record, choice: Choice, name: str) -> Iterator[SummaryRow]:
    target = choice.pick("abstract", "human_summary")
    pieces = [] if target == "abstract" else list(texts_in(record, "abstract"))
    for section in objects_in(record, "sections"):
        pieces.extend(texts_in(section, "sentences"))
    yield SummaryRow(id=name, pieces=tuple(pieces), references=(_by_line(texts_in(record, target)),))


def _permissive(record: Record, choice: Choice, name: str) -> Iterator[SummaryRow]:
    target = choice.pick("abstract", "digest")
    pieces: list[str] = []
    headings: list[int] = []
    for section in objects_in(record, "sections"):
        if title := " ".join(texts_in(section, "title")).strip():
            headings.append(len(pieces))
            pieces.append(title)
        pieces += [part for text in texts_in(section, "text") for part in text.split("\n\n") if part.strip()]
    # A document without the requested summary is skipped, like one with an empty summary.
    summary = (
        _by_line(_by_sentence(text) for text in texts_in(record, target)) if record.get(target) is not None else ""
    )
    yield SummaryRow(
        id=name,
        pieces=tuple(pieces),
        references=(summary,),
        separator="\n\n",
        split=True,
        language="en",
        title=" ".join(texts_in(record, "title")),
        headings=tuple(headings),
    )


def _scitldr(record: Record, choice: Choice, name: str) -> Iterator[SummaryRow]:
    references = tuple(_by_sentence(text) for text in texts_in(record, "target"))
    yield SummaryRow(id=name, pieces=texts_in(record, "source"), references=references)


def _squality(record: Record, choice: Choice, name: str) -> Iterator[SummaryRow]:
    metadata = record.get("metadata")
    name = str(metadata.get("passage_id", name)) if isinstance(metadata, dict) else name
    for index, question in enumerate(objects_in(record, "questions"), 1):
        number = question.get("question_number", index)
        if choice.questions == "plain" and number != 1:  # question 1 always asks for the whole plot
            continue
        references = tuple(
            _by_sentence(text)
            for response in objects_in(question, "responses")
            for text in texts_in(response, "response_text")
        )
        asked = None if choice.questions == "plain" else texts_in(question, "question_text")[0]
        yield _document(record, "document", f"{name}#{number}", references, asked)


def _qmsum(record: Record, choice: Choice, name: str) -> Iterator[SummaryRow]:
    turns = tuple(turn.line for turn in qmsum_turns(record))
    kinds = ("general_query_list", "specific_query_list")[: 1 if choice.questions == "plain" else 2]
    queries = [query for kind in kinds for query in objects_in(record, kind)]
    for index, query in enumerate(queries, 1):
        yield SummaryRow(
            id=f"{name}#{index}",
            pieces=turns,
            references=tuple(_by_sentence(text) for text in texts_in(query, "answer")),
            question=None if choice.questions == "plain" else texts_in(query, "query")[0],
            separator="\n",
            split=True,
        )


def _crd3(record: Record, choice: Choice, name: str) -> Iterator[SummaryRow]:
    turns = tuple(turn.line for turn in crd3_turns(record))
    metadata = record["METADATA"]
    if choice.pick("blurb", "synopsis") == "blurb":
        parts = [text for blurb in objects_in(metadata, "Wiki Blurb") for text in texts_in(blurb, "content")]
    else:
        story = [
            part
            for part in objects_in(metadata, "Synopsis")
            if not _NOT_STORY.fullmatch(str(part.get("heading")).strip())
        ]
        parts = [text for part in story for inner in objects_in(part, "content") for text in texts_in(inner, "content")]
    summary = _by_line(_by_sentence(" ".join(part.split())) for part in parts)
    yield SummaryRow(id=name, pieces=turns, references=(summary,), separator="\n", split=True)


def _summscreen(record: Record, choice: Choice, name: str) -> Iterator[SummaryRow]:
    recap = "\n".join(_by_sentence(text) for text in texts_in(record, "Recap"))
    yield SummaryRow(id=name, pieces=texts_in(record, "Transcript"), references=(recap,), separator="\n", split=True)


def _leval(record: Record, choice: Choice, name: str) -> Iterator[SummaryRow]:
    if choice.questions == "plain" and record.get("evaluation") != "rouge":
        return
    pairs = zip(texts_in(record, "instructions"), texts_in(record, "outputs"), strict=True)
    for index, (asked, answer) in enumerate(pairs, 1):
        question = None if choice.questions == "plain" else asked
        yield _document(record, "input", f"{name}#{index}", (_by_sentence(answer),), question)


def _document(record: Record, field: str, name: str, references: tuple[str, ...], question: str | None) -> SummaryRow:
    """Returns a row whose document is one text, or a list of sentences."""
    pieces, split = texts_in(record, field), isinstance(record.get(field), str)
    return SummaryRow(id=name, pieces=pieces, references=references, question=question, split=split)


def _by_sentence(text: str) -> str:
    """Returns one sentence per line; line breaks in the text are kept."""
    return "\n".join(sentence.text for line in text.split("\n") for sentence in split_sentences(line))


def _by_line(sentences: Iterable[str]) -> str:
    return "\n".join(sentence.strip() for sentence in sentences if sentence.strip())


class Layout(NamedTuple):
    """Conversion of records of one layout to rows, and the fields that identify the layout, if any do."""

    rows: Callable[[Record, Choice, str], Iterator[SummaryRow]]
    known_by: frozenset[str] = frozenset()


LAYOUTS: dict[str, Layout] = {
    "crd3": Layout(_crd3, frozenset({"METADATA", "TURNS"})),
    "qmsum": Layout(_qmsum, frozenset({"meeting_transcripts", "general_query_list"})),
    "summscreen": Layout(_summscreen, frozenset({"Transcript", "Recap"})),
    "squality": Layout(_squality, frozenset({"document", "questions"})),
    "leval": Layout(_leval, frozenset({"input", "instructions", "outputs"})),
    "scisummnet": Layout(_scisummnet, frozenset({"sections", "human_summary"})),
    "permissive": Layout(_permissive, frozenset({"sections", "abstract", "licence"})),
    "scitldr": Layout(_scitldr, frozenset({"source", "target", "paper_id"})),
    "scientific_papers": Layout(_scientific_papers),
    "plain": Layout(_plain),
}


logger = logging.getLogger(__name__)


SUMMARIES = Kind(
    row=SummaryRow,
    named=DATA_SETS,
    made_up=lambda count, seed: synthetic_rows(8 if count is None else count, seed=seed),
    suffixes=("jsonl", "json", "txt", "csv", "tsv", "parquet"),
)
"""Sources of summaries."""


def read_rows(
    data: str | Path | Sequence[str | Path],
    split: str = "train",
    *,
    layout: str | None = None,
    questions: str | None = None,
    target: str | None = None,
    source_field: str | None = None,
    target_field: str | None = None,
    limit: int | None = None,
    on_error: str = "raise",
) -> Iterator[SummaryRow]:
    """Stream the rows of a data set; one record is in memory at a time.

    Rows without a document, or whose summary is empty, are left out; a warning in the log counts them for each file.

    Args:
        data: a JSON Lines, CSV or TSV file (plain, gzip or xz), a Parquet file, a directory with one or more files
            per split, the name of one of `DATA_SETS` under the folder that the environment variable LONGSPAN_DATA
            names, of a registered reader, or several of these.
        split: split of a directory or a named data set; a single file is read for every split.
        layout: one of `longspan.data.summaries.readers.LAYOUTS`; None recognises it from the fields of a file's first
            record.
        questions: "plain" takes summaries of the whole document (`question` is None); "all" takes every question of
            data sets that have them. None is "plain", or the setting of the named data set.
        target: which of several summaries: "abstract" or "human_summary", "blurb" or "synopsis".
        source_field: the field that holds the document, in the plain layout.
        target_field: the field that holds the summary, in the plain layout.
        limit: maximum number of rows.
        on_error: "raise" stops at a malformed line; "skip" drops it and logs the count.

    Raises:
        InputError: no data is found, LONGSPAN_DATA is not set, or an option is invalid (immediately); a line is
            malformed (when reached; the message names file and line).
    """
    if layout is not None and layout not in LAYOUTS:
        raise InputError(f"layout={layout!r} is unknown; choose one of {', '.join(LAYOUTS)}")
    check_on_error(on_error)
    if questions not in {None, "plain", "all"}:
        raise InputError(f"questions={questions!r} is unknown; choose 'plain' or 'all'")
    options = {"questions": questions, "target": target, "source_field": source_field, "target_field": target_field}
    given = {name: value for name, value in options.items() if value is not None}

    def read_file(path: Path, choice: Choice | None) -> Iterator[SummaryRow]:
        skipped = Skipped(str(path), on_error)
        return _rows(read_records(path, skipped.add), layout, replace(choice or Choice(), **given), skipped)

    return read(data, split, SUMMARIES, read_file, limit)


def _rows(
    records: Iterable[tuple[int, dict[str, Any]]], layout: str | None, choice: Choice, skipped: Skipped
) -> Iterator[SummaryRow]:
    """Rows of one file; errors get the place, and rows without text are counted."""
    empty: list[int] = []
    place = skipped.place
    stem = Path(place).name.split(".")[0]
    for number, record in records:
        try:
            layout = layout or detect_layout(record, choice)
            rows = list(parse_record(layout, record, choice, f"{stem}:{number}"))
        except (InputError, KeyError, TypeError, AttributeError, ValueError) as error:
            reason = error if isinstance(error, InputError) else f"not a record of layout {layout!r} ({error})"
            wrong = InputError(f"{place}, line {number}: {reason}")
            wrong.__cause__ = error
            skipped.add(number, wrong)
            continue
        # A row needs text in the document and in every reference; references may be missing.
        complete = [
            row
            for row in rows
            if any(piece.strip() for piece in row.pieces) and all(text.strip() for text in row.references)
        ]
        yield from complete
        if not rows or len(complete) < len(rows):
            empty.append(number)
    skipped.report()
    if empty:
        logger.warning(
            "%s: %s no text, or no summary that was asked for (questions=%s); the first is in line %d",
            *(place, counted(len(empty), "record has", "records have"), choice.questions, empty[0]),
        )
