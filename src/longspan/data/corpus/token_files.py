"""A corpus as token ids on disk: tokenised once in one streaming pass, then read through a memory map.

The folder::

    tokens.bin      every id of every document, without special tokens, uint16 or uint32, little-endian
    documents.bin   int64, where each document ends in it
    index.json      counts, the type of the ids, and the fingerprint of what they were made from

It appears whole or not at all. Neither the corpus nor its ids are ever in memory; a batch of texts is, at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from longspan.data.corpus.sources import Corpus
from longspan.data.whole_folders import fingerprint_of, make_once, read_index
from longspan.errors import InputError

BATCH = 1_000_000
"""Characters that are tokenised at once; `tokenizers` spreads them over the cores."""


class TokenFiles:
    """Token ids of documents on disk; opened when first used, so that it can be sent to another process.

    Attributes:
        documents: how many there are.
        tokens: how many ids they have together.
        characters, bytes: how long their texts are, in Unicode characters and as UTF-8.
    """

    def __init__(self, folder: Path) -> None:
        index = read_index(folder)
        self.folder = folder
        self.documents: int = index["documents"]
        self.tokens: int = index["tokens"]
        self.characters: int = index["characters"]
        self.bytes: int = index["bytes"]
        self._dtype: str = index["dtype"]
        self._ids: Any = None

    def ends(self) -> np.ndarray:
        """`(documents,)` int64: where each document ends; a memory map too."""
        return np.memmap(self.folder / "documents.bin", dtype="<i8", mode="r")

    def read(self, start: int, end: int) -> np.ndarray:
        """Ids `start … end − 1` as int64."""
        if self._ids is None:
            self._ids = np.memmap(self.folder / "tokens.bin", dtype=self._dtype, mode="r")
        return self._ids[start:end].astype(np.int64)

    def __getstate__(self) -> dict[str, Any]:
        """Without the map, which would be copied whole."""
        return {**self.__dict__, "_ids": None}


def token_files(folder: Path, corpora: Sequence[Corpus], tokenizer: Any, *, limit: int | None = None) -> TokenFiles:
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
        if not index["tokens"]:
            names = ", ".join(repr(corpus.source) for corpus in corpora)
            raise InputError(f"the corpus {names} holds no text; name files that have some")
        return index

    make_once(folder, fingerprint, fill, other="another corpus, or by another tokenizer")
    return TokenFiles(folder)


def _write(folder: Path, corpora: Sequence[Corpus], tokenizer: Any, limit: int | None) -> dict[str, Any]:
    from longspan.progress import progress_bar

    dtype = "<u2" if len(tokenizer) <= 1 << 16 else "<u4"
    tokens = documents = characters = size = 0
    pieces = chain.from_iterable(corpus.pieces() for corpus in corpora)
    with (
        (folder / "tokens.bin").open("wb") as ids_file,
        (folder / "documents.bin").open("wb") as ends_file,
        progress_bar(doing="tokenising", unit=" tokens", unit_scale=True) as bar,
    ):
        for batch in _batches(pieces):
            encoded = _encode(tokenizer, [piece for piece, _ in batch])
            for ids, (piece, is_last) in zip(encoded, batch, strict=True):
                ids_file.write(np.asarray(ids, dtype=dtype).tobytes())
                tokens += len(ids)
                characters += len(piece)
                size += len(piece.encode(errors="surrogatepass"))
                bar.update(len(ids))
                if is_last:
                    ends_file.write(np.int64(tokens).astype("<i8").tobytes())
                    documents += 1
                if documents == limit:
                    break
            if documents == limit:
                break
    return {"documents": documents, "tokens": tokens, "characters": characters, "bytes": size, "dtype": dtype}


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


def _encode(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    return tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
