"""Lines, words and pages of PDF files."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from longspan.data.text.pdf import text_and_pages_from_pdf, whole_words
from longspan.data.text.sentences import split_sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the moun-\ntains are high", "the mountains\nare high"),
        ("the moun\ufffetains are high\nand cold", "the mountains\nare high\nand cold"),
        ("the moun\x02tains.\nNext", "the mountains.\nNext"),
        ("a moun\u2010\ntain", "a mountain\n"),
        ("non-opioid and non\ufffeopioid drugs", "non-opioid and non-opioid\ndrugs"),
        ("nonopioid, non-opioid and non\ufffeopioid", "nonopioid, non-opioid and nonopioid\n"),
        ("the day-to\ufffeday use", "the day-to-day\nuse"),
        ("by ICD-\n9 codes", "by ICD-9\ncodes"),
        ("MSMC\ufffeEHR data", "MSMC-EHR\ndata"),
        ("pages 12-\n15 of it", "pages 12-\n15 of it"),
        ("a - \nb", "a - \nb"),
        ("the moun-\ftains are high\fEnd", "the mountains\fare high\fEnd"),
        ("the moun-\ftains\fEnd", "the mountains\f\fEnd"),
    ],
)
def test_broken_words_are_joined_and_lines_kept(text: str, expected: str) -> None:
    assert whole_words(text) == expected


def test_lines_stay_short_enough_to_be_lines() -> None:
    """Two lines of 90 characters must not become one of 180, which sentences would be cut around."""
    line = "the colony was observed from a hut over the valley during nine summers and by day moun-"
    rest = "tains were covered with snow, so that nobody could reach the burrows that were known."
    text = f"In that year {line}\n{rest}\nIt rose."
    joined = whole_words(text)
    assert [len(part) < 110 for part in joined.split("\n")] == [True] * 3
    sentences = [sentence.text for sentence in split_sentences(joined)]
    assert len(sentences) == 2
    assert "by day mountains\nwere covered" in sentences[0]


def test_one_long_word_takes_linear_time() -> None:
    text = "a" * 2_000_000
    assert whole_words(text) == text


def test_threads_may_read_at_once(make_pdf: Callable[..., bytes]) -> None:
    small_pdf = make_pdf("First line.", "Second page.")
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(text_and_pages_from_pdf(small_pdf, "a.pdf")[0])) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["First line.\nSecond page."] * 8
