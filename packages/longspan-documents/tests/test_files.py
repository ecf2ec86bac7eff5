"""Outputs: what was there stays, what is new is whole, a lock ends with its process, a full disk is one sentence."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longspan.errors import InputError
from longspan.files import (
    claimed,
    is_empty,
    new_folder,
    output_file,
    output_folder,
    temporary,
    temporary_folder,
    whole_file,
    whole_folder,
    write_whole,
)


def _names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def _fill(folder: Path) -> None:
    with whole_folder(folder) as partial:
        for name in ("config.json", "weights", "vocabulary"):
            (partial / name).write_text(name)


# Which folder is meant, and whether it is empty


@pytest.mark.parametrize("entry", [".git", ".ssh", ".bashrc", ".DS_Store", ".longspan", ".longspan-notes.lock", "a"])
def test_a_folder_with_any_entry_is_not_empty(tmp_path: Path, entry: str) -> None:
    (tmp_path / entry).write_text("mine")
    assert not is_empty(tmp_path)
    with pytest.raises(InputError, match="is not empty"):
        new_folder(tmp_path)
    with pytest.raises(InputError, match="is not empty"):
        _fill(tmp_path)
    assert _names(tmp_path) == [entry]
    assert (tmp_path / entry).read_text() == "mine"


def test_paths_are_what_a_shell_makes_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path / "real")
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in (".", "../real/", "../link", "~/real", "~/link/", "../real/../link"):
        assert output_folder(given) == tmp_path / "real", given
    assert output_folder("~/new/folder/") == tmp_path / "new" / "folder"
    assert _names(tmp_path) == ["link", "real"]


def _prepare(folder: Path) -> None:
    (folder / "file").write_text("mine")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", "names nothing; give a path"),
        ("file", "is a file; give a folder"),
        ("file/", "is a file; give a folder"),
        ("file/below/it", "is a file; give another place"),
        ("dangling", "a link to 'nowhere', which does not exist"),
        ("dangling/below", "a link to 'nowhere', which does not exist"),
        ("loop", "loop"),
        ("a\0b", "NUL"),
        ("~nobody-of-this-name/x", "determine home"),
        ("n" * 300, "too long"),
    ],
)
def test_outputs_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, words: str) -> None:
    monkeypatch.chdir(tmp_path)
    _prepare(tmp_path)
    with pytest.raises(InputError, match=words):
        output_folder(given)
    if given not in ("file", "file/"):
        with pytest.raises(InputError):
            output_file(given)
    assert _names(tmp_path) == ["dangling", "file", "loop"]
    assert (tmp_path / "file").read_text() == "mine"


def test_devices_and_folders_are_no_files_to_write(tmp_path: Path) -> None:
    (tmp_path / "full.png").symlink_to("/dev/full")
    for given in (tmp_path, tmp_path / "full.png", "/dev/null", tmp_path / "missing" / "a.png"):
        with pytest.raises(InputError, match="cannot be written"):
            output_file(given)


def test_a_read_only_place(tmp_path: Path, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for given in (small_disk, small_disk / "deep" / "below"):
        with pytest.raises(InputError, match="read-only"):
            output_folder(given)
    with pytest.raises(InputError, match="read-only"):
        output_file(small_disk / "a.png")
    with pytest.raises(InputError, match="read-only"):
        write_whole({small_disk / "a": "text"})


# Whole folders


def test_a_folder_appears_when_it_is_filled(tmp_path: Path) -> None:
    wanted = tmp_path / "runs" / "wanted"
    with whole_folder(wanted) as partial:
        (partial / "file").write_text("text")
        assert not wanted.exists()
    assert (wanted / "file").read_text() == "text"
    assert [path.name for path in wanted.parent.iterdir()] == ["wanted"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, ValueError])
@pytest.mark.parametrize("wanted", ["new", "deep/below/new", "empty", "link", "."])
def test_a_failure_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, error: type[BaseException]
) -> None:
    def interrupted() -> None:
        with whole_folder(Path(wanted)) as partial:
            (partial / "file").write_text("text")
            raise error

    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    monkeypatch.chdir(tmp_path if wanted != "." else tmp_path / "empty")
    with pytest.raises(error):
        interrupted()
    assert _names(tmp_path) == ["empty", "link"]


def test_an_empty_folder_is_filled_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps its identity and permissions, so that whoever stands in it finds the files."""
    (tmp_path / "empty").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("empty")
    before = (tmp_path / "empty").stat()
    monkeypatch.chdir(tmp_path / "empty")
    _fill(tmp_path / "link")
    assert sorted(os.listdir(".")) == ["config.json", "vocabulary", "weights"]
    after = (tmp_path / "empty").stat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert (tmp_path / "link").is_symlink()


