"""Byte n-grams with interpolated Kneser–Ney smoothing: what a character language model has to be better than.

`python benchmarks/ngrams.py [ORDER ...]` counts the training novels of `LONGSPAN_DATA` and prints bits per character of
the validation novels. Source: Chen & Goodman 1999, "An empirical study of smoothing techniques for language modeling",
interpolated form with one discount per order, `D = n₁ / (n₁ + 2·n₂)`; below the highest order, counts are of the
different bytes seen before an n-gram.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

LONGEST = 8
"""Bytes that fit into the integer that stands for an n-gram."""


class NGrams:
    """An interpolated Kneser–Ney model over bytes.

    Args:
        texts: the training texts, as bytes; n-grams do not cross their ends.
        order: n, the predicted byte included: the context is n − 1 bytes.
    """

    def __init__(self, texts: Sequence[bytes], order: int) -> None:
        if not 1 <= order <= LONGEST:
            raise ValueError(f"order={order} is not from 1 to {LONGEST}")
        self.order = order
        self.tables = []
        grams, counts = np.unique(np.concatenate([_grams(text, order) for text in texts]), return_counts=True)
        for length in range(order, 0, -1):
            self.tables.append(_Table(grams, counts))
            # What follows counts by how many different bytes an n-gram was continued to the left.
            shorter = grams & np.uint64((1 << 8 * (length - 1)) - 1)
            grams, counts = np.unique(shorter, return_counts=True)
        self.tables.reverse()

    def bits(self, text: bytes) -> np.ndarray:
        """`−log2 p` of every byte given the n − 1 before it, `(len(text),)`; the first ones have shorter contexts."""
        probability = np.full(len(text), 1 / 256)
        for length, table in enumerate(self.tables, 1):
            grams = _grams(text, length)
            probability[length - 1 :] = table.interpolate(grams, probability[length - 1 :])
        return -np.log2(probability)


class _Table:
    """The n-grams of one order: counts, and for each context its total and how many different bytes follow it."""

    def __init__(self, grams: np.ndarray, counts: np.ndarray) -> None:
        self.grams, self.counts = grams, counts
        self.contexts, first = np.unique(grams >> np.uint64(8), return_index=True)
        self.totals = np.add.reduceat(counts, first)
        self.kinds = np.diff(np.append(first, len(grams)))
        once, twice = (counts == 1).sum(), (counts == 2).sum()
        self.discount = once / (once + 2 * twice) if once else 0.5

    def interpolate(self, grams: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """`(max(c − D, 0) + D · kinds · lower) / total`; a context never seen leaves `lower`."""
        counts = _look_up(self.grams, self.counts, grams)
        totals = _look_up(self.contexts, self.totals, grams >> np.uint64(8))
        kinds = _look_up(self.contexts, self.kinds, grams >> np.uint64(8))
        mixed = np.maximum(counts - self.discount, 0) + self.discount * kinds * lower
        return np.where(totals > 0, mixed / np.maximum(totals, 1), lower)


def _grams(text: bytes, length: int) -> np.ndarray:
    """Every run of `length` bytes as an integer, `(len(text) − length + 1,)` uint64."""
    values = np.frombuffer(text, dtype=np.uint8).astype(np.uint64)
    count = max(len(values) - length + 1, 0)
    grams = np.zeros(count, dtype=np.uint64)
    for place in range(length):
        grams = grams << np.uint64(8) | values[place : place + count]
    return grams


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)


def novels(split: str) -> list[str]:
    """The texts of one split of the public-domain novels."""
    from longspan.data.corpus.sources import Corpus

    return list(Corpus(source=str(Path(os.environ["LONGSPAN_DATA"]) / "pg_novels"), split=split).texts())


def main(orders: Sequence[int]) -> None:
    """Print a Markdown table of the orders."""
    training = [text.encode() for text in novels("train")]
    validation = novels("validation")
    characters = sum(map(len, validation))
    print(f"{sum(map(len, training)):,} bytes of training text; {characters:,} characters of validation text\n")
    print("| order n | bits per character | bits per byte |\n|---|---|---|")
    for order in orders:
        model = NGrams(training, order)
        bits = sum(model.bits(text.encode()).sum() for text in validation)
        size = sum(len(text.encode()) for text in validation)
        print(f"| {order} | {bits / characters:.3f} | {bits / size:.3f} |", flush=True)


if __name__ == "__main__":
    main([int(order) for order in sys.argv[1:]] or range(1, LONGEST))
