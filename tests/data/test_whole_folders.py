"""Folders that appear whole or not at all, and are made only once."""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan.data.whole_folders import fingerprint_of, make_once, read_index, whole_folder
from longspan.errors import InputError


class Words:
    """A tokenizer, as far as a fingerprint looks at it."""

    def __init__(self, **words: int) -> None:
        self.words = words

    def get_vocab(self) -> dict[str, int]:
        return self.words


def test_a_folder_appears_when_it_is_filled(tmp_path: Path) -> None:
    wanted = tmp_path / "runs" / "wanted"
    with whole_folder(wanted) as partial:
        (partial / "file").write_text("text")
        assert not wanted.exists()
    assert (wanted / "file").read_text() == "text"
    assert [path.name for path in wanted.parent.iterdir()] == ["wanted"]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with whole_folder(tmp_path / "wanted") as partial:
            (partial / "file").write_text("text")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list(tmp_path.iterdir())


def test_what_a_killed_run_left_is_not_used(tmp_path: Path) -> None:
    (tmp_path / ".wanted.partial").mkdir()
    (tmp_path / ".wanted.partial" / "old").write_text("half")
    with whole_folder(tmp_path / "wanted") as partial:
        assert not list(partial.iterdir())


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
