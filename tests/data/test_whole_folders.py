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
        return {"rows": 3}

    folder = tmp_path / "made"
    for _ in range(2):
        assert make_once(folder, "one", fill, other="other rows") == {"rows": 3, "fingerprint": "one"}
    assert len(calls) == 1
    assert read_index(folder)["rows"] == 3
    with pytest.raises(InputError, match="made' was made from other rows; put back what has changed"):
        make_once(folder, "two", fill, other="other rows")
    assert len(calls) == 1


def test_fingerprints_tell_tokenizers_and_parts_apart() -> None:
    one = fingerprint_of(Words(a=0, b=1), {"stride": 4}, None)
    assert one == fingerprint_of(Words(b=1, a=0), {"stride": 4}, None)
    assert one != fingerprint_of(Words(a=1, b=0), {"stride": 4}, None)
    assert one != fingerprint_of(Words(a=0, b=1), {"stride": 5}, None)
