"""Sentences: their places in the text, many scripts, untidy documents, linear work."""

import random
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counted import lines_run
from longspan.data.text.sentences import LONGEST, Sentence, combining_marks, guess_language, split_sentences
from longspan.errors import InputError

pytest.importorskip("sentencex", reason="needs the 'documents' extra")

MARKS = "ab AZ.!?,;\"'“”«»()[]-*#1\n\r\t\f 。！？「」，ء؟ह।é\u2028\u2029\u3000😀"


def texts(text: str, language: str | None = None) -> list[str]:
    return [sentence.text for sentence in split_sentences(text, language)]


def check_places(text: str, sentences: list[Sentence]) -> None:
    """In order, not overlapping, exact, and nothing but white space is left out."""
    end = 0
    for sentence in sentences:
        assert end <= sentence.start < sentence.end <= len(text)
        assert not text[end : sentence.start].strip()
        assert sentence.text == text[sentence.start : sentence.end] == sentence.text.strip()
        end = sentence.end
    assert not text[end:].strip()


@settings(max_examples=150, deadline=None)
@given(
    st.text(
        alphabet=st.sampled_from("ab AZ.!?,;\"'“”«»()[]-*#1\n\r\t\f 。！？「」，ء؟ह।é\u2028\u2029\u3000😀"),
        max_size=400,
    )
)
def test_sentences_cover_every_character_in_order(text: str) -> None:
    check_places(text, split_sentences(text))


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=200), st.sampled_from([None, "en", "zh", "ar", "tlh"]))
def test_any_unicode_text_and_language(text: str, language: str | None) -> None:
    check_places(text, split_sentences(text, language))


def test_empty_and_blank_texts_have_no_sentences() -> None:
    assert split_sentences("") == []
    assert split_sentences(" \n\t \r\n") == []


def test_english_abbreviations_and_quotations() -> None:
    assert texts("Dr. Smith went to Washington, D.C. on Jan. 5. He left. “Stop! Now!” she said. Why?") == [
        "Dr. Smith went to Washington, D.C. on Jan. 5.",
        "He left.",
        "“Stop! Now!” she said.",
        "Why?",
    ]


def test_lower_case_scientific_text() -> None:
    assert texts("we measured <dig> cells. the rate (fig. 2) was high; see <cit> . no change was seen.") == [
        "we measured <dig> cells.",
        "the rate (fig. 2) was high; see <cit> .",
        "no change was seen.",
    ]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("zh", ["今天天气很好。", "我们去公园吧！", "他说：“好。”", "然后走了"]),
        ("ja", ["日本語です。", "そうですか？", "はい。"]),
        ("ar", ["مرحبا بالعالم.", "كيف حالك؟", "أنا بخير، شكرا."]),
        ("hi", ["नमस्ते दुनिया।", "आप कैसे हैं?", "ठीक।"]),
        ("ru", ["Привет, мир.", "Как дела?", "Хорошо!"]),
        ("ko", ["안녕하세요.", "잘 지내요?", "네."]),
        ("el", ["Καλημέρα κόσμε.", "Τι κάνεις;", "Καλά."]),
    ],
)
def test_other_scripts_are_recognised_and_cut(code: str, expected: list[str]) -> None:
    text = ("" if code in {"zh", "ja"} else " ").join(expected)
    assert guess_language(text) == code
    assert texts(text) == expected


def test_language_is_english_without_letters_and_for_latin_letters() -> None:
    assert guess_language("12 + 30") == "en"
    assert guess_language("Der Hund bellt.") == "en"
    assert guess_language("The word 你好 is a greeting in Chinese, and so on.") == "en"


def test_blank_lines_headings_and_items_end_sentences() -> None:
    text = "# Heading\ntext here\nand here\n\nNext part\n- one item\n- two items\n1. First\n2. Second\n \n End"
    assert texts(text) == [
        "# Heading",
        "text here\nand here",
        "Next part",
        "- one item",
        "- two items",
        "1. First",
        "2. Second",
        "End",
    ]


def test_no_sentence_ends_where_no_space_follows() -> None:
    whole = (
        "The constructor will raise a zoneinfo.ZoneInfoNotFoundError exception.",
        "Set branch.<name>.merge and remote.<name>.pushRefSpec to it.",
        "Read https://example.org/a.B/c.D?Query=Yes!No and setup.Cfg, or /etc/ssh/ssh_config.D/*.Conf on Python 3.X.",
        "Call os.Path(), re.Match or Foo.bar.Baz.",
        "Run ./Configure before the .NET runtime 10.0.Final starts.",
        "Versions 1.2.3rc1, 0.9.Beta and $3.50 differ.",
        "Write '...' here, and (...) there.",
        "See pip(1), git-config(1).Files and !Important marks.",
        "The field `a.`B and [package.Metadata].Name hold it.",
    )
    for sentence in whole:
        assert texts(f"It began. {sentence} Then it ended.") == ["It began.", sentence, "Then it ended."]


def test_places_that_need_no_space_still_end_sentences() -> None:
    assert texts("今天很好。我们走！”他说。好") == ["今天很好。", "我们走！”他说。", "好"]
    assert texts("你好!我们走。") == ["你好!", "我们走。"]
    assert texts("It was shown before.[3] Others doubt it. Nobody knows.") == [
        "It was shown before.[3]",
        "Others doubt it.",
        "Nobody knows.",
    ]


