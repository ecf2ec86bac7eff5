"""Natural Questions (Kwiatkowski et al. 2019) and TyDi QA (Clark et al. 2020): a record as a `QuestionRow`.

Natural Questions come in the original or the simplified format:

| | original | simplified |
|---|---|---|
| document | `document_tokens`: `token`, `html_token`, `start_byte`, `end_byte`; `document_html` | `document_text`: tokens joined by one space, tags among them, spaces within a tag written as `_` |
| offsets | tokens, and bytes of the HTML's UTF-8 form | tokens |
| both | `question_text`, `long_answer_candidates`, `annotations` with a `long_answer`, `short_answers`, `yes_no_answer` | |

The row's text is then the tokens that are not HTML, joined by one space. Both formats of one record give equal rows,
but for the bytes that only the original has.

A document of TyDi QA is plain text (`document_plaintext`), its candidates are passages, its answers are a passage and a
minimal span within it, or yes or no. Offsets in the file count bytes of the text's UTF-8 form; those of the row count
characters, and `QuestionRow.original` goes back.
"""  # noqa: E501

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from longspan.data.fields import Record, check_text, kind_of, list_of, name_of, number_of, value_of
from longspan.errors import InputError
from longspan_documents.questions.rows import (
    YES_NO,
    Annotation,
    Candidate,
    Place,
    QuestionRow,
    Span,
    TextBytes,
    TokenPlaces,
)

_TAG = re.compile(r"</?([A-Za-z][A-Za-z0-9]*)(?:[\s_/].*)?>", re.DOTALL)
_KINDS = {"p": "paragraph", "table": "table", "ul": "list", "ol": "list", "dl": "list"}


@dataclass(frozen=True)
class _Document:
    """Tokens of a document, which of them are text, their offsets in the text, and their byte offsets if known."""

    tokens: list[str]
    is_text: list[bool]
    text: str
    places: TokenPlaces
    start_bytes: list[int]
    end_bytes: list[int]


def natural_question(record: Record, default_id: str = "") -> QuestionRow:
    """Parses one record of either format.

    The title is the field `document_title`, else the document's first heading (`<H1>`). As a label, a short answer is
    stripped of tags at its ends, and dropped if it has only tags; the annotation keeps its published place, see
    `Annotation.short_places`.

    Args:
        record: as in the file.
        default_id: identifies the row if the record has no `example_id`.

    Raises:
        InputError: a field is missing or of a wrong type; the document has no text; a candidate lies outside the
            document; an annotation refers to a missing candidate, or contradicts its tokens; a short answer lies
            outside the long one.
    """
    if "question_text" not in record and "question_tokens" in record:
        tokens = list_of(record, "question_tokens")
        question = check_text(" ".join(map(str, tokens)), "the question (field 'question_tokens')")
    else:
        question = check_text(value_of(record, "question_text"), "the question (field 'question_text')")
    document = _document(record)
    candidates = _candidates(record, document)
    title = record.get("document_title")
    return QuestionRow(
        id=name_of(record, "example_id", default_id),
        question=question,
        text=document.text,
        candidates=candidates,
        annotations=annotations_of(record, lambda entry, where: _annotation(entry, where, document, candidates)),
        source="nq",
        title=title if isinstance(title, str) else _heading(document),
        tokens=document.places,
    )


def _document(record: Record) -> _Document:
    start_bytes: list[int] = []
    end_bytes: list[int] = []
    if "document_tokens" in record:
        entries = list_of(record, "document_tokens")
        try:
            tokens = [entry["token"] for entry in entries]
            markup = [entry["html_token"] for entry in entries]
            start_bytes = [entry.get("start_byte", -1) for entry in entries]
            end_bytes = [entry.get("end_byte", -1) for entry in entries]
        except (KeyError, TypeError, AttributeError):
            raise InputError("field 'document_tokens' has entries without 'token' and 'html_token'") from None
        _check_types(tokens, markup, [*start_bytes, *end_bytes])
    else:
        tokens = check_text(value_of(record, "document_text"), "the document (field 'document_text')").split(" ")
        markup = [token[:1] == "<" and _TAG.fullmatch(token) is not None for token in tokens]
    is_text = [not tag and token.strip() != "" for token, tag in zip(tokens, markup, strict=True)]
    text_tokens = array("q", (place for place, real in enumerate(is_text) if real))
    if not text_tokens:
        raise InputError("the document has only HTML tokens and no text; leave the record out")
    starts, length = array("q"), 0
    for place in text_tokens:
        starts.append(length)
        length += len(tokens[place]) + 1
    text = check_text(" ".join(tokens[place] for place in text_tokens), "the document")
    if not start_bytes or all(start_bytes[place] < 0 for place in text_tokens):
        return _Document(tokens, is_text, text, TokenPlaces(text_tokens, starts, length - 1), [], [])
    text_bytes = (array("q", (values[place] for place in text_tokens)) for values in (start_bytes, end_bytes))
    places = TokenPlaces(text_tokens, starts, length - 1, *text_bytes)
    return _Document(tokens, is_text, text, places, start_bytes, end_bytes)


