"""The chunks that a question-answering model trains on, on disk: tokenised once, read by index through a memory map.

The folder::

    tokens.bin     int32, the input ids of every chunk
    passages.bin   int32, the passage of every token, −1 = none
    types.bin      uint8, token types, where the options ask for them
    chunks.bin     int64 (chunks, 6): where each ends, its question's tokens, start, end, passage, answer type
    index.json     counts, and the fingerprint of what they were made from

It appears whole or not at all. Neither documents nor chunks are ever all in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from longspan.data.questions.rows import QuestionRow
from longspan.data.whole_folders import fingerprint_of, make_once, read_index
from longspan.errors import InputError
from longspan.progress import progress_bar
from longspan.tasks.questions.features import ChunkFeatures, chunk_features
from longspan.tasks.questions.options import QuestionOptions

LABELS = ("start_positions", "end_positions", "paragraph_labels", "answer_types")
COLUMNS = ("end", "question_tokens", *LABELS)


class QuestionChunks(Dataset[dict[str, Any]]):
    """Labelled chunks in a folder, as `QuestionCollator` takes them; opened when first used, in whatever process."""

    def __init__(self, folder: Path) -> None:
        index = read_index(folder)
        self.folder = folder
        self.rows: int = index["rows"]
        """How many questions the chunks are from."""
        self.has_types: bool = index["types"]
        self.table = np.fromfile(folder / "chunks.bin", dtype="<i8").reshape(-1, len(COLUMNS))
        self._maps: dict[str, Any] = {}

    def __len__(self) -> int:
        """Number of chunks."""
        return len(self.table)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Ids, passages, types and labels of one chunk, as plain lists and numbers."""
        end, *numbers = self.table[index].tolist()
        # A chunk begins where the one before it ends; the table's last row must not stand before its first.
        start = int(self.table[index - 1, 0]) if index % len(self.table) else 0
        chunk: dict[str, Any] = dict(zip(COLUMNS[1:], numbers, strict=True))
        chunk["input_ids"] = self._read("tokens.bin", "<i4", start, end)
        chunk["paragraph_ids"] = self._read("passages.bin", "<i4", start, end)
        if self.has_types:
            chunk["token_type_ids"] = self._read("types.bin", "u1", start, end)
        return chunk

    def __getstate__(self) -> dict[str, Any]:
        """Without the maps, which would be copied whole."""
        return {**self.__dict__, "_maps": {}}

    def _read(self, name: str, dtype: str, start: int, end: int) -> list[int]:
        if name not in self._maps:
            self._maps[name] = np.memmap(self.folder / name, dtype=dtype, mode="r")
        return self._maps[name][start:end].tolist()


def question_chunks(
    folder: Path,
    rows: Iterable[QuestionRow],
    tokenizer: Any,
    options: QuestionOptions,
    *,
    sources: Sequence[Any],
    training: bool,
    seed: int,
) -> QuestionChunks:
    """The chunks in this folder: those that are there, or else made now, of which none without a passage.

    Args:
        folder: where they are, or will be.
        rows: read only where there are no chunks yet.
        tokenizer: of transformers, with the marker tokens.
        options: how documents are cut.
        sources: what tells these rows from others, as plain data.
        training: leave out negatives, as the options say.
        seed: decides which.

    Raises:
        InputError: no chunk to train on; what `chunk_features` refuses; a folder made from something else.
    """
    fingerprint = fingerprint_of(tokenizer, asdict(options), list(sources), training, seed)

    def fill(partial: Path) -> dict[str, Any]:
        index = _write(partial, rows, tokenizer, options, training, seed)
        if not index["chunks"]:
            raise InputError(
                f"the {index['rows']} rows give no chunk with a passage to train on; name other data, or raise "
                "keep_negatives"
            )
        return index

    make_once(folder, fingerprint, fill, other="other rows, options or by another tokenizer")
    return QuestionChunks(folder)


def _write(
    folder: Path, rows: Iterable[QuestionRow], tokenizer: Any, options: QuestionOptions, training: bool, seed: int
) -> dict[str, Any]:
    count = chunks = end = 0
    with (
        (folder / "tokens.bin").open("wb") as tokens,
        (folder / "passages.bin").open("wb") as passages,
        (folder / "types.bin").open("wb") as types,
        (folder / "chunks.bin").open("wb") as table,
    ):
        for row in progress_bar(rows, doing="tokenising", unit=" rows"):
            count += 1
            for chunk in chunk_features(row, tokenizer, options, training=training, seed=seed):
                if not chunk["candidates"]:
                    continue
                chunks += 1
                end += len(chunk["input_ids"])
                tokens.write(np.asarray(chunk["input_ids"], dtype="<i4").tobytes())
                passages.write(np.asarray(chunk["paragraph_ids"], dtype="<i4").tobytes())
                types.write(np.asarray(chunk.get("token_type_ids", []), dtype="u1").tobytes())
                table.write(np.asarray(_numbers(chunk, end, row.id), dtype="<i8").tobytes())
    return {"rows": count, "chunks": chunks, "tokens": end, "types": options.match_types}


def _numbers(chunk: ChunkFeatures, end: int, name: str) -> list[int]:
    """The chunk's line in the table."""
    fields: dict[str, Any] = dict(chunk)
    if any(label not in fields for label in LABELS):
        raise InputError(f"row {name!r} has no annotations to train on; leave it out")
    return [end, *(fields[column] for column in COLUMNS[1:])]
