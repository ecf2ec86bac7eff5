"""Sections summarised one by one: their headings, their best sentences, and parts where there are no headings."""

from __future__ import annotations

from longspan_documents.inference.outline import outline
from longspan_documents.inference.results import ScoredSentence, Summary
from longspan_documents.text.blocks import Document, document_from_parts
from longspan_documents.text.reading import document_of, sentences_of


def summary_of(document: Document, best: str) -> Summary:
    """Every sentence with the word `best` has a high score."""
    scored = tuple(
        ScoredSentence(found.text, found.start, found.end, 0.9 if best in found.text else 0.1, found.speaker)
        for found in sentences_of(document)
    )
    return Summary(sentences=scored[:1], document=scored, tokens=1, seconds=0.0)


def test_sections_have_their_headings_levels_and_best_sentences() -> None:
    document = document_from_parts(
        [
            ("paragraph", "A word before it all is here.", 0),
            ("heading", "Animals", 1),
            ("heading", "Marmots", 2),
            ("paragraph", "They sleep in deep burrows. A whistle is best of all. They eat green grass.", 0),
            ("heading", "Empty", 2),
            ("heading", "Plants", 1),
            ("paragraph", " ".join(f"Plant number {n} is {'best' if n in (2, 6) else 'green'}." for n in range(8)), 0),
        ],
        "a.docx",
    )
    found = outline(document, summary_of(document, "best"))
    assert [(section.heading, section.level) for section in found] == [
        ("A word before it all is here.", 1),
        ("Animals", 1),
        ("Marmots", 2),
        ("Plants", 1),
    ]
    assert [[sentence.text for sentence in section.sentences] for section in found] == [
        ["A word before it all is here."],
        [],
        ["A whistle is best of all."],
        ["Plant number 2 is best.", "Plant number 6 is best."],
    ]
    assert document.text[found[3].start :].startswith("Plants")
    assert str(found[2]) == "## Marmots\nA whistle is best of all."


def test_without_headings_there_are_equal_parts() -> None:
    document = document_of("\n\n".join(f"Line {n} is about the sea{' best' * (n % 15 == 7)}." for n in range(60)))
    found = outline(document, summary_of(document, "best"))
    names = [f"Part {n + 1} of 3: Line {20 * n} is about the sea." for n in range(3)]
    assert [section.heading for section in found] == names
    assert "Line 7 is about the sea best." in str(found[0])


def test_turns_are_parts_by_position() -> None:
    document = document_of("\n".join(f"{'Ann' if n % 2 else 'Bob'}: I say the word number {n}." for n in range(40)))
    found = outline(document, summary_of(document, "word"))
    assert [section.heading for section in found] == ["Part 1 of 2", "Part 2 of 2"]
    assert found[0].sentences[0].speaker in {"Ann", "Bob"}


def test_a_written_summary_has_no_sections() -> None:
    assert outline(document_of("A sentence."), Summary(sentences=(), tokens=1, seconds=0.0)) == ()
