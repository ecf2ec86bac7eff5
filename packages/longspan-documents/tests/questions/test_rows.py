"""Question rows: places in the published document, and plain texts cut into passages."""

from array import array

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from longspan.errors import InputError
from longspan_documents.questions.rows import (
    LONGEST_PASSAGE,
    Candidate,
    Place,
    QuestionRow,
    Span,
    TextBytes,
    TokenPlaces,
    plain_row,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(TEXTS, st.data())
def test_characters_and_bytes_map_exactly_both_ways(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    places = TextBytes(text)
    place = places.place(Span(start, end))
    assert (place.start_byte, place.end_byte) == (len(text[:start].encode()), len(text[:end].encode()))
    assert text.encode()[place.start_byte : place.end_byte].decode() == text[start:end]
    assert places.span(place.start_byte, place.end_byte) == Span(start, end)
    assert places.length == len(text.encode())


def test_bytes_within_a_character_or_outside_the_text_are_no_span() -> None:
    places = TextBytes("aé𝄞")  # 1 + 2 + 4 bytes
    assert places.span(1, 3) == Span(1, 2)
    assert places.span(3, 7) == Span(2, 3)
    assert [places.span(*pair) for pair in ((2, 3), (1, 2), (0, 8), (3, 1), (-1, 1), (4, 7))] == [None] * 6


def test_tokens_of_a_text_among_those_of_a_document() -> None:
    # <P> Zürich is </P> <P> big . </P>: tokens 1, 2, 5, 6 are text.
    places = TokenPlaces(array("q", [1, 2, 5, 6]), array("q", [0, 7, 10, 14]), 15)
    assert places.place(Span(7, 13)) == Place(2, 6)
    assert places.place(Span(8, 11)) == Place(2, 6)  # touched tokens count whole
    assert places.place(Span(3, 3)) == Place()
    assert places.span(2, 6) == Span(7, 13)
    assert places.span(0, 8) == Span(0, 15)
    assert places.span(3, 5) == Span(10, 10)
    assert places.span(7, 8) == Span(15, 15)


def test_original_gives_the_units_of_the_source() -> None:
    candidate = Candidate(Span(0, 4), "table", False, Place(3, 9, 10, 60))
    places = TokenPlaces(array("q", [4, 5]), array("q", [0, 2]), 4, array("q", [11, 40]), array("q", [13, 45]))
    row = QuestionRow(id="1", question="q", text="é ab", candidates=(candidate,), source="nq", tokens=places)
    assert row.original(candidate) == {"start_token": 3, "end_token": 9, "start_byte": 10, "end_byte": 60}
    assert row.original(candidate.span) == {"start_token": 4, "end_token": 6, "start_byte": 11, "end_byte": 45}
    assert row.original(None) == {"start_token": -1, "end_token": -1, "start_byte": -1, "end_byte": -1}
    row = plain_row("é ab", "q")
    assert row.original(row.candidates[0]) == {"start_byte": 0, "end_byte": 5}
    assert row.original(Span(2, 4)) == {"start_byte": 3, "end_byte": 5}
    assert row.original(None) == {"start_byte": -1, "end_byte": -1}
    assert row.answer(Span(2, 4)) == "ab"
    with pytest.raises(InputError, match="span 0–5 is not within the 4 characters of 'document'"):
        row.original(Span(0, 5))


def test_paragraphs_of_a_plain_text() -> None:
    text = "\n\n One\ntwo. \n\t\n\n Three.\n\n\n"
    assert [text[c.span.start : c.span.end] for c in plain_row(text, " q? ").candidates] == ["One\ntwo.", "Three."]
    assert plain_row(text, " q? ").question == "q?"
    assert {(c.kind, c.top_level, c.place) for c in plain_row(text, "q").candidates} == {("paragraph", True, None)}


def test_long_paragraphs_are_cut_at_the_coarsest_border_that_helps() -> None:
    lines = "\n".join(["x" * 700] * 4)
    assert [len(c.span) for c in plain_row(lines, "q").candidates] == [1401, 1401]
    sentences = " ".join(["a" * 598 + "."] * 4)
    assert [len(c.span) for c in plain_row(sentences, "q").candidates] == [599 * 2 + 1] * 2
    words = " ".join(["a" * 99] * 20)
    assert [len(c.span) for c in plain_row(words, "q").candidates] == [1499, 499]
    assert [len(c.span) for c in plain_row("a" * 4001, "q").candidates] == [4001]


@given(st.text(st.sampled_from("ab.! \n\té東。"), min_size=1, max_size=80), st.integers(1, 400))
def test_passages_cover_every_character_that_is_not_blank_once(piece: str, times: int) -> None:
    text = piece * times
    assume(text.strip())
    covered = 0
    for candidate in plain_row(text, "q").candidates:
        span = candidate.span
        passage = text[span.start : span.end]
        assert not text[covered : span.start].strip()
        assert passage == passage.strip() != ""
        assert len(span) <= LONGEST_PASSAGE or not any(character.isspace() for character in passage)
        covered = span.end
    assert not text[covered:].strip()


@pytest.mark.parametrize(
    ("text", "question", "message"),
    [
        ("text", " ", "the question is empty; give one with words in it"),
        ("\n ", "why?", "the document is empty"),
        ("text", None, "the question is null instead of a text"),
        (7, "why?", "the document is an int instead of a text"),
        ("a\ud800b", "why?", "the document has half a character at 1"),
    ],
)
def test_what_is_no_text_is_refused(text: object, question: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plain_row(text, question)  # pyright: ignore[reportArgumentType]
