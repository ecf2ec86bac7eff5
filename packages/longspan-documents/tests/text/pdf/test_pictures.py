"""Pages that are pictures: they are told, and what stands on the others is read."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow.parquet import read_table

import longspan
from longspan.cli import main
from longspan_documents.mapping.documents import map_documents
from longspan_documents.serve.worker import JobRunner
from longspan_documents.text.blocks import numbers_in_words
from longspan_documents.text.pdf.reader import document_from_pdf

SENTENCE = "The gauge at the mill records the level of the water every hour."
TEXT = [(50, 100 + 12 * number, SENTENCE) for number in range(4)]
PICTURE = (0, 0, "", 10, "picture")


def test_pictures_among_pages_are_told(typeset: Callable[..., bytes], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        document = document_from_pdf(typeset(TEXT, [PICTURE], TEXT, [PICTURE, (300, 780, "4")]), "x.pdf")
    assert document.pictures == (2, 4)
    assert document.note == "pages 2 and 4 of 4 are pictures, which were not read"
    assert [record.getMessage() for record in caplog.records] == [f"note: x.pdf: {document.note}"]


def test_text_upon_a_picture_is_read(typeset: Callable[..., bytes]) -> None:
    document = document_from_pdf(typeset([PICTURE, *TEXT], TEXT, []), "x.pdf")
    assert (document.pictures, document.note) == ((), None)


def test_one_page(typeset: Callable[..., bytes]) -> None:
    assert document_from_pdf(typeset(TEXT, [PICTURE]), "x.pdf").note == "page 2 of 2 is a picture, which was not read"


@pytest.mark.parametrize(
    ("numbers", "words"),
    [((3,), "3"), ((2, 4), "2 and 4"), ((2, 3), "2 and 3"), ((1, 4, 5, 6, 7, 9), "1, 4–7 and 9"), ((1, 2, 3), "1–3")],
)
def test_numbers_in_words(numbers: tuple[int, ...], words: str) -> None:
    assert numbers_in_words(numbers) == words


def test_a_summary_is_the_same_in_every_interface_and_notes_the_pictures_once(
    typeset: Callable[..., bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.pdf"
    file.write_bytes(typeset(TEXT, [PICTURE]))
    note = "page 2 of 2 is a picture, which was not read"
    expected = longspan.summarize(file, 2)
    assert expected.note == note
    sentences = [(sentence.text, sentence.start, sentence.score) for sentence in expected.sentences]

    stored = {"id": "k", "name": "x.pdf", "path": str(file)}
    served = JobRunner(lambda **_: None).summarize(stored, {"sentences": 2}, scores=False)
    assert served["notes"] == [f"x.pdf: {note}"]

    assert main(["summarize", str(file), "-n", "2", "--json"]) == 0
    output = capsys.readouterr()
    (printed,) = json.loads(output.out)
    assert printed["note"] == note
    assert note not in output.err  # it was logged when the file was read

    map_documents("summarize", file, tmp_path / "mapped", workers=0, sentences=2)
    (mapped,) = read_table(tmp_path / "mapped").to_pylist()
    assert mapped["note"] == note
    for found in (served, printed, mapped):
        assert [(row["text"], row["start"], row["score"]) for row in found["sentences"]] == sentences
