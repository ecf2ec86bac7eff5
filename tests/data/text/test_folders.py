"""The documents of a folder: those below it too, nothing hidden, nothing that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan.data.text.folders import documents_in
from longspan.errors import InputError


def test_documents_by_name_and_what_was_passed_over(tmp_path: Path) -> None:
    for name in ("b.txt", "a.MD", "sub/c.html", "sub/deep/d.pdf", "x.png", "y.png", "z", ".hidden.txt", ".git/e.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("words")
    found, note = documents_in(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in found] == [
        "a.MD",
        "b.txt",
        "sub/c.html",
        "sub/deep/d.pdf",
    ]
    assert note == "5 files passed over (2 hidden, 2 .png, 1 no extension)"


def test_nothing_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    assert documents_in(tmp_path) == ([tmp_path / "a.txt"], None)


def test_a_link_that_leads_back_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    (tmp_path / "again").symlink_to(tmp_path, target_is_directory=True)
    assert documents_in(tmp_path)[0] == [tmp_path / "a.txt"]


def test_a_folder_without_documents_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("pass")
    with pytest.raises(InputError, match="holds no document"):
        documents_in(tmp_path)