def _check_types(tokens: list[Any], markup: list[Any], offsets: list[Any]) -> None:
    for name, values, kind in (("token", tokens, str), ("html_token", markup, bool), ("byte offset", offsets, int)):
        if set(map(type, values)) - {kind}:
            wrong = next(value for value in values if type(value) is not kind)
            raise InputError(f"field 'document_tokens' has {kind_of(wrong)} as {name} instead of a {kind.__name__}")
    if offsets and not -1 <= min(offsets) <= max(offsets) < 2**62:
        raise InputError("field 'document_tokens' has a byte offset that no document has")


def _heading(document: _Document) -> str:
    """Returns the text of the first `<H1>` element."""
    tokens = document.tokens
    begin = next((place for place, token in enumerate(tokens) if re.fullmatch(r"<H1(_.*)?>", token)), len(tokens))
    end = next((place for place in range(begin, len(tokens)) if tokens[place] == "</H1>"), begin)
    return " ".join(tokens[place] for place in range(begin, end) if document.is_text[place])


def _candidates(record: Record, document: _Document) -> tuple[Candidate, ...]:
    candidates = []
    for index, entry in enumerate(list_of(record, "long_answer_candidates")):
        where = f"long_answer_candidates[{index}]"
        start, end = _tokens(entry, where, document)
        top_level = entry.get("top_level", True)
        if not isinstance(top_level, bool):
            raise InputError(f"field 'top_level' of {where} holds {kind_of(top_level)} instead of true or false")
        tag = _TAG.fullmatch(document.tokens[start])
        kind = _KINDS.get(tag.group(1).lower(), "other") if tag else "other"
        place_bytes = (number_of(entry, name, where) if name in entry else -1 for name in ("start_byte", "end_byte"))
        candidates.append(Candidate(document.places.span(start, end), kind, top_level, Place(start, end, *place_bytes)))
    return tuple(candidates)


def _tokens(entry: Any, where: str, document: _Document) -> tuple[int, int]:
    """Returns the token range of an entry; raises `InputError` if the document is shorter."""
    start, end = number_of(entry, "start_token", where), number_of(entry, "end_token", where)
    if not 0 <= start < end <= len(document.tokens):
        raise InputError(f"{where} is tokens {start}–{end} of a document with {len(document.tokens)} tokens")
    return start, end


def _annotation(entry: Any, where: str, document: _Document, candidates: tuple[Candidate, ...]) -> Annotation:
    long_answer = value_of(entry, "long_answer", where)
    index = candidate_index(long_answer, f"{where}.long_answer", len(candidates))
    place = Place() if index is None else candidates[index].place
    assert place is not None
    span = (long_answer.get("start_token", place.start_token), long_answer.get("end_token", place.end_token))
    if span != (place.start_token, place.end_token):
        raise InputError(
            f"{where}.long_answer is tokens {span[0]}–{span[1]}, but its candidate {-1 if index is None else index} "
            f"is tokens {place.start_token}–{place.end_token}"
        )
    published: tuple[Place, ...] = ()
    for number, answer in enumerate(list_of(entry, "short_answers", where)):
        name = f"{where}.short_answers[{number}]"
        start, end = _tokens(answer, name, document)
        if not place.start_token <= start < end <= place.end_token:
            outer = f"tokens {place.start_token}–{place.end_token}" if place.start_token >= 0 else "none"
            raise InputError(f"{name} is tokens {start}–{end}, outside its long answer ({outer})")
        known = (document.start_bytes[start], document.end_bytes[end - 1]) if document.start_bytes else ()
        published += (_with_bytes(answer, name, Place(start, end, *known)),)
    spans = (document.places.span(short.start_token, short.end_token) for short in published)
    labels = tuple(span for span in spans if len(span))
    long_place = _with_bytes(long_answer, f"{where}.long_answer", place)
    return Annotation(
        candidate=index,
        short=labels,
        yes_no=yes_no_of(entry, where),
        long_place=None if long_place == place else long_place,
        short_places=None if published == tuple(map(document.places.place, labels)) else published,
    )


