"""A corpus as token ids on disk: tokenised once in a streaming pass, then read as one stream through a memory map.

It is a `Ragged` with a row per document and one column, its ids without special tokens, in two or four bytes; its index
also has the number of `characters` and UTF-8 `bytes` of the texts. Neither the corpus nor its ids are loaded into
memory as a whole, only a batch of texts at a time.

`Stream` concatenates the documents, with a separator before each, without copying them. `Columns` cuts such a stream
into parallel columns that are read in segments: row s of a column continues where row s − 1 ended, so that a model with
a memory may carry it from one batch to the next (Dai et al. 2019, 1901.02860, as in the authors' code; Mikolov et al.
2010 before them).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from longspan.characters import counted
from longspan.data.corpus.sources import Corpus
from longspan.data.ragged import Ragged, Writer, fingerprint_of, make_once
from longspan.errors import InputError
from longspan.progress import progress_bar

logger = logging.getLogger(__name__)

TOKENS = "tokens"
"""The column."""

BATCH = 1_000_000
"""Characters tokenised at once; `tokenizers` parallelises over the cores."""


def token_files(folder: Path, corpora: Sequence[Corpus], tokenizer: Any, *, limit: int | None = None) -> Ragged:
    """Returns the token ids of the corpora in this folder, created if they do not exist.

    Args:
        folder: where they are, or will be.
        corpora: sources, in order.
        tokenizer: of transformers; its special tokens are not added.
        limit: maximum number of documents, over all sources.

    Raises:
        InputError: nothing to tokenise, a source that cannot be read, or a folder made from something else.
    """
    fingerprint = fingerprint_of(tokenizer, limit, [corpus.fingerprint() for corpus in corpora])

    def fill(partial: Path) -> dict[str, Any]:
        pieces = chain.from_iterable(corpus.pieces() for corpus in corpora)
        characters = size = 0
        with (
            Writer(partial, {TOKENS: "<u2" if len(tokenizer) <= 1 << 16 else "<u4"}) as writer,
            progress_bar(doing="tokenising", unit=" tokens", unit_scale=True) as bar,
        ):
            for ids, piece, is_last in encoded(pieces, tokenizer):
                writer.extend(**{TOKENS: ids})
                characters += len(piece)
                size += len(piece.encode(errors="surrogatepass"))
                bar.update(len(ids))
                if is_last:
                    writer.end_row()
                if writer.rows == limit:
                    break
        if not writer.values:
            names = ", ".join(repr(corpus.source) for corpus in corpora)
            raise InputError(f"the corpus {names} holds no text; name files that have some")
        return {**writer.index(), "characters": characters, "bytes": size}

    return make_once(folder, fingerprint, fill, other="another corpus, or by another tokenizer")


def encoded(pieces: Iterable[tuple[str, bool]], tokenizer: Any) -> Iterator[tuple[list[int], str, bool]]:
    """Yields the ids of each piece, the piece, and whether it ends a document."""
    for batch in _batches(pieces):
        texts = [piece for piece, _ in batch]
        encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
        yield from ((ids, *piece) for ids, piece in zip(encoded, batch, strict=True))


def _batches(pieces: Iterable[tuple[str, bool]]) -> Iterator[list[tuple[str, bool]]]:
    batch: list[tuple[str, bool]] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece[0]) + 100  # many short lines have overhead too
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def token_blocks(
    corpora: Sequence[Corpus], tokenizer: Any, *, limit: int | None, separator: int | None = None
) -> Iterator[np.ndarray]:
    """Yields the token ids of corpora without storing them, in blocks `(2, T)` int64 of at most a piece of a document:
    ids, and the number of the document of each.

    Args:
        corpora: sources, in order.
        tokenizer: of transformers; its special tokens are not added.
        limit: maximum number of documents, over all sources.
        separator: the id before each document; None for none.
    """
    document, begins = 0, True
    for ids, _, is_last in encoded(chain.from_iterable(corpus.pieces() for corpus in corpora), tokenizer):
        if begins and separator is not None:
            ids = [separator, *ids]
        if ids:
            yield np.stack([np.asarray(ids, dtype=np.int64), np.full(len(ids), document)])
        document, begins = document + is_last, is_last
        if document == limit:
            return


def windows(blocks: Iterable[np.ndarray], *, size: int, step: int) -> Iterator[np.ndarray]:
    """Yields the columns `size` at a time, every `step` ones, of all blocks `(N, T)` together; the last window may be
    shorter, but has more than the window before it.
    """
    held: np.ndarray | None = None
    for block in blocks:
        held = block if held is None else np.concatenate([held, block], axis=1)
        start = 0
        while held.shape[1] - start >= size:
            yield held[:, start : start + size].copy()
            start += step
        held = held[:, start:]
    if held is not None and held.shape[1] > size - step:
        yield held


class Stream:
    """One sequence of token ids: separator, first document, separator, second document, …

    Args:
        files: the tokenised corpus.
        separator: the id before each document.
    """

    def __init__(self, files: Ragged, separator: int) -> None:
        self.files = files
        self.separator = separator
        self.ends = files.ends
        # Position of each separator.
        self.starts = np.concatenate([[0], self.ends[:-1]]) + np.arange(len(self.ends))

    def __len__(self) -> int:
        """Number of tokens and separators."""
        return self.files.values + len(self.files)

    def read(self, start: int, end: int) -> np.ndarray:
        """Returns the ids `start … end − 1` as int64, clipped to the stream."""
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

    def documents(self, start: int, end: int) -> np.ndarray:
        """Returns the document index of each of `start … end − 1`, int64; a separator belongs to the following
        document."""
        return np.searchsorted(self.starts, np.arange(start, end), side="right") - 1


class Columns:
    """B columns of equal length, in which every token but the very first is predicted once.

    Args:
        stream: the documents.
        columns: B.
        segment_tokens: T, tokens of a column that are read at once; the last segment may be shorter.
        name: name of the option for the number of columns, for the error message.

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
        """Number of segments in a column; the last may be shorter."""
        return -(-self.tokens // self.segment_tokens)

    def read(self, segment: int, column: int) -> np.ndarray:
        """Returns the ids `(T + 1,)` int64 of a segment and of the next token, the target of its last one."""
        first, last = segment * self.segment_tokens, min((segment + 1) * self.segment_tokens, self.tokens)
        return self.stream.read(column * self.tokens + first, column * self.tokens + last + 1)

    def segment(self, segment: int) -> np.ndarray:
        """Returns the ids `(B, T + 1)` of a segment of all columns."""
        return np.stack([self.read(segment, column) for column in range(self.columns)])
