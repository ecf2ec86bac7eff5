"""Rows on disk are the rows that were written; folders are made only once."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from longspan.data.ragged import Ragged, Writer, fingerprint_of, make_once, read_index
from longspan.errors import InputError


class Words:
    """A tokenizer, as far as a fingerprint looks at it."""

    def __init__(self, **words: int) -> None:
        self.words = words

    def get_vocab(self) -> dict[str, int]:
        return self.words


def test_made_once(tmp_path: Path) -> None:
    calls = []

    def fill(folder: Path) -> dict[str, int]:
        calls.append(folder)
        (folder / "rows.bin").write_bytes(b"123")
        return {"rows": 3}

    folder = tmp_path / "made"
    for _ in range(2):
        assert make_once(folder, "one", fill, other="other rows").index == {
            "rows": 3,
            "fingerprint": "one",
            "files": {"rows.bin": 3},
        }
    assert len(calls) == 1
    assert read_index(folder)["rows"] == 3
    with pytest.raises(InputError, match="made' was made from other rows; put back what has changed"):
        make_once(folder, "two", fill, other="other rows")
    assert len(calls) == 1


@pytest.mark.parametrize("index", ["", "{", "[]", "null", "7", '{"rows": 3}', "\x00", "[" * 100_000, None])
def test_a_damaged_index_is_one_sentence(tmp_path: Path, index: str | None) -> None:
    folder = tmp_path / "made"
    make_once(folder, "one", lambda partial: {"rows": 3}, other="other rows")
    if index is None:
        (folder / "index.json").unlink()
        (folder / "rows.bin").write_bytes(b"1")
    else:
        (folder / "index.json").write_text(index)
    with pytest.raises(InputError, match=r"made' is damaged .* remove this folder, and it is made again"):
        make_once(folder, "one", lambda partial: {"rows": 4}, other="other rows")


def test_files_that_have_become_shorter(tmp_path: Path) -> None:
    def fill(folder: Path) -> dict[str, int]:
        (folder / "rows.bin").write_bytes(b"123")
        return {}

    make_once(tmp_path / "made", "one", fill, other="other rows")
    (tmp_path / "made" / "rows.bin").write_bytes(b"12")
    with pytest.raises(InputError, match="not as long as they were"):
        make_once(tmp_path / "made", "one", fill, other="other rows")
    (tmp_path / "made" / "index.json").write_text('{"fingerprint": "one", "rows": 3}')  # of an older version
    assert make_once(tmp_path / "made", "one", fill, other="other rows").index["rows"] == 3


def test_fingerprints_tell_tokenizers_and_parts_apart() -> None:
    one = fingerprint_of(Words(a=0, b=1), {"stride": 4}, None)
    assert one == fingerprint_of(Words(b=1, a=0), {"stride": 4}, None)
    assert one != fingerprint_of(Words(a=1, b=0), {"stride": 4}, None)
    assert one != fingerprint_of(Words(a=0, b=1), {"stride": 5}, None)


ROWS = [[5, 250, 7], [], [2], [1, 2, 3, 4, 5, 6, 7]]


def written(folder: Path) -> Ragged:
    def fill(partial: Path) -> dict[str, object]:
        with Writer(partial, {"ids": "<u2", "marks": "u1"}, ("label", "other")) as writer:
            for number, row in enumerate(ROWS):
                for piece in (row[:2], row[2:]):  # a row in pieces
                    writer.extend(ids=piece, marks=[value % 3 for value in piece])
                writer.end_row(other=-number, label=number**9)
        return writer.index()

    return make_once(folder, "one", fill, other="other rows")


def test_rows_come_back_by_index(tmp_path: Path) -> None:
    table = written(tmp_path / "rows")
    assert (len(table), table.values) == (4, 11)
    for number, row in enumerate(ROWS):
        found = table[number]
        assert list(found) == ["label", "other", "ids", "marks"]
        assert (found["label"], found["other"]) == (number**9, -number)
        assert found["ids"].tolist() == row
        assert found["marks"].tolist() == [value % 3 for value in row]
        assert found["ids"].dtype == np.int64
        assert table[number - 4]["ids"].tolist() == row
    with pytest.raises(IndexError):
        table[4]
    assert table.ends.tolist() == [3, 3, 4, 11]
    assert table.read("ids", 1, 5).tolist() == [250, 7, 2, 1]
    assert (tmp_path / "rows" / "ids.bin").stat().st_size == 22
    copy = pickle.loads(pickle.dumps(table))  # as a worker process gets it
    assert copy[3]["ids"].tolist() == ROWS[3]
    assert len(pickle.dumps(table)) < 1000


def test_columns_of_a_row_are_of_one_length(tmp_path: Path) -> None:
    with Writer(tmp_path, {"ids": "<u2", "marks": "u1"}) as writer, pytest.raises(ValueError, match="too many values"):
        writer.extend(ids=[1, 2], marks=[1])