def _with_bytes(entry: Record, where: str, place: Place) -> Place:
    """Returns a place with the byte offsets of its record, if it has any."""
    if "start_byte" not in entry or "end_byte" not in entry:
        return place
    start, end = number_of(entry, "start_byte", where), number_of(entry, "end_byte", where)
    return Place(place.start_token, place.end_token, start, end)


def annotations_of(record: Record, read: Callable[[Any, str], Annotation]) -> tuple[Annotation, ...]:
    """Parses each entry of the field `annotations` with its location."""
    entries = list_of(record, "annotations")
    if not entries:
        raise InputError("field 'annotations' is empty; a row needs at least one")
    return tuple(read(entry, f"annotations[{index}]") for index, entry in enumerate(entries))


def candidate_index(entry: Any, where: str, count: int) -> int | None:
    """Returns the field `candidate_index`, None for −1; raises `InputError` if there is no such candidate."""
    index = number_of(entry, "candidate_index", where)
    if not -1 <= index < count:
        raise InputError(f"{where} names candidate {index}, but the document has {count} candidates")
    return None if index == -1 else index


def yes_no_of(entry: Record, where: str) -> str:
    """Returns the field `yes_no_answer` in lower case; "none" if it is missing."""
    value = entry.get("yes_no_answer", "none")
    if not isinstance(value, str) or value.lower() not in YES_NO:
        raise InputError(f"field 'yes_no_answer' of {where} is {value!r}; it must be 'NONE', 'YES' or 'NO'")
    return value.lower()


def tydi_question(record: Record, default_id: str = "") -> QuestionRow:
    """Parses one record of the primary task; arguments and errors as in `natural_question`.

    Raises:
        InputError: also if an offset lies within a character.
    """
    question = check_text(value_of(record, "question_text"), "the question (field 'question_text')")
    text = check_text(value_of(record, "document_plaintext"), "the document (field 'document_plaintext')")
    places = TextBytes(text)
    candidates = tuple(
        Candidate(_tydi_span(entry, f"passage_answer_candidates[{index}]", places))
        for index, entry in enumerate(list_of(record, "passage_answer_candidates"))
    )
    language, title = record.get("language"), record.get("document_title")
    return QuestionRow(
        id=name_of(record, "example_id", default_id),
        question=question,
        text=text,
        candidates=candidates,
        annotations=annotations_of(record, lambda entry, where: _tydi_annotation(entry, where, candidates, places)),
        source="tydi",
        language=language if isinstance(language, str) else None,
        title=title if isinstance(title, str) else "",
    )


def _tydi_annotation(entry: Any, where: str, candidates: tuple[Candidate, ...], places: TextBytes) -> Annotation:
    answer = value_of(entry, "passage_answer", where)
    index = candidate_index(answer, f"{where}.passage_answer", len(candidates))
    minimal, name = value_of(entry, "minimal_answer", where), f"{where}.minimal_answer"
    if number_of(minimal, "plaintext_start_byte", name) == number_of(minimal, "plaintext_end_byte", name) == -1:
        return Annotation(index, (), yes_no_of(entry, where))
    span = _tydi_span(minimal, name, places)
    passage = Span(0, 0) if index is None else candidates[index].span
    if not passage.start <= span.start < span.end <= passage.end:
        outer = "none" if index is None else f"candidate {index}"
        raise InputError(f"{name} lies outside its passage ({outer}), or is empty")
    return Annotation(index, (span,), yes_no_of(entry, where))


def _tydi_span(entry: Any, where: str, places: TextBytes) -> Span:
    start, end = number_of(entry, "plaintext_start_byte", where), number_of(entry, "plaintext_end_byte", where)
    span = places.span(start, end)
    if span is None:
        raise InputError(
            f"{where} is bytes {start}–{end}, which are not whole characters of a document of {places.length} bytes"
        )
    return span
