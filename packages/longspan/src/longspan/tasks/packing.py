"""How the documents of a corpus fill the rows of training: packing statistics."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Self

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Counts of an epoch's rows; exact, also for a part of an epoch (fractions).

    Attributes:
        rows: number of rows.
        places: number of tokens that the rows have room for.
        tokens: number of tokens in them, including special tokens.
        documents: number of documents.
        pieces: the sum over the rows of the number of documents of which a row has tokens.
        cut: number of documents with tokens in several rows.
    """

    rows: Fraction | int
    places: Fraction | int
    tokens: Fraction | int
    documents: Fraction | int
    pieces: Fraction | int
    cut: Fraction | int

    @classmethod
    def of_rows(cls, first: np.ndarray, last: np.ndarray, *, rows: int, row_tokens: int, tokens: int) -> Self:
        """Counts documents by the numbers of the first and the last row that each has tokens in, `(N,)` int64."""
        return cls(
            rows=rows,
            places=rows * row_tokens,
            tokens=tokens,
            documents=len(first),
            pieces=int((last - first + 1).sum()),
            cut=int((last > first).sum()),
        )

    def __add__(self, other: Packing) -> Packing:
        names = self.__dataclass_fields__
        return Packing(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def of(self, rows: int) -> Packing:
        """Returns the counts of that many of the rows, on average."""
        share = Fraction(rows, self.rows)
        return Packing(**{name: getattr(self, name) * share for name in self.__dataclass_fields__})

    def numbers(self) -> dict[str, float]:
        """Returns what a run logs: `packed_rows`; `packed_filled`, the share of the places of the rows that have a
        token; `packed_documents_per_row`, of which a row has tokens, on average; and `packed_cut`, the share of the
        documents that continue in another row.
        """
        return {
            "packed_rows": round(self.rows),
            "packed_filled": float(Fraction(self.tokens, self.places)),
            "packed_documents_per_row": float(Fraction(self.pieces, self.rows)),
            "packed_cut": float(Fraction(self.cut, self.documents)),
        }
