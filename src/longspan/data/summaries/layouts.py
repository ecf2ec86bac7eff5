"""The fields of the public summarisation data sets, and how a record becomes rows.

| layout | known by the fields | document | summaries |
|---|---|---|---|
| `crd3` | METADATA, TURNS | "NAME: text" per turn | `target="blurb"` (default) or `"synopsis"`, story headings only |
| `qmsum` | meeting_transcripts, general_query_list | "Speaker: text" per turn, corpus tags removed | general or all queries |
| `squality` | document, questions | text | four responses; the plot, or every question |
| `leval` | input, instructions, outputs | text | outputs whose measure is ROUGE, or every instruction |
| `scisummnet` | sections, human_summary | sentences of the sections | `target="abstract"` (default) or `"human_summary"`, for which the abstract is part of the document |
| `permissive` | sections, abstract, licence | title and paragraphs of the sections | `target="abstract"` (default) or `"digest"`, a shorter or plainer one that some documents have |
| `scitldr` | source, target, paper_id | sentences | every TLDR |
| `scientific_papers` | article, article_text or sections; abstract or abstract_text | text, sentences or lists of sentences | `<S>` marks removed |
| `plain` | source_field, target_field | text or list of sentences | text, or list of sentences; references and summaries: list of texts |
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from longspan.characters import check_characters
from longspan.data.fields import Record, kind_of
from longspan.data.summaries.rows import SummaryRow
from longspan.data.text.sentences import split_sentences
from longspan.errors import InputError

SOURCE_FIELDS = ("source", "document", "text", "article", "input", "dialogue", "transcript", "report", "body")
TARGET_FIELDS = ("target", "summary", "abstract", "highlights", "output", "references", "summaries", "tldr")
ID_FIELDS = ("id", "article_id", "paper_id", "doc_id", "meeting_id", "episode", "book_id", "uid")

_MARK = re.compile(r"</?[Ss]>")
_TAG = re.compile(r"\{[a-z]+\}")
_SPACED_MARK = re.compile(r"\s+([.,?!;:]|'\w{1,2}\b)")
# SumPubMed's compact layout keeps section names in capitals within an otherwise lower-case text.
_SECTION_NAME = re.compile(r"\b(?:BACKGROUND|METHODS|RESULTS|CONCLUSIONS?|DISCUSSION)\b")
_NOT_STORY = re.compile(
    r"(pre-?show|pre-?stream|announcements?|previously\b.*|recap|break|post-?.*|afterword|q&a|critmas)", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What to take from records that offer several things; `read_rows` explains each."""

    questions: str = "plain"
    target: str | None = None
    source_field: str | None = None
    target_field: str | None = None

    def pick(self, default: str, *others: str) -> str:
        """The chosen target, which must be one of those that the layout has."""
        target = self.target or default
        if target not in (default, *others):
            raise InputError(f"target={target!r} is not in this layout; it has {', '.join((default, *others))}")
        return target


def detect_layout(record: Record, choice: Choice) -> str:
    """The layout whose fields the record has; `InputError` where none fits."""
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
    """The rows of one record; `default_id` names it where it has no id of its own."""
    name = next((str(record[field]) for field in ID_FIELDS if record.get(field) not in (None, "")), default_id)
    return LAYOUTS[layout].rows(record, choice, name)


def _plain(record: Record, choice: Choice, name: str) -> Iterator[SummaryRow]:
    source_field = choice.source_field or next((field for field in SOURCE_FIELDS if field in record), SOURCE_FIELDS[0])
    target_field = choice.target_field or next((field for field in TARGET_FIELDS if field in record), None)
    references: tuple[str, ...] = ()
    if target_field in {"references", "summaries"}:
        references = tuple(_by_sentence(text) for text in _texts(record, target_field))
    elif target_field:
        target = _texts(record, target_field)
        references = (_by_sentence(target[0]) if isinstance(record[target_field], str) else _by_line(target),)
    question = record.get("question") or record.get("query")
    yield _document(record, source_field, name, references, question if isinstance(question, str) else None)


