"""The documents of a folder: those below it too, nothing hidden, nothing that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan.errors import InputError
from longspan_documents.text.folders import check_not_path, documents_in


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


@pytest.mark.parametrize(
    "text",
    [
        "paper.pdf",
        "Paper.DOCX",
        "a/b/notes.md",
        "C:\\papers\\paper.pdf",
        "film.srt",
        "~/paper.txt",
        "Makefile",
        "my notes",
    ],
)
def test_a_line_that_is_the_name_of_a_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("Makefile", "my notes"):
        (tmp_path / name).write_text("all:")
    with pytest.raises(InputError, match="the name of a file; give Path"):
        check_not_path(text, "text")


@pytest.mark.parametrize(
    "text",
    [
        *("", "pdf", ".pdf", "A hedge.", "setup.py", "README", "Run setup.py", "All of it stands in README.md"),
        *("/etc/passwd is explained in docs/guide.html", "paper.pdf\n", " paper.pdf", "paper.pdf\nnotes.md"),
        *("a.pdf b.pdf", "folder", "x" * 5000 + ".pdf", "half \ud800", "zero \0"),
    ],
)
def test_a_text_may_speak_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    check_not_path(text, "text")


def test_an_address_is_to_be_downloaded_first() -> None:
    with pytest.raises(InputError, match="download the file and give its Path"):
        check_not_path("https://example.org/paper.pdf", "text")
