"""Passages with their places: whole sentences, sections, overlap, counts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import longspan
from longspan.errors import InputError
from longspan_documents.inference.answer import open_documents
from longspan_documents.text.passages import passages_of, units_of
from longspan_documents.text.reading import document_of, read, sentences_of

SENTENCE = "Marmot number {} whistles at the eagle above the snow."  # ten words
TEXT = (
    "# Märchen\n\nÜber Bienen.\n\n## Tanz\n\n"
    + " ".join(SENTENCE.format(number) for number in range(9))
    + "\n\n### Runde\n\nSie tanzen.\n\n## Honig\n\nEr ist süß.\n"
)


def test_places_headings_and_numbers_point_back_into_the_document() -> None:
    document = document_of(TEXT)
    sentences = sentences_of(document)
    passages = longspan.chunks(document, max_words=30)
    assert [passage.headings for passage in passages] == [
        ("Märchen",),
        *[("Märchen", "Tanz")] * 3,
        ("Märchen", "Tanz", "Runde"),
        ("Märchen", "Honig"),
    ]
    for passage in passages:
        quote, (first, end) = passage.quote, passage.sentences
        assert (
            TEXT[quote.start : quote.end] == TEXT.encode()[quote.start_byte : quote.end_byte].decode() == str(passage)
        )
        assert (quote.start, quote.end) == (sentences[first].start, sentences[end - 1].end)
        assert passage.words == len(str(passage).split()) <= 30
    assert all(before.sentences[1] == after.sentences[0] for before, after in pairwise(passages))


@pytest.mark.parametrize("overlap", [0, 1, 2, 7])
@pytest.mark.parametrize("most", [4, 10, 23, 40])
def test_overlap_repeats_the_end_of_the_one_before_where_it_fits(overlap: int, most: int) -> None:
    document = document_of(TEXT)
    units = units_of(document)
    passages = passages_of(document, most=most, overlap=overlap)
    if not overlap:
        assert [one for passage in passages for one in passage.sentences] == units
    assert {one.start for passage in passages for one in passage.sentences} == {one.start for one in units}
    for before, after in pairwise(passages):
        shared = [one for one in after.sentences if one in before.sentences]
        assert units[after.first] == after.sentences[0]
        assert list(before.sentences[len(before.sentences) - len(shared) :]) == shared
        assert len(shared) <= overlap
        if len(after.sentences) > 1:
            assert sum(len(one.text.split()) for one in after.sentences) <= most + most // 4
        if overlap and most >= 20 and before.heading == after.heading == "Tanz":
            assert shared  # ten words again and ten new ones fit


def test_bytes_are_those_of_the_text_at_any_distance() -> None:
    text = "ü🐝b " * 5_000
    document = document_of(text)
    for place in (0, 1, 4_095, 4_096, 4_097, 8_192, 12_345, len(text)):
        assert document.byte(place) == len(text[:place].encode())
    assert document_of("plain").byte(5) == 5


def letters(texts: list[str], **_: Any) -> dict[str, Any]:
    """A tokenizer of characters."""
    return {"input_ids": [list(text) for text in texts]}


def test_a_bound_in_tokens_cuts_sentences_between_words_and_words_between_characters() -> None:
    text = "# A\n\nOne two. Three four five six seven eight nine ten.\n\nAbcdefghijklmnopqrstuvwxyz\n\n## B\n\nEnd."
    passages = longspan.chunks(text, max_tokens=20, tokenizer=letters)
    # 41 characters of the second sentence: halves at the space that is nearest to their middle, and so on.
    told = ["Three four five six", "seven eight", "nine ten.", "Abcdefghijklm", "nopqrstuvwxyz"]
    assert [str(passage) for passage in passages] == ["One two.", *told, "End."]
    assert [passage.sentences[0] for passage in passages] == [0, 1, 1, 1, 2, 2, 3]
    assert [passage.headings for passage in passages] == [("A",)] * 6 + [("A", "B")]
    for passage in passages:
        assert text[passage.quote.start : passage.quote.end] == str(passage)


@pytest.mark.parametrize("bounds", [{}, {"max_words": 23}])
@pytest.mark.parametrize("most", [8, 61, 130, 1000])
def test_no_passage_has_more_tokens_and_none_of_the_text_is_lost(most: int, bounds: dict[str, int]) -> None:
    whole = longspan.chunks(TEXT, tokenizer=letters)
    passages = longspan.chunks(TEXT, max_tokens=most, tokenizer=letters, **bounds)
    assert all(passage.tokens == len(str(passage)) <= most for passage in passages)
    assert "".join("".join(map(str, passages)).split()) == "".join("".join(map(str, whole)).split())
    assert all(before.quote.end <= after.quote.start for before, after in pairwise(passages))
    sections = {passage.headings: [] for passage in whole}
    for passage in passages:
        sections[passage.headings].append(str(passage))
    # Sentences of 53 characters: as many as fit stand together, where words set no other bound.
    if most == 130:
        assert {len(one) for one in sections["Märchen", "Tanz"]} == {107, 53}
    if most == 1000 and not bounds:
        assert [len(one) for one in sections["Märchen", "Tanz"]] == [9 * 53 + 8]


def test_tokens_are_those_of_the_tokenizer_that_is_asked() -> None:
    for passage in longspan.chunks(TEXT, tokenizer=letters):
        assert passage.tokens == len(passage.text)
    for passage in longspan.chunks(TEXT):
        assert passage.tokens >= passage.words


def test_speakers_and_lines_of_tables() -> None:
    (talk,) = longspan.chunks("ANNA: Where do they live?\nBEN: High up.\nANNA: And their enemies?\nBEN: Eagles.\n")
    assert talk.speakers == ("ANNA", "BEN")
    assert talk.text.splitlines()[1] == "BEN: High up."


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_words": 3}, "max_words is 3; it must be at least 4"),
        ({"max_words": "9"}, "max_words"),
        ({"overlap": -1}, "overlap is -1; it must be at least 0"),
        ({"tokenizer": 5}, "tokenizer"),
        ({"tokenizer": "/no/such/folder"}, "/no/such/folder"),
    ],
)
def test_mistakes_are_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        longspan.chunks("Some words.", **options)


def test_sentences_end_with_no_abbreviation_of_the_user(tmp_path):
    text = "Siehe Anm. Nichts gilt hier.\n"
    file, words = tmp_path / "note.txt", ["Anm."]
    file.write_text(text)
    for given in (text, file, read(file)):
        assert longspan.chunks(given)[0].sentences == (0, 2)
        assert longspan.chunks(given, abbreviations=words)[0].sentences == (0, 1)
    assert len(longspan.summarize(text, 1, abbreviations=words).document) == 1
    assert len(longspan.embed_document(file, abbreviations=words).sentences) == 1
    assert longspan.answer(file, "was gilt?", abbreviations=words).passages[0].text == text.strip()
    for verb in (longspan.chunks, longspan.embed_document):
        with pytest.raises(InputError, match="abbreviations='Anm' is one string"):
            verb(text, abbreviations="Anm")


def test_an_iterator_of_abbreviations_serves_every_document():
    documents, _ = open_documents(["Siehe Anm. Nichts gilt.", "Laut Anm. Alles gilt."], abbreviations=iter(["Anm."]))
    assert [len(sentences_of(document)) for document in documents] == [1, 1]
