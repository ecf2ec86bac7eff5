"""File formats in, rows and texts out: data sets, documents, sentences, chunks."""

from longspan.data.chunks import Chunk, chunk_map
from longspan.data.documents import read_document
from longspan.data.question_readers import QUESTION_DATA_SETS, read_questions
from longspan.data.questions import Annotation, Candidate, QuestionRow, Span, plain_row
from longspan.data.readers import DATA_SETS, read_rows, rows_from_records
from longspan.data.rows import SummaryRow
from longspan.data.sentences import Sentence, split_sentences

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
