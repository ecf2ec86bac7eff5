"""File formats in, rows and texts out: data sets, documents, sentences, chunks.

Each name is imported when it is asked for: the command line uses some of these modules at every start.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longspan.data.questions.readers import QUESTION_DATA_SETS, read_questions
    from longspan.data.questions.rows import Annotation, Candidate, QuestionRow, Span, plain_row
    from longspan.data.summaries.readers import DATA_SETS, read_rows, rows_from_records
    from longspan.data.summaries.rows import SummaryRow
    from longspan.data.text.chunks import Chunk, chunk_map
    from longspan.data.text.documents import read_document
    from longspan.data.text.sentences import Sentence, split_sentences

__all__ = [
    "DATA_SETS",
    "QUESTION_DATA_SETS",
    "Annotation",
    "Candidate",
    "Chunk",
    "QuestionRow",
    "Sentence",
    "Span",
    "SummaryRow",
    "chunk_map",
    "plain_row",
    "read_document",
    "read_questions",
    "read_rows",
    "rows_from_records",
    "split_sentences",
]

_MODULES = {
    "questions.readers": ("QUESTION_DATA_SETS", "read_questions"),
    "questions.rows": ("Annotation", "Candidate", "QuestionRow", "Span", "plain_row"),
    "summaries.readers": ("DATA_SETS", "read_rows", "rows_from_records"),
    "summaries.rows": ("SummaryRow",),
    "text.chunks": ("Chunk", "chunk_map"),
    "text.documents": ("read_document",),
    "text.sentences": ("Sentence", "split_sentences"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'longspan.data' has no attribute {name!r}")
    return getattr(import_module(f"longspan.data.{_HOMES[name]}"), name)
