"""An index by several processes: byte for byte that of one, whatever was ended and when."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import longspan
from longspan.cli import main
from longspan.errors import InputError
from longspan_documents.inference.indexing import growing
from longspan_documents.inference.indexing.parts import Prepared
from longspan_documents.inference.indexing.preparing import Preparer
from longspan_documents.inference.indexing.search import SearchIndex
from longspan_documents.inference.verbs import Index
from longspan_documents.mapping.documents import Progress
from longspan_documents.mapping.indexing import index_by_workers
from longspan_documents.text.blocks import Document

CONTENTS = (
    "The roses were planted in 1921 by Anna Weber. They flower in June, and kind {0} in May.",
    "The pond of garden {0} was dug in 1934. It holds nine carps and {0} frogs.",
    "House {0} was built in 1890 by Karl Weber. It has four rooms and a cellar.",
)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A folder of twenty documents, of which one is blank."""
    folder = tmp_path / "library"
    folder.mkdir()
    for number in range(20):
        text = "# Title {0}\n\n" + CONTENTS[number % 3] + "\n\n## More\n\n" + CONTENTS[(number + 1) % 3] + "\n"
        (folder / f"{number:02d}.md").write_text(text.format(number), encoding="utf-8")
    (folder / "07.md").write_text("\n")
    return folder


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several parts of an index of few documents."""
    monkeypatch.setattr(growing, "PART_PASSAGES", 15)


def files_of(folder: Path) -> dict[str, bytes]:
    """Name → bytes of all that lies in a folder."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_the_bytes_are_those_of_one_process(library: Path, tmp_path: Path) -> None:
    """Of files and texts, in their order; then of what changed."""
    sources = [library / "12.md", "A text about zebras: they live in Africa.", library]
    for _ in range(2):
        one = longspan.index(sources, tmp_path / "one")
        several = index_by_workers(sources, tmp_path / "several", workers=0)
        assert files_of(tmp_path / "several") == files_of(tmp_path / "one")
        assert len(files_of(tmp_path / "one")) > 2
        assert several.added == one.added
        assert several.notes == one.notes
        assert "07.md" in several.notes[0]
        (library / "03.md").write_text("# House\n\nThe mill was sold to Clara Vogt in 1950.\n")
        (library / "99.md").write_text("# Mill\n\nThe mill was built by Clara Vogt in 1910.\n")
    assert several.added.documents == 2


