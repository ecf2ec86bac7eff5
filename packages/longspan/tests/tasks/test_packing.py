"""Packing statistics, counted by hand and by reading every row."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longspan.data.corpus.tokens import TOKENS, Stream
from longspan.data.ragged import Ragged, Writer, make_once
from longspan.tasks.language_modelling.language_model import NextTokenChunks
from longspan.tasks.language_modelling.masking import MaskedChunks, Masking
from longspan.tasks.packing import Packing
from longspan.training.mixing import Mixed

SEPARATOR = 1


def tokenised(folder: Path, *lengths: int) -> Ragged:
    """A corpus whose documents have these numbers of tokens; each token tells its document."""

    def fill(partial: Path) -> dict[str, Any]:
        with Writer(partial, {TOKENS: "<u2"}) as writer:
            for document, length in enumerate(lengths):
                writer.extend(**{TOKENS: [10 + document] * length})
                writer.end_row()
        return {**writer.index(), "characters": 0, "bytes": 0}

    return make_once(folder, "fingerprint", fill, other="another")


def masked(files: Ragged, between: int | None, max_tokens: int) -> MaskedChunks:
    masking = Masking(probability=0.15, mask_share=0.8, random_share=0.1, mask_id=3, ordinary=np.arange(10, 20))
    options: dict[str, Any] = {"before": [2], "after": [4], "max_tokens": max_tokens, "seed": None}
    return MaskedChunks(files=files, masking=masking, special_ids=np.array([2, 4]), between=between, **options)


def test_documents_of_a_stream_by_hand(tmp_path: Path) -> None:
    """Twelve tokens with separators, of which each chunk of five predicts four and has one more before them."""
    chunks = NextTokenChunks(
        Stream(tokenised(tmp_path / "files", 3, 4, 2), SEPARATOR), max_tokens=5, context_tokens=0, seed=None
    )
    assert [chunk["input_ids"].tolist() for chunk in (chunks[index] for index in range(len(chunks)))] == [
        [1, 10, 10, 10, 1],
        [1, 11, 11, 11, 11],
        [11, 1, 12, 12],
    ]
    # The separator of the second document is predicted in the first chunk, its words in the second.
    assert chunks.packing() == Packing(rows=3, places=15, tokens=14, documents=3, pieces=4, cut=1)
    assert chunks.packing().numbers() == {
        "packed_rows": 3,
        "packed_filled": pytest.approx(14 / 15),
        "packed_documents_per_row": pytest.approx(4 / 3),
        "packed_cut": pytest.approx(1 / 3),
    }


@pytest.mark.parametrize("max_tokens", [3, 7, 11, 64])
@pytest.mark.parametrize("context", [0, 1])
def test_the_counts_of_a_stream_are_those_of_its_rows(max_tokens: int, context: int, tmp_path: Path) -> None:
    stream = Stream(tokenised(tmp_path / "files", 5, 1, 17, 2, 31, 3), SEPARATOR)
    chunks = NextTokenChunks(stream, max_tokens=max_tokens, context_tokens=context, seed=None)
    rows = [chunks[index] for index in range(len(chunks))]
    owners, place = [], 0
    for row in rows:  # the documents of the predicted tokens; the very first token is one of the first row
        count = int((row["labels"] != -100).sum()) + (place == 0)
        owners.append(set(stream.documents(place, place + count).tolist()))
        place += count
    assert place == len(stream)
    assert chunks.packing() == Packing(
        rows=len(rows),
        places=len(rows) * max_tokens,
        tokens=sum(len(row["input_ids"]) for row in rows),
        documents=6,
        pieces=sum(map(len, owners)),
        cut=sum(sum(document in row for row in owners) > 1 for document in range(6)),
    )


@pytest.mark.parametrize("between", [None, SEPARATOR])
@pytest.mark.parametrize("max_tokens", [5, 9, 40])
def test_the_counts_of_masked_chunks_are_those_of_their_rows(
    between: int | None, max_tokens: int, tmp_path: Path
) -> None:
    chunks = masked(tokenised(tmp_path / "files", 5, 1, 17, 2, 31, 3), between, max_tokens)
    contents = [chunks.content(index) for index in range(len(chunks))]
    owners = [{int(token) - 10 for token in content if token != SEPARATOR} for content in contents]
    packing = chunks.packing()
    assert (packing.rows, packing.places) == (len(chunks), len(chunks) * max_tokens)
    assert packing.tokens == sum(len(chunks[index]["input_ids"]) for index in range(len(chunks)))
    if between is None:
        assert (packing.documents, packing.pieces) == (6, sum(map(len, owners)))
        assert packing.cut == sum(sum(document in row for row in owners) > 1 for document in range(6))
        assert packing.numbers()["packed_documents_per_row"] == 1
    else:  # a separator at the end of a row belongs to the document of the next one
        pairs = [(content[-1] == SEPARATOR) for content in contents]
        assert packing.pieces == sum(map(len, owners)) + sum(pairs)


def test_mixed_sources_count_by_how_often_their_rows_are_drawn(tmp_path: Path) -> None:
    parts = [masked(tokenised(tmp_path / str(length), *[length] * 4), None, 6) for length in (2, 8)]
    assert [part.packing().numbers()["packed_filled"] for part in parts] == [4 / 6, 1]
    assert [part.packing().cut for part in parts] == [0, 4]
    mixed = Mixed(parts, [1, 1], stopping_strategy="all_exhausted", seed=1)
    (few, many), packing = mixed.counts(), mixed.packing()
    assert packing is not None
    assert packing.numbers()["packed_filled"] == pytest.approx((few * 4 / 6 + many) / (few + many))
    assert packing.documents == few + Fraction(many, 2)  # a document of eight tokens is two rows of four
    assert Mixed([[1, 2]], [1], stopping_strategy="all_exhausted", seed=1).packing() is None
