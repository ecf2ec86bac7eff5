"""TyDi QA's primary task (Clark et al. 2020): a record as a `QuestionRow`.

Its document is plain text (`document_plaintext`), its candidates are passages, its answers are a passage and a minimal
span within it, or yes or no. Offsets in the file count bytes of the text's UTF-8 form; those of the row count
characters, and `QuestionRow.original` goes back.
"""

from __future__ import annotations

from typing import Any

from longspan.data.fields import Record, list_of, name_of, number_of, value_of
from longspan.data.questions.natural_questions import annotations_of, candidate_index, yes_no_of
from longspan.data.questions.rows import Annotation, Candidate, QuestionRow, Span, TextBytes, check_text
from longspan.errors import InputError


def tydi_question(record: Record, default_id: str = "", *, labelled: bool = True) -> QuestionRow:
    """The row of one record of the primary task; arguments and errors as `natural_question` has them.

    Raises:
        InputError: also where an offset lies within a character.
    """
    question = check_text(value_of(record, "question_text"), "the question (field 'question_text')")
    text = check_text(value_of(record, "document_plaintext"), "the document (field 'document_plaintext')")
    places = TextBytes(text)
    candidates = tuple(
        Candidate(_span(entry, f"passage_answer_candidates[{index}]", places))
        for index, entry in enumerate(list_of(record, "passage_answer_candidates"))
    )
    language, title = record.get("language"), record.get("document_title")
    return QuestionRow(
        id=name_of(record, "example_id", default_id),
        question=question,
        text=text,
        candidates=candidates,
        annotations=annotations_of(
            record, labelled, lambda entry, where: _annotation(entry, where, candidates, places)
        ),
        source="tydi",
        language=language if isinstance(language, str) else None,
        title=title if isinstance(title, str) else "",
    )


def _annotation(entry: Any, where: str, candidates: tuple[Candidate, ...], places: TextBytes) -> Annotation:
    answer = value_of(entry, "passage_answer", where)
    index = candidate_index(answer, f"{where}.passage_answer", len(candidates))
    minimal, name = value_of(entry, "minimal_answer", where), f"{where}.minimal_answer"
    if number_of(minimal, "plaintext_start_byte", name) == number_of(minimal, "plaintext_end_byte", name) == -1:
        return Annotation(index, (), yes_no_of(entry, where))
    span = _span(minimal, name, places)
    passage = Span(0, 0) if index is None else candidates[index].span
    if not passage.start <= span.start < span.end <= passage.end:
        outer = "none" if index is None else f"candidate {index}"
        raise InputError(f"{name} lies outside its passage ({outer}), or is empty")
    return Annotation(index, (span,), yes_no_of(entry, where))


def _span(entry: Any, where: str, places: TextBytes) -> Span:
    start, end = number_of(entry, "plaintext_start_byte", where), number_of(entry, "plaintext_end_byte", where)
    span = places.span(start, end)
    if span is None:
        raise InputError(
            f"{where} is bytes {start}–{end}, which are not whole characters of a document of {places.length} bytes"
        )
    return span
