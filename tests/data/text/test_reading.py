"""Documents as a person sees them: blocks, sentences, and their places."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from longspan.data.text.reading import document_of, read, sentences_of


def test_sentences_know_their_section_and_place(tmp_path: Path) -> None:
    path = tmp_path / "paper.txt"
    path.write_text("1 Introduction\n\nWords are\nwrapped. Twice.\n\n1.1 Aims\n\n- One aim.\n- Another\n  aim.\n")
    document = read(path)
    sentences = sentences_of(document)
    assert [(block.kind, block.level) for block in document.blocks if block.kind == "heading"] == [
        ("heading", 1),
        ("heading", 2),
    ]
    assert [sentence.text for sentence in sentences] == ["Words are wrapped.", "Twice.", "One aim.", "Another aim."]
    assert [document.blocks[sentence.section or 0].text for sentence in sentences] == [
        *["1 Introduction"] * 2,
        *["1.1 Aims"] * 2,
    ]
    assert [document.line(sentence.start) for sentence in sentences] == [3, 4, 8, 9]
    assert document.text[sentences[0].start : sentences[0].end] == "Words are\nwrapped."


def test_sentences_stay_within_a_turn_and_know_their_speaker() -> None:
    document = document_of("Ann: Mm. Yes\nBob: No. Well\nand more.\nAnn: Why?\nBob: So.\n")
    assert [(sentence.speaker, sentence.text) for sentence in sentences_of(document)] == [
        ("Ann", "Mm."),
        ("Ann", "Yes"),
        ("Bob", "No."),
        ("Bob", "Well and more."),
        ("Ann", "Why?"),
        ("Bob", "So."),
    ]


@given(st.text("ab. \n#-:1A\f", max_size=80))
def test_places_rise_and_point_at_the_words(text: str) -> None:
    document = document_of(text)
    last = 0
    for sentence in sentences_of(document):
        assert last <= sentence.start < sentence.end <= len(text)
        assert " ".join(text[sentence.start : sentence.end].split()) == sentence.text
        last = sentence.end
