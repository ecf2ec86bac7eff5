"""Passages: whole sentences of one section, of a readable length, each with its place."""

from __future__ import annotations

from pathlib import Path

from longspan.data.text.sentences import split_words
from longspan_documents.text.blocks import Block, Document, Traced
from longspan_documents.text.passages import FEWEST, MOST, Passage, passages_of, units_of
from longspan_documents.text.reading import DocumentSentence, document_of, read, sentences_of

SENTENCE = "Marmot number {} whistles at the eagle above the snow."  # ten words
DIALOGUE = "\n".join(
    f"{name}: {words}"
    for name, words in [
        ("ANNA", "Where do they live?"),
        ("BEN", "In the mountains, high up."),
        ("ANNA", "And their enemies?"),
        ("BEN", "Eagles. They come from above."),
    ]
)


def paragraph(sentences: int, first: int = 0) -> str:
    return " ".join(SENTENCE.format(number) for number in range(first, first + sentences))


def test_every_sentence_is_in_one_passage_in_order() -> None:
    document = document_of("\n\n".join(paragraph(count, 10 * count) for count in (1, 3, 7, 20, 2)))
    units = units_of(document)
    passages = passages_of(document)
    assert [one for passage in passages for one in passage.sentences] == units
    assert [passage.first for passage in passages] == [units.index(passage.sentences[0]) for passage in passages]
    assert all(FEWEST // 2 <= len(split_words(passage.text)) <= MOST + FEWEST // 2 for passage in passages)


def test_a_paragraph_that_fits_is_not_cut() -> None:
    document = document_of(f"{paragraph(6)}\n\n{paragraph(7, 6)}\n\n{paragraph(8, 13)}")
    texts = [passage.text for passage in passages_of(document)]
    assert texts == [paragraph(6), paragraph(7, 6), paragraph(8, 13)]


def test_short_paragraphs_stand_together_and_a_rest_joins_the_one_before() -> None:
    document = document_of("\n\n".join(paragraph(1, number) for number in range(8)))
    assert [len(passage.sentences) for passage in passages_of(document)] == [8]  # six make a passage, two are a rest


def test_no_passage_crosses_a_heading_and_each_knows_its_own() -> None:
    document = document_of(f"Preface words stand here.\n\n# Where\n\n{paragraph(2)}\n\n# When\n\n{paragraph(1, 5)}")
    passages = passages_of(document)
    assert [passage.heading for passage in passages] == [None, "Where", "When"]
    assert [len(passage.sentences) for passage in passages] == [1, 2, 1]


def test_places_point_into_the_document() -> None:
    text = f"First\nwrapped line.\n\n{paragraph(9)}"
    document = document_of(text)
    for passage in passages_of(document):
        assert text[passage.start : passage.end].split() == passage.text.split()
        for number, one in enumerate(passage.sentences):
            start, end = passage.place_in_text(number)
            assert passage.text[start:end] == one.text


def test_turns_are_grouped_and_keep_their_speakers() -> None:
    (passage,) = passages_of(document_of(DIALOGUE))
    assert passage.text == DIALOGUE
    assert passage.speakers == ("ANNA", "BEN")
    start, end = passage.place_in_text(4)
    assert passage.text[start:end] == "They come from above."


def test_tables_and_a_text_of_nothing_but_a_heading_are_found_too() -> None:
    document = document_of("# Marmots")
    assert [passage.text for passage in passages_of(document)]
    assert passages_of(document_of("x"))[0].text == "x"


def test_lines_of_code_stay_apart(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.write_text("Install it:\n\n```sh\npip install longspan\nlongspan --help\n```\n\nThat is all.\n")
    (passage,) = passages_of(read(file))
    assert passage.text == "Install it:\npip install longspan\nlongspan --help\nThat is all."
    start, end = passage.place_in_text(2)
    assert passage.text[start:end] == "longspan --help"


def test_no_space_is_put_where_the_document_has_none() -> None:
    """Sentences that were cut inside a word, as after the first dot of "Fig.S1", are put together again."""
    text = "See Fig.S1 for it. Next."
    cuts = [(0, 8), (8, 18), (19, 24)]
    sentences = tuple(DocumentSentence(text=text[start:end], start=start, end=end, block=0) for start, end in cuts)
    passage = Passage(sentences=sentences, first=0)
    assert passage.text == text
    assert [text[slice(*passage.place_in_text(number))] for number in range(3)] == ["See Fig.", "S1 for it.", "Next."]


def test_notes_are_in_passages_by_sentences_and_in_no_summary() -> None:
    text = Traced.whole("The ladder was opened in June.")
    note = Traced.whole("12 The accounts tell the price. They are lost.", 32)
    blocks = (Block(kind="paragraph", body=text), Block(kind="note", body=note))
    document = Document(text=f"{text.text}\n\n{note.text}", blocks=blocks)
    (passage,) = passages_of(document)
    assert [one.text for one in passage.sentences] == [text.text, "12 The accounts tell the price.", "They are lost."]
    assert [one.text for one in sentences_of(document)] == [text.text]
