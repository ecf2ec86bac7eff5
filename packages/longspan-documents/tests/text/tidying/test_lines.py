"""Lines put together: broken words are whole, what nobody sees vanishes, and places stay those of the file."""

from __future__ import annotations

from longspan_documents.text.reading import document_of, sentences_of


def test_words_that_line_ends_break_are_whole() -> None:
    text = (
        "The commission mea-\nsured the gra-\n  vel for two years. A well-\nknown rule is the state-of-the-\nart one. "
        "Two- and three-\nor four-year plans are in pages 12-\n15 of it."
    )
    document = document_of(text)
    assert document.blocks[0].text == (
        "The commission measured the gravel for two years. A well-known rule is the state-of-the-art one. "
        "Two- and three- or four-year plans are in pages 12-15 of it."
    )
    first, *_ = sentences_of(document)
    assert document.text[first.start : first.end] == "The commission mea-\nsured the gra-\n  vel for two years."


def test_characters_that_nobody_sees_vanish() -> None:
    document = document_of("The Unter\u00adnehmen grow\u200bs in the mar\u00ad\nket.\n")
    (sentence,) = sentences_of(document)
    assert sentence.text == "The Unternehmen grows in the market."
    assert document.text[sentence.start : sentence.end] == "The Unter\u00adnehmen grow\u200bs in the mar\u00ad\nket."


def test_lines_of_chinese_and_japanese_are_joined_without_a_space() -> None:
    text = "吾輩は猫である。名前は\n  まだ無い。\nGoogle の検索\n"
    document = document_of(text)
    assert document.blocks[0].text == "吾輩は猫である。名前はまだ無い。 Google の検索"
    _, second, _ = sentences_of(document)
    assert (second.text, document.text[second.start : second.end]) == ("名前はまだ無い。", "名前は\n  まだ無い。")
    assert document_of("나는 고양이로\n소이다.\n").blocks[0].text == "나는 고양이로 소이다."
