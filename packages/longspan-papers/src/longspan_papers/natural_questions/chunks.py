"""The chunks that a question-answering model trains on, on disk: tokenised once, read by index through a memory map.

A `Ragged` with a row for each chunk: its ids, the passage of every token (−1 = none) and its type, where the options
ask for types; its question's tokens and its labels. Neither documents nor chunks are ever all in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from longspan.data.ragged import Ragged, Writer, fingerprint_of, make_once
from longspan.errors import InputError
from longspan.progress import progress_bar
from longspan_documents.questions.rows import QuestionRow
from longspan_papers.natural_questions.features import chunk_features
from longspan_papers.natural_questions.network import LABELS
from longspan_papers.natural_questions.options import QuestionOptions

COLUMNS = {"input_ids": "<i4", "paragraph_ids": "<i4", "token_type_ids": "u1"}


def question_chunks(
    folder: Path,
    rows: Iterable[QuestionRow],
    tokenizer: Any,
    options: QuestionOptions,
    *,
    sources: Sequence[Any],
    training: bool,
    seed: int,
) -> Ragged:
    """The chunks in this folder: those that are there, or else made now, of which none without a passage.

    Args:
        folder: where they are, or will be.
        rows: read only where there are no chunks yet.
        tokenizer: of transformers, with the marker tokens.
        options: how documents are cut.
        sources: what tells these rows from others, as plain data.
        training: leave out negatives, as the options say.
        seed: decides which.

    Raises:
        InputError: no chunk to train on; what `chunk_features` refuses; a folder made from something else.
    """
    fingerprint = fingerprint_of(tokenizer, asdict(options), list(sources), training, seed)

    def fill(partial: Path) -> dict[str, Any]:
        index = _write(partial, rows, tokenizer, options, training, seed)
        if not index["rows"]:
            raise InputError(
                f"the {index['questions']} rows give no chunk with a passage to train on; name other data, or raise "
                "keep_negatives"
            )
        return index

    return make_once(folder, fingerprint, fill, other="other rows, options or by another tokenizer")


def _write(
    folder: Path, rows: Iterable[QuestionRow], tokenizer: Any, options: QuestionOptions, training: bool, seed: int
) -> dict[str, Any]:
    columns = {name: dtype for name, dtype in COLUMNS.items() if name != "token_type_ids" or options.match_types}
    questions = 0
    with Writer(folder, columns, ("question_tokens", *LABELS)) as writer:
        for row in progress_bar(rows, doing="tokenising", unit=" rows"):
            questions += 1
            for chunk in chunk_features(row, tokenizer, options, training=training, seed=seed):
                if not chunk["candidates"]:
                    continue
                fields: dict[str, Any] = dict(chunk)
                if any(label not in fields for label in LABELS):
                    raise InputError(f"row {row.id!r} has no annotations to train on; leave it out")
                writer.extend(**{column: fields[column] for column in writer.columns})
                writer.end_row(**{number: fields[number] for number in writer.numbers})
    return {**writer.index(), "questions": questions}
