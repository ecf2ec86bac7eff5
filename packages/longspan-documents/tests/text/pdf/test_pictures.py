"""Pages that are pictures: they are told, and what stands on the others is read."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

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
