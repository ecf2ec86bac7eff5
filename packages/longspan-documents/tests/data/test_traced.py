"""Tidied texts know where each character came from."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan_documents.text.blocks import Traced


def test_a_hyphen_at_a_line_end_is_left_out_and_places_stay() -> None:
    text = "An archi-\ntecture  stands"
    body = Traced.whole(text, 100).edited([(8, 10, ""), (17, 19, " ")])
    assert body.text == "An architecture stands"
    assert body.span(3, 15) == (103, 117)  # "archi-\ntecture"
    assert body.span(16, 22) == (119, 125)  # "stands"
    assert (body.start, body.end) == (100, 125)


def test_a_part_has_the_places_of_the_whole() -> None:
    body = Traced.whole("abcdefgh").edited([(2, 4, "")])
    part = body.part(1, 5)
    assert part.text == "befg"
    assert [part.origin(place) for place in range(4)] == [1, 4, 5, 6]
    assert part.end == 7


@given(st.text("abc \n", max_size=30), st.lists(st.tuples(st.integers(0, 30), st.text("xy", max_size=3)), max_size=5))
def test_every_kept_character_is_the_origins(text: str, drawn: list[tuple[int, str]]) -> None:
    starts = sorted({place for place, _ in drawn if place < len(text)})
    bounds = [*starts, len(text)]
    edits = [
        (start, min(start + 2, after), new) for (start, after), (_, new) in zip(pairwise(bounds), drawn, strict=False)
    ]
    kept = [place for place in range(len(text)) if not any(start <= place < end for start, end, _ in edits)]
    body = Traced.whole(text).edited(edits)
    # New characters are x and y, which no origin has, so the others are the ones that were kept, in order.
    found = [body.origin(place) for place, character in enumerate(body.text) if character not in "xy"]
    assert found == kept
    # A second round of edits composes with the first.
    cut = [(place, place + 1, "") for place in range(0, len(body.text), 2)]
    twice = body.edited(cut)
    assert [twice.origin(place) for place in range(len(twice.text))] == [
        body.origin(place) for place in range(1, len(body.text), 2)
    ]


@pytest.mark.parametrize("text", ["", "a"])
def test_nothing_and_one_character(text: str) -> None:
    body = Traced.whole(text, 7)
    assert body.edited([(0, len(text), "")]).text == ""
    assert body.span(0, 0) == (7, 7)


def test_what_the_origin_lacks_reaches_no_further_than_its_end() -> None:
    """As the words of a code span in Markdown that are not found again in the file."""
    body = Traced("ab<c>", ((0, 10), (2, 12), (3, 12), (4, 12)), 12)
    assert [body.span(*part) for part in ((0, 2), (0, 5), (2, 5), (4, 5))] == [(10, 12), (10, 12), (12, 12), (12, 12)]
