"""Lines of PDF pages become paragraphs, headings, items, captions, notes; places point into the text."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from longspan.errors import InputError
from longspan_documents.text.pdf.reader import document_from_pdf
from longspan_documents.text.reading import read, sentences_of

PAGES = Path(__file__).parent / "pages"
FIRST = "The keeper counts the sheep in the evening and writes their number on the gate, so that the next can see it."
SECOND = "In the morning it is wiped off with a wet sleeve, and nobody ever asked what happens when it rains at night."


def shown(data: bytes) -> list[tuple[str, int, str]]:
    return [(block.kind, block.level, block.text) for block in document_from_pdf(data, "a.pdf").blocks]


def test_indented_paragraphs(typeset: Callable[..., bytes], column: Callable) -> None:
    lines = column(f"{FIRST} {FIRST} The end of it.", 60, 80, 60)
    more = column(f"{SECOND} {SECOND}", 60, 80 + 12 * len(lines), 60)
    more[0] = (75, *more[0][1:])
    assert [text for _, _, text in shown(typeset([*lines, *more]))] == [
        f"{FIRST} {FIRST} The end of it.",
        f"{SECOND} {SECOND}",
    ]


def test_paragraphs_apart_and_paragraphs_that_only_end(typeset: Callable[..., bytes], column: Callable) -> None:
    first = column(f"{FIRST} {FIRST} Then.", 60, 80, 55)
    second = column(f"{SECOND} {SECOND}", 60, 80 + 12 * len(first), 55)
    third = column(FIRST, 60, 100 + 12 * len([*first, *second]), 60)
    assert [text for _, _, text in shown(typeset([*first, *second, *third]))] == [
        f"{FIRST} {FIRST} Then.",
        f"{SECOND} {SECOND}",
        FIRST,
    ]


def test_headings_items_and_captions(typeset: Callable[..., bytes], column: Callable) -> None:
    data = typeset(
        [
            (60, 60, "Sheep and numbers,", 20),
            (60, 84, "a handbook", 20),
            (60, 120, "1 The gate", 14, "bold"),
            *column(FIRST, 60, 140, 60),
            (60, 180, "1.1 Evenings", 14, "bold"),
            *column(SECOND, 60, 200, 60),
            (60, 240, "Note", 10, "bold"),
            (70, 256, "• a pencil that writes"),
            (80, 268, "on wet wood;"),
            (70, 280, "• a sleeve."),
            (60, 310, "Figure 1: The gate in autumn.", 8),
            (60, 340, "for sheep in flock:", 9, "code"),
            (81.6, 352, "count(sheep)", 9, "code"),
        ]
    )
    assert shown(data) == [
        ("heading", 1, "Sheep and numbers, a handbook"),
        ("heading", 2, "1 The gate"),
        ("paragraph", 0, FIRST),
        ("heading", 3, "1.1 Evenings"),
        ("paragraph", 0, SECOND),
        ("heading", 4, "Note"),
        ("item", 1, "a pencil that writes on wet wood;"),
        ("item", 1, "a sleeve."),
        ("caption", 0, "Figure 1: The gate in autumn."),
        ("code", 0, "for sheep in flock:\n    count(sheep)"),
    ]
    assert document_from_pdf(data, "a.pdf").title == "Sheep and numbers, a handbook"


def test_a_sentence_goes_on_over_a_note_a_foot_and_a_head(typeset: Callable[..., bytes], tmp_path: Path) -> None:
    pages = [
        [
            (60, 40, "The handbook", 8),
            (60, 90, "One sentence stands alone here. The other one begins on this page and has a moun-"),
            (60, 700, "1 A note that nobody reads.", 7),
            (300, 770, "7", 8),
        ],
        [(60, 40, "The handbook", 8), (60, 90, "tain in it. A third one follows."), (300, 770, "8", 8)],
    ]
    path = tmp_path / "a.pdf"
    path.write_bytes(typeset(*pages))
    document = read(path)
    assert [(block.kind, block.text) for block in document.blocks] == [
        ("boilerplate", "The handbook"),
        (
            "paragraph",
            "One sentence stands alone here. The other one begins on this page and has a mountain in it. "
            "A third one follows.",
        ),
        ("note", "1 A note that nobody reads."),
        ("boilerplate", "7"),
        ("boilerplate", "The handbook"),
        ("boilerplate", "8"),
    ]
    sentences = sentences_of(document)
    assert [document.page(sentence.start) for sentence in sentences] == [1, 1, 2]
    assert document.text[sentences[2].start : sentences[2].end] == "A third one follows."


@pytest.mark.parametrize("name", ["two_columns", "one_column"])
def test_places_rise_and_lead_to_the_words(name: str) -> None:
    document = document_from_pdf((PAGES / f"{name}.pdf").read_bytes(), name)
    starts = [block.body.start for block in document.blocks]
    assert starts == sorted(set(starts))
    assert all(
        0 <= start < block.body.end <= len(document.text) for start, block in zip(starts, document.blocks, strict=True)
    )
    for block in document.blocks:
        for word in re.finditer(r"\w+", block.text):
            start, end = block.body.span(word.start(), word.end())
            assert document.text[start:end] == word[0]
    second = document.text[document.pages[1] :]
    assert second.startswith(("Journal of Small Rivers", "The keeper’s handbook"))


def test_paragraphs_of_a_typeset_page() -> None:
    """What a reader of the printed pages sees; written down from them."""
    document = document_from_pdf((PAGES / "two_columns.pdf").read_bytes(), "a.pdf")
    headings = [(block.level, block.text) for block in document.blocks if block.kind == "heading"]
    assert headings == [
        (1, "A walk along the river, and what the water told us on the way to its mouth"),
        (2, "1 Introduction"),
        (2, "2 The walk"),
        (2, "3 What the water told us"),
        (2, "4 The second walk"),
        (2, "5 What remains"),
        (2, "References"),
    ]
    paragraphs = [block.text for block in document.blocks if block.kind == "paragraph"]
    assert len(paragraphs) == 22  # the items of the list are one: its bullets are drawn, not written
    across = next(text for text in paragraphs if text.startswith("Walking against the water"))
    assert "the sound of the next mill arrives before its smell." in across
    assert "architecture-independent in the sense" in paragraphs[2]
    assert [block.text for block in document.blocks if block.kind == "caption"] == [
        "Figure 1: The bucket after the count, drawn on the fourth day."
    ]


def test_threads_may_read_at_once(make_pdf: Callable[..., bytes]) -> None:
    small_pdf = make_pdf("First line.", "Second page.")
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(document_from_pdf(small_pdf, "a.pdf").text)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["First line.\n\nSecond page."] * 8


def test_a_page_without_text_between_others(make_pdf: Callable[..., bytes]) -> None:
    document = document_from_pdf(make_pdf("First page.", "", "Third page."), "a.pdf")
    assert document.text == "First page.\n\nThird page."
    assert document.pages == (0, 11, 13)
    with pytest.raises(InputError, match=r"a\.pdf holds no text on its 1 pages"):
        document_from_pdf(make_pdf(""), "a.pdf")


def test_ligatures_that_are_mere_codes(typeset: Callable[..., bytes]) -> None:
    """A font of TeX's without a table of its characters: "fi" is number 28 in it, which Python takes for a space."""
    assert shown(typeset([(60, 90, "The \x1crst o\x1bice is \x1doating.")])) == [
        ("paragraph", 0, "The first office is floating.")
    ]


def test_a_page_of_which_only_the_end_of_a_word_is_left(typeset: Callable[..., bytes]) -> None:
    document = document_from_pdf(typeset([(60, 90, "It ends on the next moun-")], [(60, 90, "tain.")], []), "a.pdf")
    assert document.text == "It ends on the next mountain."
    assert document.pages == (0, 29, 29)


def test_turns_without_space_between_them(typeset: Callable[..., bytes], tmp_path: Path) -> None:
    """Lines as full as the column, of which only their beginnings tell who speaks."""
    said = [
        ("Anna Moor", "did anybody close the gate when the sheep had come in?"),
        ("Bert", "I closed it twice, since it had opened again by itself, I think."),
        ("Anna Moor", "then somebody should write that on the gate with a pencil."),
        ("Bert", "somebody has, and it was wiped off in the morning with a sleeve."),
        ("Anna Moor", "so we are where we were before, but without a pencil, too."),
    ]
    lines = [(60, 90 + 12 * number, f"{name}: {words}") for number, (name, words) in enumerate(said)]
    path = tmp_path / "a.pdf"
    path.write_bytes(typeset(lines))
    assert [(sentence.speaker, sentence.text) for sentence in sentences_of(read(path))] == said
