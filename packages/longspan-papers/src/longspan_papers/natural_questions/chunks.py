"""The training chunks of a question-answering model on disk: tokenised once, read by index through a memory map.

A `Ragged` with a row for each chunk: its ids, the passage of every token (−1 = none) and its type, if the options use
types; the length of its question and its labels. Documents and chunks are never all in memory.
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
    """Returns the chunks in a folder, all with a passage; writes them if they do not exist yet.

    Args:
        folder: of the chunks.
        rows: read only if there are no chunks yet.
        tokenizer: of transformers, with the marker tokens.
        options: how documents are split.
        sources: identifies these rows, as plain data.
        training: whether negatives are dropped, according to the options.
        seed: of the choice of negatives.

    Raises:
        InputError: there is no chunk to train on; `chunk_features` rejects a row; the folder has chunks of other data.
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