def test_a_language_without_vectors(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Розы посадила Анна в саду. Дуб очень старый.", encoding="utf-8")
    (tmp_path / "b.txt").write_text("Пруд вырыли в 1934 году. В нём живут карпы.", encoding="utf-8")
    sources = [tmp_path / "a.txt", tmp_path / "b.txt"]
    longspan.index(sources, tmp_path / "one")
    index_by_workers(sources, tmp_path / "several", workers=0)
    assert files_of(tmp_path / "several") == files_of(tmp_path / "one")


def test_what_an_ended_call_left_is_not_done_again(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two parts of eight documents are there when the call ends; then one of their files changes."""
    out, prepared, told = tmp_path / "several", list[str](), list[Progress]()

    def interrupt(progress: Progress) -> None:
        if progress.done >= 16:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index_by_workers(library, out, workers=0, report=interrupt)
    assert len(SearchIndex(out)) == 0
    (library / "03.md").write_text("# House\n\nThe mill was sold to Clara Vogt in 1950.\n")
    call = Preparer.__call__

    def noted(self: Preparer, document: Document) -> Prepared:
        prepared.append(Path(document.name).name)
        return call(self, document)

    monkeypatch.setattr(Preparer, "__call__", noted)
    index_by_workers(library, out, workers=0, report=told.append)
    assert prepared == ["03.md", "16.md", "17.md", "18.md", "19.md"]
    assert (told[-1].verb, told[-1].rows, told[-1].done) == ("index", 6, 6)  # the blank one is tried again
    longspan.index(library, tmp_path / "one")
    assert files_of(out) == files_of(tmp_path / "one")


def test_damaged_parts_of_an_ended_call_are_made_again(library: Path, tmp_path: Path) -> None:
    """Whatever lies in the folder in which documents are prepared: it is nobody's but the index's."""

    def interrupt(progress: Progress) -> None:
        if progress.done >= 16:
            raise KeyboardInterrupt

    longspan.index(library, tmp_path / "one")
    left = tmp_path / "left"
    with pytest.raises(KeyboardInterrupt):
        index_by_workers(library, left, workers=0, report=interrupt)
    parts = sorted(file.name for file in left.glob("building/1/part-*"))
    assert len(parts) == 2
    whole = (left / "building/1" / parts[0]).read_bytes()
    page = bytearray(whole)
    page[40:200] = bytes(160)  # the end of the file, which is read first, is as it was
    for number, (name, data) in enumerate(
        {parts[0]: bytes(page), parts[1]: whole, "_job.json": b"[]", "../2": b"no folder", "../junk": b""}.items()
    ):
        out = shutil.copytree(left, tmp_path / f"damaged-{number}")
        (out / "building/1" / name).write_bytes(data)
        index_by_workers(library, out, workers=0)
        assert files_of(out) == files_of(tmp_path / "one"), name


def test_other_options_do_not_take_what_was_left(library: Path, tmp_path: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index_by_workers(library, tmp_path / "several", workers=0, report=interrupt)
    index_by_workers(library, tmp_path / "several", workers=0, options=Index(raw=True))
    longspan.index(library, tmp_path / "one", raw=True)
    assert files_of(tmp_path / "several") == files_of(tmp_path / "one")


def test_a_document_that_was_named_is_an_error(library: Path, tmp_path: Path) -> None:
    """Those before it are in the index, as with one process."""
    sources = [library / "00.md", library / "07.md", library / "08.md"]
    for folder, make in ((tmp_path / "one", longspan.index), (tmp_path / "several", index_by_workers)):
        options = {"workers": 0} if make is index_by_workers else {}
        with pytest.raises(InputError, match=r"07\.md"):
            make(sources, folder, **options)
    ours = {name: data for name, data in files_of(tmp_path / "several").items() if not name.startswith("building")}
    assert ours == files_of(tmp_path / "one")
    index_by_workers(library, tmp_path / "several", workers=0)
    assert not (tmp_path / "several/building").exists()


def test_the_command(library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["index", str(library), "--output", str(tmp_path / "out"), "--workers", "0"]
    assert main(command) == 0
    said = capsys.readouterr()
    assert "19 documents added (38 passages); 19 documents in" in said.out
    assert "passed over" in said.err
    assert main([*command, "--model", "reader"]) == 2
    assert "--workers 0 makes an index without a model, and --model is reader" in capsys.readouterr().err


@pytest.mark.slow
def test_killed_and_gone_on_with(library: Path, tmp_path: Path) -> None:
    """The command with two workers, killed when its first part is there; the next call, with two again, ends it."""
    for number in range(40):
        (library / f"more-{number:03d}.txt").write_text(" ".join(CONTENTS).format(number), encoding="utf-8")
    out = tmp_path / "several"
    command = [sys.executable, "-m", "longspan.cli", "index", str(library), "--output", str(out), "--workers", "2"]
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while first.poll() is None and not list(out.glob("building/*/part-*.parquet")):
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    there = len(list(out.glob("building/*/part-*.parquet")))
    assert there
    assert index_by_workers(library, out, workers=2).added.documents == 59
    longspan.index(library, tmp_path / "one")
    assert files_of(out) == files_of(tmp_path / "one")


def test_abbreviations_reach_every_process(tmp_path: Path) -> None:
    """Two sentences of 70 words are two passages; as one sentence they are cut once, elsewhere."""
    folder = tmp_path / "notes"
    folder.mkdir()
    file = folder / "note.txt"
    file.write_text("dies ist " * 35 + "in Anm. Nichts " + "gilt hier " * 35 + ".\n")
    longspan.index(folder, tmp_path / "cut")
    longspan.index(folder, tmp_path / "whole", abbreviations=["Anm."])
    for name, words in (("cut", ()), ("whole", ["Anm."])):
        passages = [one.text for one in longspan.chunks(file, abbreviations=words)]
        found = SearchIndex(tmp_path / name).answer("was gilt hier in Anm.?", top=9)
        assert sorted(one.text for one in found.passages) == sorted(passages)
    assert passages != [one.text for one in longspan.chunks(file)]
    for workers in (0, 1):
        options = Index(abbreviations=iter(["Anm."]))
        index_by_workers(folder, tmp_path / f"by {workers}", options, workers=workers)
        assert files_of(tmp_path / f"by {workers}") == files_of(tmp_path / "whole")


def test_what_was_left_is_not_taken_with_other_abbreviations(library: Path, tmp_path: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.done:
            raise KeyboardInterrupt

    (library / "00.md").write_text("Siehe dazu auch die Anm. Nichts anderes gilt hier " * 40 + ".\n")
    with pytest.raises(KeyboardInterrupt):
        index_by_workers(library, tmp_path / "several", workers=0, report=interrupt)
    index_by_workers(library, tmp_path / "several", workers=0, options=Index(abbreviations=["Anm."]))
    longspan.index(library, tmp_path / "one", abbreviations=["Anm."])
    assert files_of(tmp_path / "several") == files_of(tmp_path / "one")