def _scientific_papers(record: Record, choice: Choice, name: str) -> Iterator[SummaryRow]:
    article = next((field for field in ("article_text", "article", "sections") if record.get(field)), "article_text")
    abstract = next((field for field in ("abstract_text", "abstract") if record.get(field)), "abstract_text")
    summary = _marked_sentences(record, abstract)
    if article == "sections":
        pieces = tuple(
            text for section in _list(record, "sections") for text in _texts({"sections": section}, "sections")
        )
        yield SummaryRow(id=name, pieces=pieces, references=(summary,))
    elif isinstance(record.get(article), str):
        # The Hub's copy: one paragraph or sentence per line.
        lines = tuple(line.strip() for line in record[article].split("\n") if line.strip())
        yield SummaryRow(id=name, pieces=lines, references=(summary,), separator="\n", split=True)
    else:
        pieces = tuple(text for text in _texts(record, article) if not _SECTION_NAME.fullmatch(text))
        yield SummaryRow(id=name, pieces=pieces, references=(summary,))


def _marked_sentences(record: Record, field: str) -> str:
    """An abstract as one sentence per line, from a list, from `<S>` marks, from lines, or by splitting."""
    texts = _texts(record, field)
    if isinstance(record[field], str) and not _MARK.search(texts[0]):
        if "\n" in texts[0].strip():
            return _by_line(texts[0].split("\n"))
        return _by_line(_by_sentence(part) for part in _SECTION_NAME.split(texts[0]))
    return _by_line(part for text in texts for part in _MARK.split(text))


def _scisummnet(record: Record, choice: Choice, name: str) -> Iterator[SummaryRow]:
    target = choice.pick("abstract", "human_summary")
    pieces = [] if target == "abstract" else list(_texts(record, "abstract"))
    for section in _list(record, "sections"):
        pieces.extend(_texts(section, "sentences"))
    yield SummaryRow(id=name, pieces=tuple(pieces), references=(_by_line(_texts(record, target)),))


def _permissive(record: Record, choice: Choice, name: str) -> Iterator[SummaryRow]:
    target = choice.pick("abstract", "digest")
    pieces: list[str] = []
    headings: list[int] = []
    for section in _list(record, "sections"):
        if title := " ".join(_texts(section, "title")).strip():
            headings.append(len(pieces))
            pieces.append(title)
        pieces += [part for text in _texts(section, "text") for part in text.split("\n\n") if part.strip()]
    # A document without the summary that was asked for is left out, as one with an empty summary is.
    summary = _by_line(_by_sentence(text) for text in _texts(record, target)) if record.get(target) is not None else ""
    yield SummaryRow(
        id=name,
        pieces=tuple(pieces),
        references=(summary,),
        separator="\n\n",
        split=True,
        language="en",
        title=" ".join(_texts(record, "title")),
        headings=tuple(headings),
    )


def _scitldr(record: Record, choice: Choice, name: str) -> Iterator[SummaryRow]:
    references = tuple(_by_sentence(text) for text in _texts(record, "target"))
    yield SummaryRow(id=name, pieces=_texts(record, "source"), references=references)


def _squality(record: Record, choice: Choice, name: str) -> Iterator[SummaryRow]:
    metadata = record.get("metadata")
    name = str(metadata.get("passage_id", name)) if isinstance(metadata, dict) else name
    for index, question in enumerate(_list(record, "questions"), 1):
        number = question.get("question_number", index)
        if choice.questions == "plain" and number != 1:  # question 1 always asks for the whole plot
            continue
        references = tuple(
            _by_sentence(text)
            for response in _list(question, "responses")
            for text in _texts(response, "response_text")
        )
        asked = None if choice.questions == "plain" else _texts(question, "question_text")[0]
        yield _document(record, "document", f"{name}#{number}", references, asked)


def _qmsum(record: Record, choice: Choice, name: str) -> Iterator[SummaryRow]:
    turns = []
    for turn in _list(record, "meeting_transcripts"):
        content = _SPACED_MARK.sub(r"\1", " ".join(_TAG.sub(" ", "".join(_texts(turn, "content"))).split()))
        if any(character.isalnum() for character in content):
            turns.append(f"{''.join(_texts(turn, 'speaker'))}: {content}")
    kinds = ("general_query_list", "specific_query_list")[: 1 if choice.questions == "plain" else 2]
    queries = [query for kind in kinds for query in _list(record, kind)]
    for index, query in enumerate(queries, 1):
        yield SummaryRow(
            id=f"{name}#{index}",
            pieces=tuple(turns),
            references=tuple(_by_sentence(text) for text in _texts(query, "answer")),
            question=None if choice.questions == "plain" else _texts(query, "query")[0],
            separator="\n",
            split=True,
        )


