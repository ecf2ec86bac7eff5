"""The stream of a corpus: separators and documents in order, whatever piece of it is read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from longspan.data.corpus.tokens import Stream
from longspan.data.ragged import Ragged

LENGTHS = [5, 1, 7, 3]


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    """Four documents whose ids count on from 100, behind separators 9; files as `Ragged` reads them."""
    np.arange(100, 116, dtype="<u2").tofile(tmp_path / "tokens.bin")
    np.cumsum(LENGTHS).astype("<i8").tofile(tmp_path / "rows.bin")
    index = {"rows": 4, "values": 16, "columns": {"tokens": "<u2"}, "numbers": [], "fingerprint": "x"}
    (tmp_path / "index.json").write_text(json.dumps(index))
    return Stream(Ragged(tmp_path), 9)


def test_every_piece_of_the_stream(stream: Stream) -> None:
    documents = np.split(np.arange(100, 116), np.cumsum(LENGTHS)[:-1])
    whole = [number for document in documents for number in (9, *document.tolist())]
    assert len(stream) == len(whole) == 20
    for start in range(-2, 22):
        for end in range(start, 23):
            assert stream.read(start, end).tolist() == whole[max(start, 0) : max(end, 0)], (start, end)
            assert stream.read(start, end).dtype == np.int64
