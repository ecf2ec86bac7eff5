"""Uploads of servers that were killed: deleted by the next one, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from longspan_documents.serve.library import LOCK, Library, remove_left_behind
from longspan_documents.serve.limits import Limits

pytest.importorskip("fcntl", reason="this system has no locks that end with a process")


@pytest.fixture
def gone() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def left(parent: Path, name: str, *, lock: bool = True) -> Path:
    folder = parent / name
    folder.mkdir()
    (folder / "upload.txt").write_text("secret")
    if lock:
        (folder / LOCK).touch()
    return folder


def test_only_folders_of_dead_servers_are_deleted(tmp_path: Path, gone: int) -> None:
    outside = left(tmp_path, "elsewhere")
    dead = left(tmp_path, f"longspan-serve-{gone}-abc_12")
    (dead / "link").symlink_to(outside)
    others = [
        left(tmp_path, f"longspan-serve-{os.getppid()}-abc"),  # lives
        left(tmp_path, f"longspan-serve-{gone}-nolock", lock=False),
        left(tmp_path, "longspan-serve-abc"),  # of an earlier version, or somebody else's
        left(tmp_path, f"longspan-serve-{gone}-abc.old"),
        left(tmp_path, f"longspan-server-{gone}-abc"),
        outside,
    ]
    link = tmp_path / f"longspan-serve-{gone}-link"
    link.symlink_to(outside, target_is_directory=True)
    assert remove_left_behind(tmp_path) == [dead]
    assert not dead.exists()
    assert all((folder / "upload.txt").read_text() == "secret" for folder in [*others, link])


def test_a_library_that_is_open_keeps_its_files_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first = Library(Limits())
    upload = first.new_file("a.txt")
    upload.path.write_text("words")
    assert str(os.getpid()) in first.folder.name
    second = Library(Limits())  # of the same process: the lock tells that the first one lives
    assert remove_left_behind(tmp_path) == []
    assert first.add(upload).size == 5
    kept = second.folder
    first.close()
    assert list(tmp_path.iterdir()) == [kept]
    second.close()
    assert not list(tmp_path.iterdir())


def test_a_folder_of_a_process_of_the_same_number_is_deleted_where_nobody_holds_it(tmp_path: Path) -> None:
    dead = left(tmp_path, f"longspan-serve-{os.getpid()}-old")
    assert remove_left_behind(tmp_path) == [dead]