def _crd3(record: Record, choice: Choice, name: str) -> Iterator[SummaryRow]:
    turns = tuple(
        f"{' and '.join(_texts(turn, 'NAMES'))}: {' '.join(_texts(turn, 'UTTERANCES'))}"
        for turn in _list(record, "TURNS")
    )
    metadata = record["METADATA"]
    if choice.pick("blurb", "synopsis") == "blurb":
        parts = [text for blurb in _list(metadata, "Wiki Blurb") for text in _texts(blurb, "content")]
    else:
        story = [
            part for part in _list(metadata, "Synopsis") if not _NOT_STORY.fullmatch(str(part.get("heading")).strip())
        ]
        parts = [text for part in story for inner in _list(part, "content") for text in _texts(inner, "content")]
    summary = _by_line(_by_sentence(" ".join(part.split())) for part in parts)
    yield SummaryRow(id=name, pieces=turns, references=(summary,), separator="\n", split=True)


def _leval(record: Record, choice: Choice, name: str) -> Iterator[SummaryRow]:
    if choice.questions == "plain" and record.get("evaluation") != "rouge":
        return
    pairs = zip(_texts(record, "instructions"), _texts(record, "outputs"), strict=True)
    for index, (asked, answer) in enumerate(pairs, 1):
        question = None if choice.questions == "plain" else asked
        yield _document(record, "input", f"{name}#{index}", (_by_sentence(answer),), question)


def _document(record: Record, field: str, name: str, references: tuple[str, ...], question: str | None) -> SummaryRow:
    """A row whose document is one text, or a list of sentences."""
    pieces, split = _texts(record, field), isinstance(record.get(field), str)
    return SummaryRow(id=name, pieces=pieces, references=references, question=question, split=split)


def _texts(record: Record, field: str) -> tuple[str, ...]:
    """A field that holds a text, or a list of texts; the texts of a list lose white space that is not needed."""
    value = record.get(field)
    if isinstance(value, str):
        return (check_characters(value, f"field {field!r}"),)
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return tuple(" ".join(check_characters(text, f"field {field!r}").split()) for text in value if text.strip())
    if field not in record:
        raise InputError(f"field {field!r} is missing; the record has {', '.join(sorted(map(str, record)))}")
    raise InputError(f"field {field!r} holds {kind_of(value)} instead of a text or a list of texts")


def _list(record: Record, field: str) -> list[Any]:
    """A field that holds a list of objects or lists; absent or null means an empty one."""
    value = record.get(field) or []
    if not isinstance(value, list) or not all(isinstance(item, dict | list) for item in value):
        raise InputError(f"field {field!r} holds {kind_of(value)} instead of a list of objects")
    return value


def _by_sentence(text: str) -> str:
    """One sentence per line; a line break in the text stays one."""
    return "\n".join(sentence.text for line in text.split("\n") for sentence in split_sentences(line))


def _by_line(sentences: Iterable[str]) -> str:
    return "\n".join(sentence.strip() for sentence in sentences if sentence.strip())


class Layout(NamedTuple):
    """How records of one layout become rows, and the fields by which they are known, if these alone tell."""

    rows: Callable[[Record, Choice, str], Iterator[SummaryRow]]
    known_by: frozenset[str] = frozenset()


LAYOUTS: dict[str, Layout] = {
    "crd3": Layout(_crd3, frozenset({"METADATA", "TURNS"})),
    "qmsum": Layout(_qmsum, frozenset({"meeting_transcripts", "general_query_list"})),
    "squality": Layout(_squality, frozenset({"document", "questions"})),
    "leval": Layout(_leval, frozenset({"input", "instructions", "outputs"})),
    "scisummnet": Layout(_scisummnet, frozenset({"sections", "human_summary"})),
    "permissive": Layout(_permissive, frozenset({"sections", "abstract", "licence"})),
    "scitldr": Layout(_scitldr, frozenset({"source", "target", "paper_id"})),
    "scientific_papers": Layout(_scientific_papers),
    "plain": Layout(_plain),
}
