"""Which texts are changelogs, and where their newest releases end."""

from __future__ import annotations

import pytest

import longspan
from longspan_documents.inference.summarize import UNRELIABLE
from longspan_documents.text.changelogs import newest_releases

pytest.importorskip("sentencex", reason="needs the 'documents' extra")

CHANGES = (
    "The parser reads tables of any width.",
    "Removed the option --old, which did nothing since last year.",
    "Fixed a crash on empty files.",
    "The cache is written once a minute, which halves the time of a start.",
    "Added Polish and Czech translations.",
)


def changelog(heads: list[str]) -> str:
    listed = "".join(f"* {change}\n" for change in CHANGES)
    return "# History of snail\n\n" + "".join(f"{head}\n\n{listed}\n" for head in heads)


@pytest.mark.parametrize(
    "heads",
    [
        ["## [2.0.0] - 2024-05-01", "## [1.10.1] - 2023-02-03", "## [1.10.0] - 2023-01-31", "## [1.9.4] - 2022-01-01"],
        ["v0.12 (May 2024)", "v0.11.2", "v0.11.1 (dev)", "v0.9"],
        ["What's New in Snail 3.13", "What's New in Snail 3.12", "What's New in Snail 3.11", "What's New in Snail 3.9"],
        ["2024-05-01  Ann Lee <ann@example.org>", "2024-04-30  Ben Roe", "2023-12-31  Ann Lee", "2021-01-01  Ann Lee"],
    ],
)
def test_releases_fall_and_the_newest_are_first(heads: list[str]) -> None:
    text = changelog(heads)
    starts = [text.index(head) for head in heads]
    for words, last in ((10, 1), (60, 2)):  # one has 38 words and those of its heading
        assert newest_releases(text, words) == range(starts[0], starts[last])
    assert newest_releases(text, 10_000) == range(starts[0], len(text))
    rising = changelog(heads[::-1])
    assert newest_releases(rising, 10) is None


def test_numbered_sections_are_no_releases() -> None:
    assert newest_releases(changelog(["1.1 Methods", "1.2 Data", "1.3 Results", "2.1 Related work"]), 10) is None
    assert newest_releases(changelog(["2.0", "1.0"]), 10) is None
    assert newest_releases("", 10) is None


def test_a_summary_is_picked_from_the_newest_releases() -> None:
    text = changelog([f"## {number}.0" for number in range(30, 0, -1)])
    summary = longspan.summarize(text, 2)
    assert summary.note == UNRELIABLE["changelog"]
    assert {sentence.text for sentence in summary.sentences} <= set(CHANGES)
    assert all(sentence.start < text.index("## 20.0") for sentence in summary.sentences)
    assert "changelog" not in (longspan.summarize(text, 2, query="translations").note or "")
