"""The name of a file where a `Path` was meant: every verb refuses it, and a text that speaks of files is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import longspan
from longspan import InputError
from longspan_documents.inference.importance import importance

QUESTION = "what are hedges made of?"
VERBS: dict[str, Callable[[Any], Any]] = {
    "summarize": longspan.summarize,
    "summarization": longspan.pipeline("summarization"),
    "summarization of several": lambda text: longspan.pipeline("summarization")(["A text.", text]),
    "answer": lambda text: longspan.answer(text, QUESTION),
    "answer of several": lambda text: longspan.answer([Path("hedge.txt"), text], QUESTION),
    "question-answering": lambda text: longspan.pipeline("question-answering")(question=QUESTION, context=text),
    "embed": longspan.embed,
    "embed of several": lambda text: longspan.embed(["A text.", text]),
    "embed_document": longspan.embed_document,
    "chunks": longspan.chunks,
    "classify": lambda text: longspan.classify(text, "model"),
    "choose": lambda text: longspan.choose(text, QUESTION, ["wood"], "model"),
    "importance": lambda text: importance(text, reference="A hedge."),
    "index": lambda text: longspan.index([text], "library"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a document in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hedge.txt").write_text("A hedge is made of shrubs. Birds live in it.\n")
    return tmp_path


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", ["hedge.txt", "paper.pdf"])
def test_every_verb_refuses_the_name_of_a_file(verb: str, name: str) -> None:
    with pytest.raises(InputError, match=rf"is '{name}', the name of a file; give Path\('{name}'\)"):
        VERBS[verb](name)


def test_a_line_break_makes_it_a_text() -> None:
    assert longspan.summarize("paper.pdf\n").text == "paper.pdf"
    assert longspan.embed(["paper.pdf\n"]).shape == longspan.embed(["A text."]).shape


def test_folders_are_refused_where_they_can_be_read(folder: Path) -> None:
    (folder / "contracts").mkdir()
    with pytest.raises(InputError, match=r"the name of a folder; give Path\('contracts'\)"):
        longspan.answer("contracts", QUESTION)
    assert longspan.summarize("contracts").text == "contracts"
