"""File formats in, rows and texts out: data sets, documents, sentences, chunks."""

from longspan.data.chunks import Chunk, chunk_map
from longspan.data.documents import read_document
from longspan.data.readers import DATA_SETS, read_rows, rows_from_records
from longspan.data.rows import SummaryRow
from longspan.data.sentences import Sentence, split_sentences

__all__ = [
    "DATA_SETS",
    "Chunk",
    "Sentence",
    "SummaryRow",
    "chunk_map",
    "read_document",
    "read_rows",
    "rows_from_records",
    "split_sentences",
]
