"""A corpus as token ids on disk: tokenised once in one streaming pass, then read through a memory map.

A `Ragged` with a row for each document and one column, its ids without special tokens, in two bytes or four; its
index also has how many `characters` and UTF-8 `bytes` the texts have. Neither the corpus nor its ids are ever in
memory; a batch of texts is, at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from longspan.data.corpus.sources import Corpus
from longspan.data.ragged import Ragged, Writer, fingerprint_of, make_once
from longspan.errors import InputError
from longspan.progress import progress_bar

TOKENS = "tokens"
"""The column."""

BATCH = 1_000_000
"""Characters that are tokenised at once; `tokenizers` spreads them over the cores."""


def token_files(folder: Path, corpora: Sequence[Corpus], tokenizer: Any, *, limit: int | None = None) -> Ragged:
    """The token ids of the corpora in this folder: those that are there, or else made now.

    Args:
        folder: where they are, or will be.
        corpora: sources, in order.
        tokenizer: of transformers; its special tokens are not added.
        limit: only the first documents, over all sources.

    Raises:
        InputError: nothing to tokenise, a source that cannot be read, or a folder made from something else.
    """
    fingerprint = fingerprint_of(tokenizer, limit, [corpus.fingerprint() for corpus in corpora])

    def fill(partial: Path) -> dict[str, Any]:
        index = _write(partial, corpora, tokenizer, limit)
        if not index["values"]:
            names = ", ".join(repr(corpus.source) for corpus in corpora)
            raise InputError(f"the corpus {names} holds no text; name files that have some")
        return index

    return make_once(folder, fingerprint, fill, other="another corpus, or by another tokenizer")


def _write(folder: Path, corpora: Sequence[Corpus], tokenizer: Any, limit: int | None) -> dict[str, Any]:
    pieces = chain.from_iterable(corpus.pieces() for corpus in corpora)
    characters = size = 0
    with (
        Writer(folder, {TOKENS: "<u2" if len(tokenizer) <= 1 << 16 else "<u4"}) as writer,
        progress_bar(doing="tokenising", unit=" tokens", unit_scale=True) as bar,
    ):
        for ids, piece, is_last in _encoded(pieces, tokenizer):
            writer.extend(**{TOKENS: ids})
            characters += len(piece)
            size += len(piece.encode(errors="surrogatepass"))
            bar.update(len(ids))
            if is_last:
                writer.end_row()
            if writer.rows == limit:
                break
    return {**writer.index(), "characters": characters, "bytes": size}


def _encoded(pieces: Iterable[tuple[str, bool]], tokenizer: Any) -> Iterator[tuple[list[int], str, bool]]:
    """The ids of each piece, the piece, and whether a document ends there."""
    for batch in _batches(pieces):
        texts = [piece for piece, _ in batch]
        encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
        yield from ((ids, *piece) for ids, piece in zip(encoded, batch, strict=True))


def _batches(pieces: Iterable[tuple[str, bool]]) -> Iterator[list[tuple[str, bool]]]:
    batch: list[tuple[str, bool]] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece[0]) + 100  # many short lines weigh too
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
