"""The documents of a corpus laid end to end, each after a separator, without copying them; and such a stream cut to
columns that stand side by side, each a stream of its own, and read segment by segment.

Row s of a batch's columns goes on where row s − 1 ended, so that a model with a memory may carry it from one batch to
the next (Dai et al. 2019, 1901.02860, as in the authors' code; Mikolov et al. 2010 before them).
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from longspan.characters import counted
from longspan.data.corpus.token_files import TOKENS
from longspan.data.ragged import Ragged
from longspan.errors import InputError


class Stream:
    """One sequence of token ids: separator, first document, separator, second document, …

    Args:
        files: the tokenised corpus.
        separator: the id that stands before each document.
    """

    def __init__(self, files: Ragged, separator: int) -> None:
        self.files = files
        self.separator = separator
        self.ends = files.ends
        # Where each separator stands.
        self.starts = np.concatenate([[0], self.ends[:-1]]) + np.arange(len(self.ends))

    def __len__(self) -> int:
        """Tokens and separators."""
        return self.files.values + len(self.files)

    def read(self, start: int, end: int) -> np.ndarray:
        """Ids `start … end − 1` as int64; nothing lies beyond either end of the stream."""
        start, end = max(start, 0), min(end, len(self))
        if start >= end:
            return np.empty(0, dtype=np.int64)
        first, last = np.searchsorted(self.starts, [start, end - 1], side="right") - 1
        parts: list[Any] = []
        for document in range(first, last + 1):
            separators = document + 1
            if start <= self.starts[document]:
                parts.append([self.separator])
            low = max(start, int(self.starts[document]) + 1) - separators
            parts.append(self.files.read(TOKENS, low, min(end - separators, int(self.ends[document]))))
        return np.concatenate(parts).astype(np.int64)


logger = logging.getLogger(__name__)


class Columns:
    """B columns of equal length, of which every token but the very first is guessed once.

    Args:
        stream: the documents.
        columns: B.
        segment_tokens: T, how many tokens of a column are read at once; the last segment may be shorter.
        name: of the number of columns, for the sentence that says it is too large.

    Raises:
        InputError: fewer tokens than columns.
    """

    def __init__(self, stream: Stream, *, columns: int, segment_tokens: int, name: str) -> None:
        self.stream, self.columns, self.segment_tokens = stream, columns, segment_tokens
        self.tokens = (len(stream) - 1) // columns
        if self.tokens < 1:
            raise InputError(
                f"{name} is {columns}, but the corpus has {counted(len(stream), 'token')}, not one for each column; "
                "lower it or give more text"
            )
        if left := len(stream) - 1 - self.tokens * columns:
            logger.warning(
                "the corpus is longer by %s than %s of %s, and the rest is left out",
                *(counted(left, "token"), counted(columns, "column"), counted(self.tokens, "token")),
            )

    @property
    def segments(self) -> int:
        """How many segments a column of the stream has; the last may be shorter."""
        return -(-self.tokens // self.segment_tokens)

    def read(self, segment: int, column: int) -> np.ndarray:
        """The ids `(T + 1,)` int64 of a segment and of the token behind it, which its last one is to guess."""
        first, last = segment * self.segment_tokens, min((segment + 1) * self.segment_tokens, self.tokens)
        return self.stream.read(column * self.tokens + first, column * self.tokens + last + 1)

    def segment(self, segment: int) -> np.ndarray:
        """The ids `(B, T + 1)` of a segment of all columns."""
        return np.stack([self.read(segment, column) for column in range(self.columns)])
