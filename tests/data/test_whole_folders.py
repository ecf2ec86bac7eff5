"""Folders that are made only once."""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan.data.whole_folders import fingerprint_of, make_once, read_index
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
        assert make_once(folder, "one", fill, other="other rows") == {
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
    assert make_once(tmp_path / "made", "one", fill, other="other rows")["rows"] == 3


def test_fingerprints_tell_tokenizers_and_parts_apart() -> None:
    one = fingerprint_of(Words(a=0, b=1), {"stride": 4}, None)
    assert one == fingerprint_of(Words(b=1, a=0), {"stride": 4}, None)
    assert one != fingerprint_of(Words(a=1, b=0), {"stride": 4}, None)
    assert one != fingerprint_of(Words(a=0, b=1), {"stride": 5}, None)
