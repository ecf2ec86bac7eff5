"""What belongs to a line of a PDF page without standing on it: raised and lowered letters, drop capitals, tracking."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from longspan_documents.text.pdf.reader import document_from_pdf

PROSE = (
    "he river gauge at the mill records the level of the water every ten minutes and sends it to the office. In spring "
    "the snow melts on the hills and the level rises by more than two metres within a single week."
)


def texts(data: bytes) -> list[str]:
    return [block.text for block in document_from_pdf(data, "x.pdf").blocks]


def test_a_raised_mark_joins_no_number_and_glues_no_sentences(typeset: Callable[..., bytes]) -> None:
    page = [
        (50, 100, "The repair of the weir cost $320"),
        (193, 96, "1", 6),
        (198, 100, "in all."),
        (228.5, 96, "2", 6),
        (234, 100, "It was slow."),
        (50, 700, "1", 6),
        (54, 703, "Without the tax of the state.", 8),
    ]
    assert texts(typeset(page)) == [
        "The repair of the weir cost $320 in all. It was slow.",
        "1 Without the tax of the state.",
    ]


def test_exponents_and_indices_stay(typeset: Callable[..., bytes]) -> None:
    page = [
        (50, 100, "It holds 10"),
        (101.5, 96, "6", 6),
        (108, 100, "litres of H"),
        (150.3, 102, "2", 6),
        (153.7, 100, "O."),
    ]
    assert texts(typeset(page)) == ["It holds 10^6 litres of H₂O."]


@pytest.mark.parametrize(
    ("capital", "rest", "word"), [("T", PROSE, "The"), ("A", PROSE[3:], "A river"), ("“I", PROSE[3:], "“I river")]
)
def test_a_drop_capital_begins_its_word(
    typeset: Callable[..., bytes],
    column: Callable[..., list[tuple[float, float, str]]],
    capital: str,
    rest: str,
    word: str,
) -> None:
    beside = column(rest, 72, 100, 62)[:2]
    said = " ".join(text for _, _, text in beside)
    below = column(rest[len(said) + 1 :], 50, 124, 68)
    page = [(50, 112, capital, 30), *beside, *below]
    assert texts(typeset(page)) == [f"{word} {rest.split(' ', 1)[1]}"]


def test_letters_set_apart_are_words(typeset: Callable[..., bytes]) -> None:
    places = (50, 65, 81, 107, 123, 133, 148, 163)
    letters = [(place, 100, letter, 14) for place, letter in zip(places, "THERIVER", strict=True)]
    document = document_from_pdf(
        typeset([*letters, (50, 140, "The river gauge records the level of the water.")]), "x.pdf"
    )
    assert (document.blocks[0].kind, document.blocks[0].text) == ("heading", "THE RIVER")


def test_a_row_of_letters_is_no_word(typeset: Callable[..., bytes]) -> None:
    row = [(50 + 18 * place, 100, letter) for place, letter in enumerate("ABCDE")]
    assert texts(typeset(row)) == ["A B C D E"]