def test_a_line_that_ends_in_a_colon_is_a_sentence_before_code() -> None:
    code = "To print the table, call:\n    show(table)\nIt has three columns."
    assert texts(code)[0] == "To print the table, call:"
    wrapped = "There is one rule:\nnever guess what was meant."
    assert texts(wrapped) == [wrapped]


def test_an_address_is_not_cut_at_its_colon() -> None:
    links = "see [docs](https://example.org/a/very/long/place/of/pages/0123456789) " * 30
    assert not any(text.startswith("//") for text in texts(links))


@pytest.mark.parametrize("mark", ["•", "-", "*", "◦", "●", "■", "○", "(1)", "1)"])
def test_an_item_may_hold_several_sentences(mark: str) -> None:
    text = f"Before it.\n{mark} It ends here. A second one follows.\nA third one ends it."
    assert texts(text) == ["Before it.", f"{mark} It ends here.", "A second one follows.", "A third one ends it."]


def test_line_break_beside_a_long_line_ends_a_paragraph() -> None:
    long = "word " * 40
    assert texts(f"Introduction\n{long}\nMethods\n{long}") == ["Introduction", long.strip(), "Methods", long.strip()]


def test_unbalanced_quotation_does_not_swallow_the_rest() -> None:
    text = '"' + "He went home then. " * 400
    sentences = texts(text)
    assert max(map(len, sentences)) <= LONGEST
    assert sentences[1:] == ["He went home then."] * 399


def test_an_end_inside_a_long_bracket_does_not_keep_the_others() -> None:
    first = ["The rule (we know it.", *["He went home then."] * 9, "We make a block A."]
    sentences = [*first, *["Later he slept."] * 40, "It went on) ended here.", "Nobody came."]
    assert texts(" ".join(sentences)) == sentences


def test_endless_sentence_is_cut_at_clauses_then_spaces_then_anywhere() -> None:
    for unit in ("some words, ", "word ", "x"):
        sentences = texts(unit * 2000)
        assert max(map(len, sentences)) <= LONGEST
        assert "".join("".join(sentences).split()) == "".join((unit * 2000).split())
    assert all(sentence.endswith(",") for sentence in texts("some words, " * 500))
    assert set(" ".join(texts("word " * 2000)).split()) == {"word"}


def test_bad_language_is_one_clear_error() -> None:
    with pytest.raises(InputError, match="language='English language' is not a language code"):
        split_sentences("Hello.", "English language")


@pytest.mark.slow
def test_work_grows_linearly_on_one_line() -> None:
    rng = random.Random(0)
    makers = {
        "prose": lambda n: "This is a sentence of words. " * (n // 29),
        "open quotations": lambda n: "“a. " * (n // 4),
        "noise": lambda n: "".join(rng.choices("ab .!?\"“”()«»'。「", k=n)),
        "one word": lambda n: "a" * n,
    }
    for name, make in makers.items():
        # 8-fold is linear, 12-fold an exponent of 1.2, 64-fold quadratic.
        assert lines_run(split_sentences, make(160_000)) < 12 * lines_run(split_sentences, make(20_000)), name
        # What the square of this length takes in C, no test would live to see.
        assert sum(len(sentence.text) for sentence in split_sentences(make(800_000))) >= 400_000


def test_every_combining_mark_is_known() -> None:
    """Against a look at all of Unicode, by the database of this Python."""
    every = [code for code in range(0x300, sys.maxunicode + 1) if unicodedata.category(chr(code)).startswith("M")]
    assert combining_marks() == every


def cases() -> list[tuple[str, str, list[str]]]:
    """The group, the language and the sentences of each line of the file beside this one."""
    found, group = [], ""
    for line in Path(__file__).with_name("sentence_cases.txt").read_text(encoding="utf-8").split("\n"):
        if line.startswith("## "):
            group = line[3:]
        elif line and not line.startswith("#"):
            found.append((group, group.split()[0], line.split("¦")))
    return found


@pytest.mark.parametrize("group", sorted({group for group, _, _ in cases()}))
def test_abbreviations_initials_ordinals_and_quotations(group: str) -> None:
    wrong = []
    for name, language, sentences in cases():
        if name == group:
            joint = "" if group in ("zh", "ja", "en no space") else " "
            if (found := texts(joint.join(sentences), language)) != sentences:
                wrong.append(found)
    assert not wrong


def test_words_that_only_look_like_abbreviations_end_sentences() -> None:
    assert texts("The test was based on AM. None failed.") == ["The test was based on AM.", "None failed."]
    assert texts("It grew well.[4] Then it died.") == ["It grew well.[4]", "Then it died."]
    assert texts("He says “It has vitamin C. Eat it.” and left.") == ["He says “It has vitamin C. Eat it.” and left."]


def test_abbreviations_of_a_user() -> None:
    text = "Siehe Anm. Nichts gilt. Der Vors. Richter kam."
    assert texts(text, "de")[0] == "Siehe Anm."
    cut = [one.text for one in split_sentences(text, "de", ["Anm.", "vors"])]
    assert cut == ["Siehe Anm. Nichts gilt.", "Der Vors. Richter kam."]
    with pytest.raises(InputError, match=r"abbreviations='Anm.' is one string; give a list of them, \['Anm.'\]"):
        split_sentences(text, "de", "Anm.")
    with pytest.raises(InputError, match=r"abbreviations holds 'z. B.'; give single words"):
        split_sentences(text, "de", ["z. B."])
