"""Words that line ends break, and the hyphens that belong to them."""

from __future__ import annotations

import pytest

from longspan.data.text.pdf.reader import joined, words_of


@pytest.mark.parametrize(
    ("line", "following", "elsewhere", "expected"),
    [
        ("the moun-", "tains are high", "", ("the mountains", "are high")),
        ("the moun\u00ad", "tains.", "", ("the mountains.", "")),
        ("a moun\u2010", "tain", "", ("a mountain", "")),
        ("for non-", "opioid drugs", "non-opioid", ("for non-opioid", "drugs")),
        ("for non-", "opioid drugs", "nonopioid and non-opioid", ("for nonopioid", "drugs")),
        ("the day-to-", "day use", "", ("the day-to-day", "use")),
        ("the day-", "to-day use", "", ("the day-to-day", "use")),
        ("is cor-", "related with", "", ("is correlated", "with")),
        ("by ICD-", "9 codes", "", ("by ICD-9", "codes")),
        ("MSMC-", "EHR data", "", ("MSMC-EHR", "data")),
        ("is architecture-", "independent and", "", ("is architecture-independent", "and")),
        ("a transformer-", "based model", "", ("a transformer-based", "model")),
        ("a self-", "supervised model", "supervised", ("a self-supervised", "model")),
        ("is non-", "linear in", "a linear map", ("is non-linear", "in")),
        ("is non-", "sense", "", ("is nonsense", "")),
        ("a two-", "column page", "two pages, one column", ("a two-column", "page")),
        ("the second-", "order term", "the second term, in order", ("the second-order", "term")),
        ("and there-", "fore it", "there it was, fore and aft", ("and therefore", "it")),
        ("a net-", "work of", "the net, the work", ("a network", "of")),
        ("how-", "ever, they", "how did they ever", ("however,", "they")),
        ("to per-", "form it", "per form", ("to perform", "it")),
        ("some-", "what", "some, what", ("somewhat", "")),
    ],
)
def test_a_hyphen_stays_where_it_belongs(line: str, following: str, elsewhere: str, expected: tuple[str, str]) -> None:
    assert joined(line, following, words_of([line, following, elsewhere])) == expected


@pytest.mark.parametrize(
    ("line", "following"), [("pages 12-", "15 of it"), ("a -", "b"), ("the end", "of it"), ("x-", "")]
)
def test_what_is_no_broken_word_stays(line: str, following: str) -> None:
    assert joined(line, following, set()) is None


def test_a_word_that_a_line_end_breaks_is_not_known() -> None:
    assert words_of(["the moun-", "tains", "Non-opioid drugs"]) == {"the", "non-opioid", "drugs"}
