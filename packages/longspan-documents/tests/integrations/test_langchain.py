"""LangChain: its documents in, the passages of `longspan.answer` and the summaries of `longspan.summarize` out."""

from __future__ import annotations

from pathlib import Path

import pytest

import longspan
from marmots import TEXT

pytest.importorskip("langchain_core", reason="needs the 'langchain' extra")

from langchain_core.documents import Document

from longspan_documents.integrations.langchain import Retriever, summarizer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the library's own warnings are its own
QUESTION = "what are the main enemies of marmots?"
RAIN = "Rain falls on the hills all day. Nobody came to the house by the river."


def test_passages_of_texts_files_and_documents_of_theirs(tmp_path: Path) -> None:
    file = tmp_path / "marmots.txt"
    file.write_text(TEXT)
    theirs = Document(page_content=RAIN, metadata={"source": "weather", "author": "Ann"})
    retriever = Retriever.from_documents([theirs, file, RAIN], top=2)
    expected = longspan.answer([file], QUESTION).passages[0]
    first, *others = retriever.invoke(QUESTION)
    assert first.page_content == expected.text
    assert first.metadata["source"] == str(file)
    assert TEXT[first.metadata["start"] : first.metadata["end"]] == expected.quote.text
    assert len(others) <= 1
    (passage,) = Retriever.from_documents([theirs]).invoke("where does rain fall?")
    assert (passage.metadata["source"], passage.metadata["author"]) == ("weather", "Ann")
    assert passage.metadata["probability"] == longspan.answer(RAIN, "where does rain fall?").passages[0].probability


def test_passages_of_an_index(tmp_path: Path) -> None:
    (tmp_path / "marmots.txt").write_text(TEXT)
    longspan.index(tmp_path / "marmots.txt", tmp_path / "library")
    (first, *_) = Retriever.from_index(tmp_path / "library", top=1).invoke(QUESTION)
    assert "Eagles are their main enemies." in first.page_content


def test_summaries_alone_in_batches_and_behind_a_retriever() -> None:
    expected = longspan.summarize(TEXT, sentences=2).text
    summary = summarizer(sentences=2)
    assert summary.invoke(TEXT) == summary.invoke(Document(page_content=TEXT)) == expected
    assert summary.batch([TEXT, TEXT]) == [expected, expected]
    assert summary.invoke(Document(page_content="paper.pdf")) == "paper.pdf"  # not a name that was given for a file
    both = summary.invoke([Document(page_content=TEXT), RAIN])
    assert both == longspan.summarize(f"{TEXT}\n\n{RAIN}", sentences=2).text
    chain = Retriever.from_documents([TEXT], top=3) | summarizer(sentences=1)
    assert chain.invoke(QUESTION) in TEXT.replace("\n", " ")
