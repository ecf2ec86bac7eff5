"""Words that line ends break, and the hyphens that belong to them."""

from __future__ import annotations

import pytest

from longspan_documents.text.hyphens import joined, words_of


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
        ("is non-", "planar in", "a planar map", ("is non-planar", "in")),
        ("the price-", "determining factors", "", ("the price-determining", "factors")),
        ("a well-", "known rule", "", ("a well-known", "rule")),
        ("a cost-", "effective bid", "", ("a cost-effective", "bid")),
        ("of long-", "term plans", "", ("of long-term", "plans")),
        ("by COVID-", "19 and", "", ("by COVID-19", "and")),
        ("the North-", "South line", "", ("the North-South", "line")),
        ("an ATP-", "consuming step", "", ("an ATP-consuming", "step")),
        ("an x-", "ray of", "", ("an x-ray", "of")),
        ("the day-to-", "day use", "today", ("the day-to-day", "use")),
        ("the engi-", "neer wrote", "", ("the engineer", "wrote")),
        ("the gra-", "vel of", "", ("the gravel", "of")),
        ("the tempera-", "ture", "", ("the temperature", "")),
        ("for min-", "or reasons", "", ("for minor", "reasons")),
        ("was permit-", "ted to", "", ("was permitted", "to")),
        ("INTRO-", "DUCTION", "", ("INTRODUCTION", "")),
        ("pages 12-", "15 of it", "", ("pages 12-15", "of it")),
        ("see https://example.org/dot-", "language for", "", ("see https://example.org/dot-language", "for")),
        ("a k8s-", "infra team", "", ("a k8s-infra", "team")),
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
    ("line", "following"),
    [("two- and three-", "or four-year"), ("pre-", "and post-war"), ("a -", "b"), ("the end", "of it"), ("x-", "")],
)
def test_what_is_no_broken_word_stays(line: str, following: str) -> None:
    assert joined(line, following, words_of([])) is None


def test_a_word_that_a_line_end_breaks_is_not_known() -> None:
    assert set(words_of(["the moun-", "tains", "Non-opioid drugs"]).counts) == {"the", "non-opioid", "drugs"}


def test_what_occurs_more_often_decides() -> None:
    assert joined("a micro-", "scope", words_of(["micro-scope, micro-scope, microscope"])) == ("a micro-scope", "")
    assert joined("a micro-", "scope", words_of(["micro-scope, microscope"])) == ("a microscope", "")


def test_english_words_decide_nothing_in_other_languages() -> None:
    german = words_of(["Der Kredit fördert Unternehmen sowie Freiberufler am Markt und in der Stadt."] * 8)
    assert joined("die Hand-", "buch", german) == ("die Handbuch", "")
    assert joined("ein Land-", "strom", german) == ("ein Landstrom", "")