def test_a_mount_point_is_filled(small_disk: Path) -> None:
    _fill(small_disk)
    assert _names(small_disk) == ["config.json", "vocabulary", "weights"]


def test_an_empty_folder_that_fills_meanwhile_is_left_alone(tmp_path: Path) -> None:
    def meanwhile() -> None:
        with whole_folder(tmp_path) as partial:
            (partial / "config.json").write_text("new")
            (tmp_path / "config.json").write_text("mine")

    with pytest.raises(InputError, match="is not empty"):
        meanwhile()
    assert _names(tmp_path) == ["config.json"]
    assert (tmp_path / "config.json").read_text() == "mine"


def test_names_of_any_length(tmp_path: Path) -> None:
    _fill(tmp_path / ("n" * 255))
    write_whole({tmp_path / ("m" * 255): "text"})
    assert sorted(len(path.name) for path in tmp_path.iterdir()) == [255, 255]


# Files


def test_a_failure_keeps_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_whole({file: "old"})

    def fails() -> None:
        with whole_file(file) as part:
            part.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fails()
    assert file.read_text() == "old"
    assert _names(tmp_path) == ["a.json"]


def test_several_files_appear_together(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()  # cannot be replaced by a file
    with pytest.raises(OSError, match="b"):
        write_whole({tmp_path / "b": "2", tmp_path / "a": "1", tmp_path / "c": "3"})
    assert _names(tmp_path) == ["b"]


# Claims


def test_a_claim_removes_by_name_and_only_what_is_new(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("mine")
    with claimed(tmp_path) as remove:
        (tmp_path / "metrics.json").write_text("ours")
        (tmp_path / "notes.txt").write_text("somebody else's, meanwhile")
        remove("recipe.yaml", "metrics.json", "never written")
    assert _names(tmp_path) == ["notes.txt", "recipe.yaml"]
    with claimed(tmp_path / "deep" / "below") as remove:
        (tmp_path / "deep" / "below" / "metrics.json").write_text("ours")
        remove("metrics.json")
    assert _names(tmp_path) == ["notes.txt", "recipe.yaml"]


def test_one_claim_at_a_time(tmp_path: Path) -> None:
    with (
        claimed(tmp_path / "run"),
        pytest.raises(InputError, match="another process is writing"),
        claimed(tmp_path / "run"),
    ):
        pytest.fail("taken twice")
    with claimed(tmp_path / "run"):
        assert os.listdir(tmp_path / "run") == [temporary("", "lock")]
    assert not (tmp_path / "run").exists()


# Processes that die, and processes that live


def _start(kind: str, place: Path) -> int:
    """A process in the middle of writing; its number."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        assert os.read(reader, 1) == b"x"
        return child
    with {"claim": claimed, "folder": whole_folder, "file": whole_file}[kind](place) as part:
        if kind == "folder":
            (part / "half").write_text("half")
        elif kind == "file":
            part.write_text("half")
        os.write(writer, b"x")
        signal.pause()  # until it is killed
    os._exit(1)


@pytest.mark.parametrize("kind", ["claim", "folder", "file"])
def test_the_living_are_left_alone_and_the_dead_are_cleared(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longspan.files.PATIENCE", 0.2)
    place = tmp_path / "place"
    process = _start(kind, place)
    try:
        taken = _names(tmp_path)
        assert any("longspan-" in name for name in taken)
        write = {
            "claim": lambda: claimed(place).__enter__(),
            "folder": lambda: _fill(place),
            "file": lambda: write_whole({place: "new"}),
        }
        with pytest.raises(InputError, match="another process is writing"):
            write[kind]()
        write_whole({tmp_path / "other": "text"})  # clears what is stale beside it
        assert _names(tmp_path) == sorted([*taken, "other"])
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    if kind == "claim":
        with claimed(place):
            pass
        assert _names(tmp_path) == ["other", "place"]
    else:
        write_whole({tmp_path / "other": "again"})
        assert _names(tmp_path) == ["other"]
        write[kind]()


def test_temporary_folders_of_the_dead_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead = tmp_path / temporary("of a killed process", "partial")
    dead.mkdir()
    (dead / "1.log").write_text("half")
    dead.with_suffix(".lock").touch()
    (tmp_path / "somebody's").mkdir()
    with temporary_folder() as first:
        assert (_names(first), first.stat().st_mode & 0o777) == ([], 0o700)
        with temporary_folder() as second:
            assert first.is_dir()
            assert second != first
            assert not dead.exists()
    assert _names(tmp_path) == ["somebody's"]


def test_a_forked_child_does_not_hold_the_lock(tmp_path: Path) -> None:
    """As a worker that loads data and outlives a killed training for some seconds."""
    reader, writer = os.pipe()
    with claimed(tmp_path):
        child = os.fork()
        if child == 0:
            os.read(reader, 1)
            os._exit(0)
    with claimed(tmp_path):  # refused, if the child held it
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "the child must be alive still"
        os.write(writer, b"x")
        os.waitpid(child, 0)


@pytest.mark.parametrize("kind", ["temporary", "claim", "folder", "file"])
def test_a_forked_child_that_discards_what_it_inherited_deletes_nothing(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`multiprocessing` empties its register of finalizers in a child, so that blocks of the parent end there too."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kinds = {"claim": claimed, "folder": whole_folder, "file": whole_file}
    block: Any = temporary_folder() if kind == "temporary" else kinds[kind](tmp_path / "place")
    with block:
        before = _names(tmp_path)
        child = os.fork()
        if child == 0:
            try:
                block.gen.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert _names(tmp_path) == before


# A full disk


def test_a_full_disk_is_one_sentence(small_disk: Path) -> None:
    (small_disk / "old").write_text("old")
    with pytest.raises(InputError, match=r"the disk is full \(.* MB free there\); free some space"):
        write_whole({small_disk / "old": "x" * 2_000_000})
    with pytest.raises(InputError, match="the disk is full"):
        write_whole({small_disk / "a": "x" * 600_000, small_disk / "b": "x" * 600_000})
    assert _names(small_disk) == ["old"]
    assert (small_disk / "old").read_text() == "old"


def test_what_libraries_say_of_a_full_disk(small_disk: Path) -> None:
    """safetensors and tokenizers are written in Rust, torch in C++: each has words of its own."""
    import torch
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models

    tensor = torch.zeros(1_000_000)
    words = Tokenizer(models.WordLevel({str(number): number for number in range(100_000)}, unk_token="0"))
    writers: list[Callable[[Path], object]] = [
        lambda folder: save_file({"a": tensor}, folder / "model.safetensors"),
        lambda folder: torch.save(tensor, folder / "optimizer.pt"),
        lambda folder: words.save(str(folder / "tokenizer.json")),
        lambda folder: (folder / "text").write_text("x" * 2_000_000),
    ]
    for write in writers:
        with pytest.raises(InputError, match="the disk is full"), whole_folder(small_disk / "new") as partial:
            write(partial)
        assert not os.listdir(small_disk)


def test_a_limit_on_file_sizes_is_one_sentence(tmp_path: Path) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(InputError, match="larger than the system allows"):
            write_whole({tmp_path / "a": "x" * 2000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not os.listdir(tmp_path)


# Permissions


def _mode(file: Path) -> int:
    return file.stat().st_mode & 0o777


@pytest.mark.parametrize("mask", [0o022, 0o077])
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755, 0o444])
def test_what_is_replaced_keeps_its_permissions(tmp_path: Path, mode: int, mask: int) -> None:
    """And nobody else reads the new contents before; a new file has those that the user's mask leaves."""
    file, part_modes = tmp_path / "a", []
    file.write_text("old")
    file.chmod(mode)
    before = os.umask(mask)
    try:
        with whole_file(file) as part:
            part_modes.append(_mode(part))
            part.write_text("new")
            part_modes.append(_mode(part))
        write_whole({tmp_path / "b": "text"})
    finally:
        os.umask(before)
    assert (_mode(file), file.read_text()) == (mode, "new")
    assert part_modes == [0o600, 0o600]
    assert _mode(tmp_path / "b") == 0o666 & ~mask


def test_what_other_libraries_write_keeps_the_permissions_of_what_it_replaces(tmp_path: Path) -> None:
    import numpy as np
    from matplotlib.figure import Figure

    from longspan.pictures.patterns import save_picture
    from longspan_documents.inference.embed import EmbeddedDocument, save_vectors
    from longspan_documents.pictures.pages import save_page

    found = EmbeddedDocument(vector=np.zeros(4, np.float32), sentences=(), vectors=np.zeros((0, 4)), tokens=1)
    writers: dict[str, Callable[[Path], object]] = {
        "a.safetensors": lambda file: save_vectors(file, ["a"], [found]),
        "a.html": lambda file: save_page("<p>page</p>", file),
        "a.png": lambda file: save_picture(Figure(), file),
    }
    for name, write in writers.items():
        (tmp_path / name).write_text("old")
        (tmp_path / name).chmod(0o600)
        write(tmp_path / name)
        assert (_mode(tmp_path / name), (tmp_path / name).read_bytes() == b"old") == (0o600, False)


# Planted links


@pytest.mark.parametrize("target", ["nowhere", "theirs"])
def test_a_planted_lock_is_not_followed(tmp_path: Path, target: str) -> None:
    """In a folder that others may write to, a link by the name of our lock must not make or open a file elsewhere."""
    place, other = tmp_path / "place", tmp_path / "other"
    place.mkdir()
    other.mkdir()
    (other / "theirs").write_text("theirs")
    (place / temporary("a", "lock")).symlink_to(other / target)
    with pytest.raises(InputError, match=r"\.lock' is a link; remove it"):
        write_whole({place / "a": "text"})
    write_whole({place / "b": "text"})  # what is stale beside it is cleared without following it
    assert _names(other) == ["theirs"]
    assert (other / "theirs").read_text() == "theirs"
    assert (place / "b").read_text() == "text"


def test_a_planted_part_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / temporary("a", "part")).symlink_to("theirs")
    write_whole({tmp_path / "a": "text"})
    assert _names(tmp_path) == ["a", "theirs"]
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert not (tmp_path / "a").is_symlink()


# What is read


@pytest.mark.parametrize(
    "given", ["a.txt", "./sub/../a.txt", "soft.txt", "hard.txt", "folder/inside.json", "through/a.txt"]
)
def test_an_output_is_none_of_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("sub", "folder"):
        (tmp_path / folder).mkdir()
    (tmp_path / "a.txt").write_text("mine")
    (tmp_path / "folder" / "inside.json").write_text("mine")
    (tmp_path / "soft.txt").symlink_to("a.txt")
    (tmp_path / "hard.txt").hardlink_to("a.txt")
    (tmp_path / "through").symlink_to(".")
    reads = ["a.txt", None, "folder", "name/of-a-model", "-"]
    with pytest.raises(InputError, match=rf"output '{given}' would overwrite what is read from '(a.txt|folder)'"):
        output_file(given, reads=reads)
    for free in ("b.txt", "folder/new.json", "sub/a.txt"):
        assert output_file(free, reads=reads) == tmp_path / free
