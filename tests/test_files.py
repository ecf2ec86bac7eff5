"""Outputs: what was there stays, what is new is whole, a lock ends with its process, a full disk is one sentence."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from longspan.errors import InputError
from longspan.files import (
    claimed,
    is_empty,
    new_folder,
    output_file,
    output_folder,
    temporary,
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
    for given in (".", "../real/", "../link", "~/real", "~/link/", "", "../real/../link"):
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
