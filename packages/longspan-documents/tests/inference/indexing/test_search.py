"""An index without a model: found as without one, grown by what changed, whole whatever ends the writing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import longspan
from longspan.cli import main
from longspan.errors import InputError
from longspan_documents.inference.encoders import bundled_encoder
from longspan_documents.inference.indexing import growing
from longspan_documents.inference.indexing.growing import LIST
from longspan_documents.inference.indexing.search import SearchIndex
from longspan_documents.inference.indexing.sources import stale_note
from longspan_documents.inference.ranking import PassageIndex
from longspan_documents.text.reading import document_of, read

QUESTIONS = ("Who planted the roses?", "How thick is the oak's trunk?", "When was the pond dug?", "Zebras?")


def test_words_and_vectors_are_those_without_an_index(library: Path, tmp_path: Path) -> None:
    index = longspan.index(library, tmp_path / "index")
    assert isinstance(index, SearchIndex)
    assert (index.added.documents, index.added.passages, len(index)) == (3, 4, 3)
    documents = index.documents
    plain = PassageIndex([read(Path(one.name)) for one in documents], "en", bundled_encoder())
    for question in QUESTIONS:
        columns, _ = index._columns(question)
        evidence = plain.evidence(question)
        np.testing.assert_allclose(columns["words"], evidence.column("words"), rtol=1e-5)
        np.testing.assert_allclose(columns["passage"], evidence.column("passage"), atol=2e-3)  # float16
    found = SearchIndex(tmp_path / "index").answer("Who planted the roses?")
    best = found.passages[0]
    assert str(best.sentence) == "The roses were planted in 1921 by Anna Weber."
    assert best.file == str(library / "garden.md")
    assert documents[best.document].text[best.quote.start : best.quote.end] == best.quote.text
    assert best.heading == "Garden"
    assert (found.searched, len(found.passages)) == (4, 3)
    assert [one.probability for one in found.passages] == sorted(one.probability for one in found.passages)[::-1]


def test_only_what_changed_is_read_again(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = longspan.index(library, tmp_path / "index")
    opened: list[Any] = []
    real = growing.opened
    monkeypatch.setattr(growing, "opened", lambda source, reading: opened.append(source) or real(source, reading))
    index = longspan.index(library, tmp_path / "index")
    assert (index.added.documents, index.added.known, opened) == (0, 3, [])
    (library / "house.md").write_text("# House\n\nThe mill was sold to Clara Vogt in 1950.\n")
    os.utime(library / "trees.md", (1, 1))  # touched, with the same text
    index = longspan.index([library, "A text about zebras: they live in Africa."], tmp_path / "index")
    assert {Path(one).name for one in opened if isinstance(one, Path)} == {"house.md", "trees.md"}
    assert (index.added.documents, index.added.known, len(index)) == (2, 2, 4)
    for one in (index, SearchIndex(tmp_path / "index")):
        assert "Clara Vogt" in one.answer("Who bought the mill?").passages[0].text
        assert not any("four rooms" in passage.text for passage in one.answer("four rooms?", top=9).passages)
        assert one.answer("zebras").passages[0].text.startswith("A text about zebras")
    # What was is as if it had been there from the beginning.
    fresh = longspan.index([library, "A text about zebras: they live in Africa."], tmp_path / "fresh")
    for question in QUESTIONS:
        one, two = (each.answer(question, top=9) for each in (index, fresh))
        assert one.probability == pytest.approx(two.probability, rel=1e-6)
        assert [passage.text for passage in one.passages] == [passage.text for passage in two.passages]


def test_files_that_are_gone_or_have_changed_leave(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "index"
    longspan.index([library, "A text about zebras: they live in Africa."], folder)
    assert SearchIndex(folder).stale() is None
    (library / "trees.md").unlink()
    (library / "house.md").write_text("# House\n\nThe mill was sold to Clara Vogt in 1950.\n", encoding="utf-8")
    note = "the index is older than its files: 1 file gone (trees.md), 1 file changed (house.md)"
    assert (SearchIndex(folder).stale() or "").startswith(note)
    assert main(["answer", "--index", str(folder), "Who built the house?"]) == 0
    told = capsys.readouterr()
    assert note in told.err
    assert "Karl Weber" in told.out  # it is asked as it was read
    index = longspan.index(library / "garden.md", folder)
    assert index.notes == ["left the index, as their files are gone or have changed: house.md, trees.md"]
    assert (index.added.known, len(index), index.stale()) == (1, 2, None)
    for one in (index, SearchIndex(folder)):
        texts = [passage.text for passage in one.answer("Who built the house, and how old is the oak?", top=9).passages]
        assert not any("Karl Weber" in text or "oak" in text for text in texts)
        assert any("zebras" in text for text in texts)
    # One that was touched stays, also where parts are written before it is looked at.
    monkeypatch.setattr(growing, "PART_PASSAGES", 1)
    os.utime(library / "garden.md", (1, 1))
    index = longspan.index([library / "house.md", library / "garden.md"], folder)
    assert (index.added.documents, index.added.known, len(index), index.notes) == (1, 1, 3, [])
    assert index.stale() is None


def test_a_note_names_a_few_files() -> None:
    assert stale_note([], []) is None
    note = stale_note([f"/a/{number}.md" for number in range(1234)], ["/a/b.md"])
    assert (note or "").startswith(
        "the index is older than its files: 1,234 files gone (0.md, 1.md, 2.md and 1,231 more), 1 file changed (b.md)"
    )


def test_a_kill_leaves_the_old_or_the_new(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "index"
    longspan.index(library / "garden.md", folder)
    before = (folder / LIST).read_bytes()

    class Killed(BaseException):
        pass

    def kill(*given: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:  # the part is whole, the list is not written any more
        patched.setattr(growing, "write_list", kill)
        with pytest.raises(Killed):
            longspan.index(library, folder)
    assert (folder / LIST).read_bytes() == before
    assert len(SearchIndex(folder)) == 1
    index = longspan.index(library, folder)
    assert len(index) == 3
    assert not index.notes

    def broken(given: Any, skipped: Any) -> Iterator[Any]:
        yield from real(library / "trees.md", skipped)
        raise KeyboardInterrupt

    real = growing.sources_of
    other = tmp_path / "other"
    monkeypatch.setattr(growing, "sources_of", broken)
    with pytest.raises(KeyboardInterrupt):  # what was finished stays
        longspan.index(library, other)
    assert len(SearchIndex(other)) == 1


def test_damage_is_said_and_mended(library: Path, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    longspan.index(library / "garden.md", folder)
    longspan.index(library / "trees.md", folder)
    file = folder / "part-000002.safetensors"
    whole = file.read_bytes()
    for data in (whole[:-1], whole[:8] + b"x" * (len(whole) - 8)):
        file.write_bytes(data)
        index = SearchIndex(folder)
        assert len(index) == 1
        assert "it is left out: index its documents again" in index.notes[0]
        assert (index.answer("roses?").note or "").startswith("'")
    assert len(longspan.index(library, folder)) == 3
    (folder / LIST).write_text("{}")
    with pytest.raises(InputError, match="is of another version of Longspan; make the index again"):
        SearchIndex(folder)
    with pytest.raises(InputError, match=f"has no {LIST}; make an index"):
        SearchIndex(tmp_path)


def test_without_english_words_alone_rank(tmp_path: Path) -> None:
    index = longspan.index(document_of("Розы посадила Анна в саду. Дуб очень старый."), tmp_path / "index")
    assert index.answer("Кто посадил розы?").passages[0].text.startswith("Розы")
    assert not index.answer("зебры").answered


def test_the_command(library: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "index"
    assert main(["index", str(library), "--output", str(folder)]) == 0
    assert "3 documents added (4 passages); 3 documents in" in capsys.readouterr().out
    assert main(["answer", "--index", str(folder), "Who planted the roses?", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["searched"] == 4
    assert record["sure"] in {"likely", "unsure"}
    assert record["passages"][0]["file"].endswith("garden.md")
    assert main(["index", str(library), "--output", str(folder), "--model", str(model)]) == 2
    assert "does not fit the index" in capsys.readouterr().err
    assert main(["answer", "--index", str(folder), "roses?", "--model", str(model)]) == 2
    assert main(["index", str(library), "--output", str(tmp_path / "b"), "--lower-layers", "3"]) == 2
    for number in range(25):
        (library / f"{number}.txt").write_text(f"Document {number} tells of roses.")
    assert main(["answer", str(library), "roses?"]) == 0
    assert "`longspan index FOLDER --output INDEX` does so once" in capsys.readouterr().err
