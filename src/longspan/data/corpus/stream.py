"""The documents of a corpus laid end to end, each after a separator, without copying them."""

from __future__ import annotations

from typing import Any

import numpy as np

from longspan.data.corpus.token_files import TOKENS
from longspan.data.ragged import Ragged


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
